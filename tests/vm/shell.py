#!/usr/bin/env python3
"""`make vm`: a virtual machine on this terminal. shell.py [WORD…], more arguments for its kernel
command line"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import qemu
from disk import CACHE, NodeError, disk
from scenario import HEALTHY, UNITS, V1, Files

LOGIN: Files = {
    f"{UNITS}/serial-getty@ttyS0.service.d/login.conf": "[Service]\nExecStart=\nExecStart=-/sbin/agetty "
    ""
    ""
    ""
    "--autologin root --keep-baud 115200 "
    "%I vt220\n",
}
WELCOME = """
A machine with Debian's kernel, cgroup v2, the package and eight simulated GPUs boots on this terminal; a shell
comes in about a minute. What it writes to its disk is thrown away.

  gpu-gate status; simgpu --help        as on a node (make node-shell)
  poweroff, or Ctrl-A x                 the end
  make vm ARGS="gpu-gate=off"           words for the kernel; for cgroup v1:
  make vm ARGS="{v1}"
"""


def main(words: list[str]) -> int:
    try:
        found = disk()
    except NodeError as error:
        print(error, file=sys.stderr)
        return 1
    print(WELCOME.format(v1=V1), flush=True)
    with tempfile.NamedTemporaryFile(dir=CACHE) as files:
        files.write(qemu.packed({**HEALTHY, **LOGIN}))
        files.flush()
        return os.spawnvp(
            os.P_WAIT,
            "setpriv",
            qemu.argv(
                found,
                Path(files.name),
                " ".join(words),
                ["-serial", "mon:stdio", "-display", "none"],
            ),
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
