#!/usr/bin/env python3
"""`make bench`: cost and speed of gpu-gate, compared with common alternatives, on real systemd
nodes.

run.py [--quick] [--only NAME]… [--suite bookworm|trixie]
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "node"))

import added
import boots
import crowd
import nogpu
import repair_facts
import report
import steady
import workloads
from nspawn import NodeError
from rig import Rig

MEASUREMENTS = {
    "windows": boots.windows,
    "flapping": boots.flapping,
    "nogpu": added.without_gpus,
    "healthy": added.healthy,
    "commands": nogpu.commands,
    "idle": steady.idle,
    "reload": steady.reload,
    "verdict": steady.verdict,
    "workloads": workloads.workloads,
    "repairing": repair_facts.repair_facts,
    "crowd": crowd.crowd,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer boots, one idle minute")
    parser.add_argument(
        "--only",
        action="append",
        choices=MEASUREMENTS,
        metavar="NAME",
        help=f"one of {', '.join(MEASUREMENTS)}; may be repeated",
    )
    parser.add_argument("--suite", default="bookworm", choices=("bookworm", "trixie"))
    options = parser.parse_args()
    rig = Rig(options.suite, options.quick)
    around = report.surroundings()
    rows: list[report.Row] = []
    failed = False
    for name in options.only or MEASUREMENTS:
        began = time.monotonic()
        try:
            rows += MEASUREMENTS[name](rig)
        except NodeError as error:  # the others are worth having all the same
            print(f"{name}: {error}", file=sys.stderr)
            failed = True
        load = around.setdefault("load_after", {})[name] = round(os.getloadavg()[0], 2)
        took = time.monotonic() - began
        print(
            f"[{time.strftime('%H:%M:%S')}] {name}: {took:.0f} s, load {load}",
            file=sys.stderr,
            flush=True,
        )
    around.update(rig.versions)
    print(report.table(rows))
    print("\n" + "; ".join(f"{key} {value}" for key, value in around.items()))
    print(f"JSON: {report.keep(rows, around).relative_to(report.REPO)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
