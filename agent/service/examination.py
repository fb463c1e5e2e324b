"""A doctor's questions with the evidence of a repair: journal, versions, sockets. Begun beside the
cycle when a repair is near, so that it need not wait for programs."""

from __future__ import annotations

import asyncio

from ..core.doctor.collect import examine
from ..host.diagnostics import ExaminedHost
from ..host.tape import FullRecorder, Tape
from ..model.diagnostics import Witness
from ..model.settings import Settings
from ..model.snapshot import Scene

WAIT_S = 1.0
"""A repair waits at most so long for what is not answered yet, and goes without it."""


class Examination:
    """One at a time; each program in it has its own deadline."""

    def __init__(self) -> None:
        self._task: asyncio.Task[Witness] | None = None
        self._tape = Tape()

    def begin(self, settings: Settings, scene: Scene) -> None:
        if self._task is None or self._task.done():
            self._tape = Tape()
            host = FullRecorder(ExaminedHost(), self._tape)
            self._task = asyncio.get_running_loop().create_task(examine(host, settings, scene))

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
