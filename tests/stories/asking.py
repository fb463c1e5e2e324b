"""The probes of one simulated agent, with the behaviour of agent/host/probes/runner.py and virtual
time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from agent.host.probes.report import report_of
from agent.host.probes.runner import GRACE_S
from agent.model.snapshot import ProbeEnd, ProbeReport, ProbeState, Remains

if TYPE_CHECKING:
    from .world import World

QUICK_S = 0.1
"""A probe of an initialised driver, or one that fails at once."""


@dataclass
class Asked:
    """A probe under way."""

    number: int
    overlap: bool
    started_at: float
    answers: bool = False
    "only a hang keeps it from answering"
    over: bool = False


class Asking:
    """At most one probe asks; one may be kept for overlap; one may be stuck in the kernel."""

    def __init__(self, world: World, timeout_s: float, on_done: Callable[[], None]) -> None:
        self._world, self._timeout_s, self._on_done = world, timeout_s, on_done
        self._number = 0
        self._running: Asked | None = None
        self._last: ProbeReport | None = None
        self._stuck_since: float | None = None
        self.kept = 0
        self.reports: list[ProbeReport] = []

    @property
    def state(self) -> ProbeState:
        return ProbeState(
            self._last, self._running.started_at if self._running else None, self.remains()
        )

    @property
    def asking(self) -> int:
        """Processes that are inside NVML now."""
        return int(self._running is not None) + int(self.remains() is not None)

    @property
    def number(self) -> int:
        return self._number

    def remains(self) -> Remains | None:
        if self._stuck_since is not None and self._world.hang != "D":
            self._stuck_since = None
        if self._stuck_since is None:
            return None
        return Remains(4242, "D", "nv_open_device", self._stuck_since)

    def start(self, overlap: bool) -> None:
        world = self._world
        if self._running is not None or self.remains() is not None:
            return
        self._number += 1
        asked = self._running = Asked(self._number, overlap, world.now)
        took = QUICK_S
        if not world.hardware.nvml_error and not self.kept and not world.persistence:
            world.driver_starts += 1
            took += world.init_s * len(world.hardware.mine())
        world.time.after(took, lambda: self._may_answer(asked))
        world.time.after(self._timeout_s, lambda: self._give_up(asked))

    def drop(self) -> bool:
        dropped, self.kept = self.kept > 0, 0
        return dropped

    def forget(self) -> None:
        """The driver that the last report is of is gone."""
        self._last = None

    def kill(self) -> None:
        """The agent is gone, and its children with it; what is stuck is the kernel's."""
        if self._running is not None:
            self._running.over = True
        self._running, self.kept = None, 0

    def thaw(self) -> None:
        """The hang is over: a probe that waited for it goes on."""
        if self._running is not None and self._running.answers:
            self._may_answer(self._running)

    def _may_answer(self, asked: Asked) -> None:
        asked.answers = True
        if not asked.over and not self._world.hang:
            line = self._world.hardware.answer()
            report = report_of(line, asked.number, asked.started_at, self._world.now)
            # A probe that could not initialise NVML has nothing to keep, and ends by itself.
            self._end(asked, report, asked.overlap and report.end is ProbeEnd.ANSWERED)

    def _give_up(self, asked: Asked) -> None:
        if asked.over:
            return
        if self._world.hang == "D":
            asked.answers = False
            self._world.time.after(GRACE_S, lambda: self._abandon(asked))
        else:
            self._hung(asked, "S")

    def _abandon(self, asked: Asked) -> None:
        if not asked.over and self._world.hang == "D":
            self._stuck_since = asked.started_at
        if not asked.over:
            self._hung(asked, "D")

    def _hung(self, asked: Asked, state: str) -> None:
        now = self._world.now
        detail = (
            f"probe hung, pid 4242, state {state}, wchan nv_open_device, "
            f"{now - asked.started_at:.0f} s"
        )
        self._end(asked, ProbeReport(0, asked.started_at, now, ProbeEnd.HUNG, detail=detail), False)

    def _end(self, asked: Asked, report: ProbeReport, overlap: bool) -> None:
        asked.over = True
        self.kept = int(overlap)
        self._running, self._last = None, replace(report, number=asked.number)
        self.reports.append(self._last)
        self._on_done()
