"""`gpu-gate access --prevent`: what containers that hold GPUs may open is named in their scopes,
once and at once.

The package runs it before its own daemon-reload (installation, upgrade, removal), whether an agent
runs or not. The same look, judgement and hand as the agent's; only [Access] Prevent= is taken for
"on".
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace

from ...core.collect import collect
from ...core.diagnose import diagnose
from ...host.access.checks import AccessChecks
from ...host.access.updater import DeviceAllowUpdater
from ...host.live import LiveHost
from ...model.access import GrantResult
from ...model.settings import Settings
from ...transport.clock import boottime
from ..chain import printable
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
        return f"the device list of {one.who} could not be helped: {one.problem}"
    if one.given_back:
        return f"{one.who} had lost {', '.join(one.given_back)} and has it back"
    return f"{one.who} keeps its devices at a daemon-reload"


async def _prevent(settings: Settings, done: list[GrantResult]) -> str:
    """Look and act until there is nothing more to do. Why it could not be done, or ""."""

    def take(rows: Sequence[GrantResult]) -> None:
        done.extend(row for row in rows if row.named or row.problem)

    async with systemd() as bus:
        if bus.problem:
            return f"systemd was not asked ({bus.problem})"
        checks = AccessChecks(lambda _: None, bus)
        allow, host = DeviceAllowUpdater(bus, checks, take), LiveHost(bus, checks=checks)
        for _ in range(ROUNDS):
            diagnosis = diagnose(await collect(host, settings), settings)
            if diagnosis.paused and diagnosis.guarded:
                return diagnosis.paused.why
            if diagnosis.access_check is not None:
                checks.start(diagnosis.access_check)
                await checks.finished()
            elif diagnosis.allow is not None:
                allow.begin(diagnosis.allow)
                await allow.finished()
            elif diagnosis.access_due is None or diagnosis.access_due - boottime() > SOON_S:
                return ""
            else:  # until it is: looks in between would only use up the rounds
                await asyncio.sleep(max(0.05, diagnosis.access_due - boottime()))
        return f"{ROUNDS} looks were not enough"
