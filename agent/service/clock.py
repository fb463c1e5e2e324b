"""The engine's clock on a live node."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from ..engine.ports import Event, Stalled
from ..host.live import clock_now
from ..transport.clock import boottime

T = TypeVar("T")


class LiveClock:
    """Boottime, and asyncio's waiting."""

    def now(self) -> float:
        return boottime()

    def realtime(self) -> float:
        return clock_now().realtime

    def event(self) -> Event:
        return asyncio.Event()

    async def wait(self, event: Event, within_s: float) -> bool:
        assert isinstance(event, asyncio.Event)
        try:
            await asyncio.wait_for(event.wait(), within_s)
        except asyncio.TimeoutError:
            return False
        return True

    async def sleep(self, for_s: float) -> None:
        await asyncio.sleep(for_s)

    async def within(self, work: Awaitable[T], limit_s: float) -> T:
        try:
            return await asyncio.wait_for(work, limit_s)
        except asyncio.TimeoutError as exc:
            raise Stalled from exc
