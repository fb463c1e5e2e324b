"""The doctor's questions for the evidence of a repair: journal, versions, sockets. They begin
beside the cycle when a repair may follow, so that it need not wait for programs."""

from __future__ import annotations

import asyncio

from ..core.doctor.collect import collect_diagnostics
from ..model.diagnostics import DiagnosticData
from ..model.settings import Settings
from ..model.snapshot import Snapshot
from .diagnostics import LiveDiagnosticHost
from .tape import FullRecorder, Tape

WAIT_S = 1.0
"""A repair waits so many seconds for answers that are not there yet, then goes without them."""


class RepairDiagnostics:
    """Asks once at a time. Each program that it starts has a deadline of its own."""

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
        """Add the answers so far to the tape of the snapshot that leads to the repair; answers that
        are on it already stay."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=WAIT_S)
        tape.answers.update(
            {key: answer for key, answer in self._tape.answers.items() if key not in tape.answers}
        )

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
