"""What may the processes of these containers do with every device of this host? An exec'd program:
a line in, a line out, until its stdin ends.

    {"pid": 4711, "started": "81723", "devices": ["c:195:0"]}     these only; without "devices": all
    of the host's
    {"v": 1, "pid": 4711, "rules": "programs 7,9", "allowed": {"c:1:3": "rwm", "c:136:*": "rw",
    "c:*:*": "m"},
     "detail": ""}

Asked before and after a scope's device list is added to (docs/access.md): what no entry of
`allowed` fits is denied. `detail` is a sentence where it could not be told, and `allowed` is empty
then.
"""

from __future__ import annotations

import json
import os
import signal
import sys

if not __package__:
    # Exec'd by path: the one room used is found beside this one, after all that is Python's own.
    here = os.path.dirname(os.path.abspath(__file__))
    host = os.path.dirname(here)
    package = os.path.dirname(host)
    sys.path.append(os.path.dirname(package))
    __package__ = ".".join(map(os.path.basename, (package, host, here)))

from ...transport.device_cgroups import AccessUndetermined, Mounts, read, said
from ...transport.device_sweep import ANY, Sweep, allowed, numbers
from ...transport.scratch_cgroup import DeviceNode


def word(node: DeviceNode) -> str:
    return ":".join(
        [node.kind, *("*" if number == ANY else str(number) for number in (node.major, node.minor))]
    )


def node_of(text: str) -> DeviceNode:
    kind, major, minor = text.split(":")
    if kind not in ("c", "b") or not 0 <= int(major) < 1 << 12 or not 0 <= int(minor) < 1 << 20:
        raise ValueError(f"{text} is no device number")
    return DeviceNode(kind, int(major), int(minor), "")


def answer(line: str, mounts: Mounts, sweep: Sweep, every: list[DeviceNode]) -> dict[str, object]:
    out: dict[str, object] = {"v": 1, "pid": 0, "rules": "", "allowed": {}, "detail": ""}
    try:
        asked = json.loads(line)
        out["pid"] = pid = int(asked["pid"])
        if "devices" not in asked and not every:
            every += numbers()
        nodes = [node_of(text) for text in asked["devices"]] if "devices" in asked else every
        out["rules"], found = allowed(pid, asked["started"], nodes, mounts, sweep)
        out["allowed"] = {word(node): can for node, can in found.items()}
    except AccessUndetermined as unsure:
        out["detail"] = unsure.detail
    except (OSError, ValueError, KeyError, TypeError) as exc:
        out["detail"] = f"It could not be looked at: {said(exc)}"
    return out


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by way of finally
    mounts = Mounts(read("/proc/self/mountinfo"))
    sweep = Sweep(mounts)
    every: list[DeviceNode] = []
    try:
        for line in sys.stdin:
            print(json.dumps(answer(line, mounts, sweep, every)), flush=True)
    finally:
        sweep.leave()
    return 0


if __name__ == "__main__":
    sys.exit(main())
