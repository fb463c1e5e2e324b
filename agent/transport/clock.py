"""The one clock of deadlines."""

from __future__ import annotations

import time


def boottime() -> float:
    """Seconds since the boot, suspend included; nobody can set it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
