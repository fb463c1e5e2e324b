"""A small file under /run/gpu-gate. Apart from the scene, because `wait` reads marks and must start
in a blink."""

from __future__ import annotations

from typing import NamedTuple


class Mark(NamedTuple):
    """Why a mark is there, and since when."""

    reason: str
    at: float
    "boottime, seconds"
    until: float = 0.0
    "boottime, seconds, when it ends by itself; 0.0: it does not"
