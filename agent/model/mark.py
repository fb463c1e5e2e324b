"""A small file under /run/gpu-gate. Apart from snapshot.py, because `gpu-gate wait` reads marks and
must start fast."""

from __future__ import annotations

from typing import NamedTuple


class Mark(NamedTuple):
    """Why a mark exists, and since when."""

    reason: str
    at: float
    """boottime, seconds"""
    until: float = 0.0
    """boottime, seconds, when it ends by itself; 0.0: it does not end"""
