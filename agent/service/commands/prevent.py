"""`gpu-gate access --prevent`: name what containers that hold GPUs may open in their scopes, once
and at once.

The package runs it before its own daemon-reload (installation, upgrade, removal), whether an agent
runs or not. The same look, judgement and hand as the agent's; only [Access] Prevent= is taken for
"on".
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...engine.cycle import Engine
from ...engine.ports import NoWatches, SilentObserver
from ...host.access.checks import DeviceAccess
from ...host.access.updater import DeviceAllowUpdater
from ...host.live import LiveHost
from ...model.access import GrantResult
from ...model.actions import Action, CheckAccess, GrantDevices
from ...model.settings import Settings
from ...model.snapshot import Snapshot
from ...model.wake import WakeReason, WakeSource
from ...transport.clock import boottime
from ..chain import printable
from ..clock import LiveClock
from ..connection import systemd

WITHIN_S = 8.0
"""Of all; an installation waits for it. 100 containers take about 3 s, none 0.3 s."""
ROUNDS = 8
"""One look for who there is, one for what they may do, one for their scopes, one for what came of
it."""
SOON_S = 1.0


def run(settings: Settings) -> int:
    """0: nobody is at risk any more; 1: somebody is, or it could not be told."""
    done: list[GrantResult] = []
    try:
        problem = asyncio.run(
            asyncio.wait_for(_prevent(replace(settings, prevent="on", heal=True), done), WITHIN_S)
        )
    except asyncio.TimeoutError:
        problem = f"not done within {WITHIN_S:g} s"
    for one in done:
        print(
            printable(f"gpu-gate: {sentence(one)}"),
            file=sys.stderr if one.problem or one.lost else sys.stdout,
        )
    if problem:
        print(
            f"gpu-gate: containers may lose their GPUs at a daemon-reload: {problem}; see "
            "gpu-gate access",
            file=sys.stderr,
        )
    return 1 if problem or any(one.problem or one.lost for one in done) else 0


def sentence(one: GrantResult) -> str:
    """What came of one container, for a person."""
    if one.lost:
        return f"{one.who} LOST {', '.join(one.lost)} when devices were added to {one.scope}"
    if one.problem:
        return f"could not update DeviceAllow= for {one.who}: {one.problem}"
    if one.given_back:
        return f"{one.who} had lost {', '.join(one.given_back)} and has it back"
    return f"{one.who} keeps its devices at a daemon-reload"


class _OnlyAccess:
    """Executes what concerns device access, and leaves everything else to the agent."""

    def __init__(self, checks: DeviceAccess, grants: DeviceAllowUpdater) -> None:
        self._checks, self._grants = checks, grants

    def prepare_repair(self, settings: Settings, snapshot: Snapshot) -> None: ...

    async def act(self, action: Action, *_: Any) -> None:
        if isinstance(action, CheckAccess):
            self._checks.start(action)
            await self._checks.finished()
        elif isinstance(action, GrantDevices):
            self._grants.begin(action)
            await self._grants.finished()


async def _prevent(settings: Settings, done: list[GrantResult]) -> str:
    """Run cycles until nothing is left to do. Why it could not be done, or ""."""

    def take(rows: Sequence[GrantResult]) -> None:
        done.extend(row for row in rows if row.named or row.problem)

    async with systemd() as bus:
        if bus.problem:
            return f"systemd was not asked ({bus.problem})"
        checks = DeviceAccess(lambda _: None, bus)
        executor = _OnlyAccess(checks, DeviceAllowUpdater(bus, checks, take))
        host = LiveHost(bus, checks=checks)
        engine = Engine(settings, host, executor, NoWatches(), SilentObserver(), LiveClock())
        return await _until_nothing_is_left(engine)


async def _until_nothing_is_left(engine: Engine) -> str:
    for _ in range(ROUNDS):
        await engine.cycle({WakeReason(WakeSource.START): 1})
        diagnosis = engine.last.diagnosis
        if diagnosis is None:
            return "the node did not answer in time"
        if diagnosis.paused and diagnosis.guarded:
            return diagnosis.paused.why
        if diagnosis.access_check is not None or diagnosis.allow is not None:
            continue
        if diagnosis.access_due is None or diagnosis.access_due - boottime() > SOON_S:
            return ""
        # Cycles before it is due would only use up the rounds.
        await asyncio.sleep(max(0.05, diagnosis.access_due - boottime()))
    return f"{ROUNDS} snapshots were not enough"
