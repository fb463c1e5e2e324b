"""The clock of every deadline."""

from __future__ import annotations

import time


def boottime() -> float:
    """Seconds since boot, time in suspend included. Setting the clock does not change it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
