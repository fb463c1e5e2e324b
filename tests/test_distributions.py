"""Unit and transport tests on the Python and the library versions of Ubuntu, from PyPI.

Minutes each, so only where asked for: GPU_GATE_UBUNTU=1 make test
ARGS="tests/test_distributions.py". What was run is written down in docs/support.md.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[1]
RELEASES = {"22.04": "3.10", "24.04": "3.12", "26.04": "3.14"}
"""And the Python of each."""
WHEELS = "--only-binary=grpcio,protobuf,PyYAML"
BESIDE = ("nvidia-ml-py", "pytest", "pytest-timeout", "prometheus-client")


def interpreter(version: str) -> str:
    """In PATH, or one of pyenv's, which does not put all of its own there."""
    kept = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))
    found = str(kept[-1]) if kept else shutil.which(f"python{version}")
    if not found:
        pytest.skip(f"NOT RUN: there is no Python {version} here")
    return found


@pytest.mark.timeout(0)
@pytest.mark.parametrize("release", RELEASES)
def test_unit_and_transport_with_the_libraries_of_ubuntu(release: str) -> None:
    wanted = REPO / "tests" / "tools" / f"ubuntu-{release}.txt"
    if not os.environ.get("GPU_GATE_UBUNTU"):
        pytest.skip(f"NOT RUN: Ubuntu {release}'s libraries take minutes; set GPU_GATE_UBUNTU=1")
    python = interpreter(RELEASES[release])
    if not wanted.exists():
        pytest.skip(f"NOT RUN: which versions Ubuntu {release} carries was not looked up")
    venv = REPO / ".cache" / f"ubuntu-{release}"
    subprocess.run([python, "-m", "venv", "--clear", venv], check=True)
    pip = [venv / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", WHEELS]
    subprocess.run([*pip, "--requirement", wanted, *BESIDE], check=True)
    if (
        release == "26.04"
    ):  # protobuf 3.21 is pure Python there, and on 3.14 its wheel's C extension does not load
        shutil.rmtree(next(venv.glob("lib/python*/site-packages/google/_upb")))
    # Their own deprecations, in a Python that is newer than they are, are no fault of ours.
    argv = [
        venv / "bin" / "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-W",
        "ignore::DeprecationWarning",
        "--timeout=900",
        "tests/unit",
        "tests/transport",
    ]
    done = subprocess.run(argv, cwd=REPO, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
