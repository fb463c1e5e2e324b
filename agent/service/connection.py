"""A connection to systemd for as long as a verb needs it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from ..transport.systemd import BusSignal, SystemdBus

CONNECT_S, CONNECT_TRIES = 0.1, 20


@asynccontextmanager
async def systemd() -> AsyncIterator[SystemdBus]:
    """Connect to systemd, one try. If that fails, the bus's `problem` holds the reason."""
    connected = asyncio.Event()
    bus = SystemdBus(lambda signal, _: connected.set() if signal is BusSignal.CONNECTED else None)
    untried = bus.problem
    supervisor = asyncio.get_running_loop().create_task(bus.run())
    try:
        for _ in range(CONNECT_TRIES):
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(connected.wait(), CONNECT_S)
            if bus.problem != untried:
                break
        yield bus
    finally:
        supervisor.cancel()
        await asyncio.gather(supervisor, return_exceptions=True)
