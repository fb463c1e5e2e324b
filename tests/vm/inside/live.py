"""Runs in the machine, as a service beside the boot: runs one scenario, then powers the machine
off.

Which one, the kernel's command line says (gpu-gate.live=NAME). Each check writes one JSON line to
the second serial port, and the program outside judges nothing but that all of them were there and
went well.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

sys.path[:0] = ["/opt/vm/node", "/opt/vm/inside"]

import boots  # noqa: E402
import load  # noqa: E402
import v1  # noqa: E402
from here import check, report  # noqa: E402

SCENARIOS = {**boots.SCENARIOS, **load.SCENARIOS, **v1.SCENARIOS}


def main() -> None:
    found = re.search(r"gpu-gate\.live=(\S+)", Path("/proc/cmdline").read_text())
    for name in found[1].split(",") if found else ():
        for what in SCENARIOS[name]:
            check(what)
    report("end", ok=True)


if __name__ == "__main__":
    main()
