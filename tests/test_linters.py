"""The linters are tests: one pytest is the whole gate. A missing tool skips on a laptop and fails
in CI."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[1]
SHEBANGS = (b"#!/bin/sh", b"#!/bin/bash", b"#!/usr/bin/env bash")


def lacking(tool: str) -> None:
    if os.environ.get("CI") == "true":
        pytest.fail(f"{tool} is not installed, and this is CI")
    pytest.skip(f"{tool} is not installed")


def passes(*argv: str) -> None:
    done = subprocess.run(argv, cwd=REPO, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(argv[:4])}\n{done.stdout}{done.stderr}"


def module(tool: str, *args: str) -> None:
    if importlib.util.find_spec(tool) is None:
        lacking(tool)
    passes(sys.executable, "-m", tool, *args)


def shell_scripts() -> list[str]:
    # The checkout may belong to another user than the one who runs the tests.
    git = ["git", "-c", f"safe.directory={REPO}", "ls-files", "-z"]
    names = (
        subprocess.run(git, cwd=REPO, capture_output=True, check=True).stdout.decode().split("\0")
    )
    files = [name for name in names if name and (REPO / name).is_file()]
    return [
        n for n in files if (REPO / n).read_bytes()[:64].splitlines()[:1] in [[s] for s in SHEBANGS]
    ]


def test_ruff() -> None:
    module("ruff", "check", "--quiet", ".")


def test_layout() -> None:
    module("ruff", "format", "--check", "--quiet", ".")


def test_mypy_strict() -> None:
    module("mypy", "--no-error-summary")


def test_shellcheck() -> None:
    if shutil.which("shellcheck") is None:
        lacking("shellcheck")
    scripts = shell_scripts()
    assert scripts, "no shell script is tracked: is this a checkout?"
    passes("shellcheck", *scripts)
