"""The linters, as tests. What a file must look like is said in pyproject.toml, not here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]


def tracked() -> list[Path]:
    # Files somebody is about to add count as well; the checkout may belong to another user.
    words = ["git", "-c", f"safe.directory={REPO}", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(words, cwd=REPO, check=True, capture_output=True, text=True).stdout.splitlines()
    return [REPO / name for name in names if (REPO / name).is_file()]


def shell_scripts() -> list[str]:
    return [
        str(path.relative_to(REPO))
        for path in tracked()
        if path.read_bytes()[:40].split(b"\n")[0] in (b"#!/bin/sh", b"#!/usr/bin/env bash", b"#!/bin/bash")
    ]


def quiet(*words: str) -> None:
    done = subprocess.run(words, cwd=REPO, capture_output=True, text=True, check=False)
    if done.returncode or done.stdout.startswith(("W:", "E:")):
        pytest.fail(f"{' '.join(words[:4])} …\n{done.stdout}{done.stderr}", pytrace=False)


def test_ruff() -> None:
    quiet(sys.executable, "-m", "ruff", "check", "--quiet", ".")


def test_mypy() -> None:
    quiet(sys.executable, "-m", "mypy", "--no-error-summary")


def test_shellcheck() -> None:
    quiet("shellcheck", *shell_scripts())


def test_lintian() -> None:
    build = subprocess.run([REPO / "packaging/deb/build"], capture_output=True, text=True, check=False)
    assert build.returncode == 0, build.stderr
    quiet("lintian", "--fail-on", "error,warning", build.stdout.splitlines()[-1])
