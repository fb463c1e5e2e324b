#!/usr/bin/python3
"""nvidia-modprobe as far as a node without a driver can have it: makes device nodes, loads nothing.

  -c MINOR   device node for that minor (255: nvidiactl)       -u   the unified memory module's
  nodes instead
  -m         nvidia-modeset      -f FILE  the capability in that /proc file        -s, -l   accepted
Every call is written to /run/simgpu/modprobe.calls ("BOOTTIME ARGUMENTS"). Without a loaded driver
it exits 1.
"""

from __future__ import annotations

import getopt
import sys
from pathlib import Path

from sim.clock import boottime
from sim.hardware import make_node

RECORD = Path("/run/simgpu/modprobe.calls")


def majors() -> dict[str, int]:
    found = {}
    for line in Path("/proc/devices").read_text().partition("Block devices:")[0].splitlines():
        number, _, name = line.strip().partition(" ")
        if number.isdigit():
            found[name] = int(number)
    return found


def main() -> int:
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    with RECORD.open("a") as record:
        record.write(f"{boottime():.6f} {' '.join(sys.argv[1:])}\n")
    words, _ = getopt.gnu_getopt(
        sys.argv[1:],
        "c:umsl:f:",
        ["create-nvidia-device-file=", "unified-memory", "modeset", "nvlink", "nvswitch"],
    )
    if not Path("/proc/driver/nvidia/version").exists():
        return 1
    known, dev = majors(), Path("/dev")
    flags = {flag for flag, _ in words}
    minors = [
        int(value.lstrip("="))
        for flag, value in words
        if flag in ("-c", "--create-nvidia-device-file")
    ]
    if flags & {"-m", "--modeset"}:
        make_node(dev, "nvidia-modeset", known["nvidia-modeset"], 254)
    elif flags & {"-u", "--unified-memory"}:
        for minor in minors:
            make_node(
                dev, "nvidia-uvm-tools" if minor else "nvidia-uvm", known["nvidia-uvm"], minor
            )
            make_node(dev, "nvidia-uvm-tools", known["nvidia-uvm"], 1)
    elif not flags & {"-s", "-l"}:
        for minor in minors:
            make_node(
                dev, "nvidiactl" if minor == 255 else f"nvidia{minor}", known["nvidiactl"], minor
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
