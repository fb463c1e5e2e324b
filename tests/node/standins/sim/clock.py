"""The one clock the scripts speak: CLOCK_BOOTTIME seconds."""

from __future__ import annotations

import time


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
