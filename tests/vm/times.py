#!/usr/bin/env python3
"""What gpu-gate adds to a boot: the same machine with and without it, with GPUs and without. Four
boots.

The machine's clock counts instructions (qemu.py), a thousand million a second on one processor: its
seconds are the same on any host, and what is computed takes several times as long as on a real one.
What is waited for does not.
"""

from __future__ import annotations

import sys

import scenario as s
from disk import disk

BOOTS: dict[str, s.Files] = {
    "8 GPUs, with": s.HEALTHY,
    "8 GPUs, without": {**s.HEALTHY, **s.WITHOUT},
    "no GPU, with": s.NO_GPU,
    "no GPU, without": {**s.NO_GPU, **s.WITHOUT},
}
COLUMNS = (
    "basic.target",
    "nvidia-persistenced.service",
    "gpu-gate.target",
    "kubelet.service",
    "multi-user.target",
)


def main() -> int:
    found = disk()
    print("| seconds since the kernel's start | " + " | ".join(COLUMNS) + " |")
    print("| --- " * (len(COLUMNS) + 1) + "|")
    for name, files in BOOTS.items():
        boot = s.live(found, "time", files)
        row = boot.results.get("boot_time", {})
        if not row.get("ok"):
            print(row.get("failed") or boot.told(), file=sys.stderr)
            return 1
        times = (row["saw"][unit] / 1e6 for unit in COLUMNS)
        print(
            f"| {name} | " + " | ".join(f"{t:.2f}" if t else "–" for t in times) + " |", flush=True
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
