"""One queue of wakes: reasons gather until the next cycle takes them."""

from __future__ import annotations

from ..model.wake import WakeReason, WakeSource
from .ports import Clock

MAX_REASONS = 32


class WakeQueue:
    """Gathers reasons to run a cycle, from every source."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._event = clock.event()
        self._reasons: dict[WakeReason, int] = {}

    def wake(self, reason: WakeReason) -> None:
        """Run a cycle soon. Any callback of the loop may call it."""
        if reason in self._reasons or len(self._reasons) < MAX_REASONS:
            self._reasons[reason] = self._reasons.get(reason, 0) + 1
        self._event.set()

    async def wait(self, within_s: float) -> dict[WakeReason, int]:
        """The reasons that came; the timer, where none came within `within_s` seconds."""
        await self._clock.wait(self._event, max(0.0, within_s))
        return self.take() or {WakeReason(WakeSource.TIMER): 1}

    def take(self) -> dict[WakeReason, int]:
        self._event.clear()
        reasons, self._reasons = self._reasons, {}
        return reasons
