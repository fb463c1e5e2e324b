#!/usr/bin/env python3
"""What a node consists of on this machine, and how every trace of it goes: processes, cgroups, one
folder.

python3 remains.py reap            removes the nodes of runners that died python3 remains.py clean
FOLDER    removes one; a node's guard ends in this
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

NODES = Path(__file__).resolve().parents[2] / ".cache" / "nodes"

Identity = tuple[
    int, int
]  # pid and its start time in clock ticks: a pid alone may be somebody else's by now


class NodeError(RuntimeError):
    """A command on the node failed; the message contains the node's output."""


def identity(pid: int) -> Identity | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else (pid, int(fields[19]))


def alive(who: Sequence[int] | None) -> bool:
    return bool(who) and who is not None and identity(who[0]) == tuple(who)


def kill(who: Sequence[int] | None, timeout: float = 30.0) -> None:
    """SIGKILL one process of ours, and wait until it is gone."""
    if who is None or not alive(who):
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(who[0], signal.SIGKILL)
    poll(lambda: not alive(who), timeout)


def poll(condition: Callable[[], object], timeout: float, pause: float = 0.02) -> bool:
    end = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(pause)
    return True


def hierarchies() -> list[Path]:
    """Where a node gets a cgroup of its own: the v2 tree, then systemd's named v1 tree if there is
    one."""
    found: dict[str, Path] = {}
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, where, kind, options = line.split()[:4]
        if kind == "cgroup2":
            found.setdefault("v2", Path(where))
        elif kind == "cgroup" and "name=systemd" in options.split(","):
            found.setdefault("v1", Path(where))
    if "v2" not in found:
        raise NodeError(
            "No cgroup v2 tree is mounted here; try mount -t cgroup2 none /sys/fs/cgroup."
        )
    return [found[key] for key in ("v2", "v1") if key in found]


def remove_cgroup(top: Path) -> None:
    """End what still runs below, then remove the folders from the leaves up."""
    with contextlib.suppress(OSError):
        (top / "cgroup.kill").write_text("1")
    end = time.monotonic() + 30
    while top.exists() and time.monotonic() < end:
        for folder, _, _ in os.walk(top, topdown=False):
            with contextlib.suppress(OSError):  # not empty yet, or removed by the other side
                os.rmdir(folder)
        time.sleep(0.02 if top.exists() else 0)


def clean(folder: Path) -> None:
    """Remove all that is left of one node. Safe to call twice, and from two sides."""
    state = load(folder)
    kill(state.get("leader"))
    kill(state.get("nspawn"))
    for name in state.get("cgroups", ()):
        remove_cgroup(Path(name))
    for _ in range(1500):  # a dying mount namespace may hold the overlay's work folder for a moment
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.02)


def reap(nodes: Path = NODES) -> list[str]:
    """Remove the nodes of runners that are gone; those of living runners are left alone."""
    gone = []
    for folder in sorted(nodes.glob("*/")):
        state = load(folder)
        fresh = not state and time.time() - folder.stat().st_mtime < 60
        if not alive(state.get("runner")) and not alive(state.get("guard")) and not fresh:
            clean(folder)
            gone.append(folder.name)
    return gone


def load(folder: Path) -> dict[str, Any]:
    try:
        loaded = json.loads((folder / "state.json").read_text())
    except (OSError, ValueError):
        return {}
    return loaded if isinstance(loaded, dict) else {}


def main(words: list[str]) -> int:
    if words[:1] == ["clean"] and len(words) == 2:
        clean(Path(words[1]))
    elif words == ["clean-all"]:
        reap()
        reap(NODES.parent / "trees" / "building")
        left = [folder.name for folder in NODES.glob("*/")]
        if left:
            print(
                f"{', '.join(left)}: in use by a run that is alive. End that run first.",
                file=sys.stderr,
            )
            return 1
    elif words == ["reap"]:
        print("\n".join(reap()) or "No node of a dead runner was left.")
    else:
        print("Usage: remains.py reap | clean FOLDER | clean-all", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
