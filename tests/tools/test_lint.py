"""What the linters say of the whole tree and of the package; tests/test_linters.py has the others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]


def quiet(*words: str) -> None:
    done = subprocess.run(words, cwd=REPO, capture_output=True, text=True, check=False)
    if done.returncode or done.stdout.startswith(("W:", "E:")):
        pytest.fail(f"{' '.join(words[:4])} …\n{done.stdout}{done.stderr}", pytrace=False)


def test_ruff() -> None:
    quiet(sys.executable, "-m", "ruff", "check", "--quiet", ".")


def test_lintian() -> None:
    build = subprocess.run([REPO / "packaging/deb/build"], capture_output=True, text=True, check=False)
    assert build.returncode == 0, build.stderr
    quiet("lintian", "--fail-on", "error,warning", build.stdout.splitlines()[-1])
