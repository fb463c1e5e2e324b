"""A doctor's questions with the evidence of a repair: journal, versions, sockets. Begun beside the
cycle when a repair is near, so that it need not wait for programs."""

from __future__ import annotations

import asyncio

from ..core.doctor.collect import collect_diagnostics
from ..model.diagnostics import DiagnosticData
from ..model.settings import Settings
from ..model.snapshot import Snapshot
from .diagnostics import LiveDiagnosticHost
from .tape import FullRecorder, Tape

WAIT_S = 1.0
"""A repair waits at most so long for what is not answered yet, and goes without it."""


class RepairDiagnostics:
    """One at a time; each program in it has its own deadline."""

    def __init__(self) -> None:
        self._task: asyncio.Task[DiagnosticData] | None = None
        self._tape = Tape()

    def begin(self, settings: Settings, snapshot: Snapshot) -> None:
        if self._task is None or self._task.done():
            self._tape = Tape()
            host = FullRecorder(LiveDiagnosticHost(), self._tape)
            self._task = asyncio.get_running_loop().create_task(
                collect_diagnostics(host, settings, snapshot)
            )

    async def add_to(self, tape: Tape) -> None:
        """What has been answered, to the tape of the look that leads to the repair, whose own
        answers stay."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=WAIT_S)
        tape.answers.update(
            {key: said for key, said in self._tape.answers.items() if key not in tape.answers}
        )

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
