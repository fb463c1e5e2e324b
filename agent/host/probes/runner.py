"""NVML probes: programs beside the cycle, of which at most one asks at a time.

While the gate settles, the process of a probe is kept until the next one has finished: without
persistence the driver shuts every GPU down with its last client, and three probes would initialise
eight GPUs three times. A probe that misses its deadline is terminated, killed and then abandoned.
As long as it still exists no other starts: what blocks it would block the next one too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace

from ...core.common.paths import DRIVER_VERSION
from ...model.errors import ErrorKind, ProgramError
from ...model.snapshot import ProbeEnd, ProbeReport, ProbeState, Remains
from ...transport.clock import boottime
from ...transport.process import Child, state_of
from .program import Started, leftovers, probe_argv
from .report import report_of

GRACE_S = 2.0
SHUTDOWN_S = 30.0
"""nvmlShutdown shuts the GPUs down where no other client keeps them initialised."""
ANSWER_BYTES = 1 << 20


class Probes:
    """Starts probe programs and keeps their results."""

    def __init__(
        self,
        on_done: Callable[[str], None],
        timeout_s: float,
        driver_root: str = "",
        needs: str = DRIVER_VERSION,
        first: Started | None = None,
    ) -> None:
        """Calls `on_done(sentence)` from the loop whenever `state` has changed. No probe asks NVML
        while the file `needs` is gone. `first`: a probe that is running already."""
        self._on_done = on_done
        self.timeout_s = timeout_s
        self.driver_root = driver_root
        self._needs = needs
        self._born_at = boottime()
        self._number = 0
        self._last: ProbeReport | None = None
        self._running_since: float | None = None
        self._kept: Child | None = None
        self._stuck: tuple[Child, float] | None = None
        self._inherited = [pid for pid in leftovers() if first is None or pid != first.process.pid]
        self._tasks: set[asyncio.Task[None]] = set()
        self._asking: asyncio.Task[None] | None = None
        if first is not None:
            self._running_since = first.since
            self._asking = self._beside(self._run(True, Child.adopt(first.process)))

    @property
    def state(self) -> ProbeState:
        return ProbeState(self._last, self._running_since, self._remains())

    def start(self, overlap: bool) -> None:
        """Start one probe, which ends with `on_done`. It does nothing while another one is
        running."""
        if self._running_since is not None or self._remains() is not None:
            return
        self._running_since = boottime()
        self._asking = self._beside(self._run(overlap, None))

    async def finished(self) -> ProbeState:
        """The state once the running probe, if there is one, has ended."""
        if self._asking is not None:
            await asyncio.wait([self._asking])
        return self.state

    def forget(self) -> None:
        """Drop the last report, because the driver was unloaded."""
        self._last = None

    def drop(self) -> None:
        """Let the kept process end, if there is one."""
        kept, self._kept = self._kept, None
        if kept is not None:
            self._beside(self._let_go(kept))

    async def close(self) -> None:
        """End every process that can be ended; one in uninterruptible sleep stays."""
        self.drop()
        if self._asking is not None:
            self._asking.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=GRACE_S * 2)

    def _remains(self) -> Remains | None:
        for pid in list(self._inherited):
            state = state_of(pid)
            if state not in ("", "Z", "X"):
                return Remains(pid, state, "", self._born_at)
            self._inherited.remove(pid)
        if self._stuck is None:
            return None
        child, since = self._stuck
        found = child.remains()
        if found is None:
            self._stuck = None
            return None
        return Remains(found.pid, found.state, found.wchan, since)

    def _beside(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error

    async def _run(self, overlap: bool, child: Child | None) -> None:
        since = self._running_since or boottime()
        self._number += 1
        try:
            child = child or await Child.start(probe_argv(self.driver_root, self._needs, overlap))
            line = await child.first_line(self.timeout_s, ANSWER_BYTES)
            report = report_of(line, self._number, since, boottime())
        except ProgramError as problem:
            report = await self._problem(problem, child, since)
            overlap = False
        except asyncio.CancelledError:
            if child is not None:
                await child.end(GRACE_S)
            raise
        self.drop()
        if child is not None and self._stuck is None:
            if overlap:
                self._kept = child
            else:
                self._beside(self._let_go(child))
        self._last = replace(report, number=self._number)
        self._running_since = None
        self._on_done(f"{self._number} {report.end.value}")

    async def _problem(
        self, problem: ProgramError, child: Child | None, since: float
    ) -> ProbeReport:
        seen = child.remains() if child is not None else None
        end = ProbeEnd.HUNG if problem.kind is ErrorKind.TIMED_OUT else ProbeEnd.BROKEN
        detail = str(problem)
        if end is ProbeEnd.HUNG and seen is not None:
            detail = (
                f"probe hung, pid {seen.pid}, state {seen.state}, wchan {seen.wchan or '?'}, "
                f"{boottime() - since:.0f} s"
            )
        if child is not None and await child.end(GRACE_S) is not None:
            self._stuck = (child, since)
        return ProbeReport(0, since, boottime(), end, detail=detail)

    async def _let_go(self, child: Child) -> None:
        """Close its standard input, so that it shuts NVML down, and end it if it does not."""
        child.release()
        await child.wait_exited(SHUTDOWN_S)
        if await child.end(GRACE_S) is not None:
            self._stuck = (child, boottime())
            self._on_done("ended, and its process does not exit")
