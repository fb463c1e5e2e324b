"""Virtual time: what happens to a node, and when."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable

BOOT = 100.0
"""Boottime, seconds, at which stories begin: a node has been up for a while, so instants may lie
before."""


class Timeline:
    """Events by instant; events of one instant happen in the order in which they were planned."""

    def __init__(self) -> None:
        self.now = BOOT
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._planned = 0

    def at(self, when: float, happen: Callable[[], None]) -> None:
        self._planned += 1
        heapq.heappush(self._events, (max(when, self.now), self._planned, happen))

    def after(self, span_s: float, happen: Callable[[], None]) -> None:
        self.at(self.now + span_s, happen)

    def next_at(self) -> float:
        return self._events[0][0] if self._events else math.inf

    def advance(self, to: float) -> None:
        """Let everything happen that is due until then."""
        while self._events and self._events[0][0] <= to:
            when, _, happen = heapq.heappop(self._events)
            self.now = max(self.now, when)
            happen()
        self.now = max(self.now, to)
