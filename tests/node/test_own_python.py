"""The unit, transport and service tiers, and every story once, on a suite's own Python and
libraries, which the .deb uses.

But for the long lives of tests/unit/test_repair.py, which ask nothing of either.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import tree
from nspawn import Node

REPO = Path(__file__).resolve().parents[2]
WANTED = (
    "agent",
    "docs",
    "packaging",
    "pyproject.toml",
    "systemd",
    "tests/bundles",
    "tests/stories",
)
TIERS = ("tests/unit", "tests/engine", "tests/transport", "tests/service")
PARTS = (
    ("tests/unit", "tests/engine"),
    ("tests/transport", "tests/service"),
    ("tests/stories/test_stories.py::test_story",),
)
"""Parts of a run that are reported apart. None has a time limit: only each test in it has."""


def checkout(node: Node) -> None:
    """The tracked files, as they lie in the checkout."""
    listed = subprocess.run(
        ["git", "-c", f"safe.directory={REPO}", "ls-files", "-z", *WANTED, *TIERS],
        cwd=REPO,
        check=True,
        capture_output=True,
    ).stdout
    there = b"\0".join(
        name for name in listed.split(b"\0") if name and (REPO / name.decode()).exists()
    )
    pack = ["tar", "-c", "--owner=0", "--group=0", "--null", "--files-from=-"]
    packed = subprocess.run(pack, input=there, check=True, capture_output=True, cwd=REPO).stdout
    node.run("mkdir -p /root/checkout; exec tar -x -C /root/checkout", input=packed)


@pytest.mark.timeout(0)
@pytest.mark.parametrize("part", PARTS, ids=lambda part: part[0])
@pytest.mark.parametrize("suite", tree.SUITES)
def test_tiers_pass_with_the_suites_own_python(
    make_node, suite: str, part: tuple[str, ...]
) -> None:
    node = make_node(suite, standins=False)
    checkout(node)
    # The tests have agents of their own, at the same address.
    node.run("systemctl stop gpu-gate; rm -rf /run/gpu-gate")
    # No distribution has it: the .deb brings it along.
    node.run("cp /usr/share/gpu-gate/pynvml.py /root/checkout/")
    words = [
        "python3",
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--timeout=900",
        "-k",
        "not dropped",
        *part,
    ]
    # Debian 13's protobuf on Python 3.13: as an error it would break the import of protobuf itself.
    words += ["-W", "ignore:Type google.protobuf.pyext:DeprecationWarning"]
    done = node.run(["env", "-C", "/root/checkout", *words], check=False, timeout=None)
    assert done.returncode == 0, done.stdout[-6000:]
    assert " passed" in done.stdout
