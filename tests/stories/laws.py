"""What must hold on every node after every cycle, judged by what the simulated node is, not by what the gate
believes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.core.deadline import hold_limit_s
from agent.core.gate import Phase, Step
from agent.model.plan import Action, LinkDevChar, LoadModule, MakeNodes
from agent.model.scene import ProbeEnd, ProbeReport

from .gpus import PROC

if TYPE_CHECKING:
    from .machine import Machine

BUSY_CYCLES = 60
BUSY_S = 5.0
"no more cycles than this in so long: signals are gathered for 20 ms, hands are looked after for 100 ms"
REPEATS = 5
REPEATS_S = 60.0
"a hand that has been tried so often in so long, and changed nothing, is not tried on and on"


class Broken(AssertionError):
    """A law does not hold."""


class Laws:
    """The laws of one agent's life; a restart of the agent begins a new one."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._cycles: list[float] = []
        self._was_released = False
        self._acted: list[tuple[float, Action]] = []

    def begin(self) -> None:
        self._judged = 0
        self._row: list[tuple[str, ...]] = []
        "what the last complete probes of this agent showed, equal ones in a row"
        self._was_open = self._was_ready = False

    def before_probe(self) -> None:
        world = self._machine.world
        there = world.disk.has(f"{PROC}/version") or bool(world.lookup_s)
        _hold(there, "a probe before the driver is there would load it")

    def after_hand(self, action: Action) -> None:
        now = self._machine.world.now
        self._acted = [(at, done) for at, done in self._acted if at > now - REPEATS_S] + [(now, action)]
        often = sum(done == action for _, done in self._acted)
        _hold(often <= REPEATS, f"the same hand {often} times within {REPEATS_S:.0f} s: {action}")

    def check(self, decided: Step) -> None:
        self._count_reports()
        self._check_open()
        self._check_release()
        self._check_probes()
        self._check_actions(decided)
        self._check_pace(decided)

    def _count_reports(self) -> None:
        for report in self._machine.asking.reports[self._judged:]:
            shows = self._shows(report)
            self._row = [] if not shows else [*self._row, shows] if self._row[-1:] == [shows] else [shows]
        self._judged = len(self._machine.asking.reports)

    def _shows(self, report: ProbeReport) -> tuple[str, ...]:
        """The identities in a complete and clean report, () for any other."""
        if report.end is not ProbeEnd.ANSWERED or any(e.index < 0 for e in report.errors):
            return ()
        gpus = [g for g in report.gpus if g.bus_id not in self._machine.world.settings.exclude_gpus]
        shown = tuple(sorted(f"{g.uuid}@{g.bus_id}" for g in gpus))
        return shown if self._is_complete({g.bus_id for g in gpus}, {g.uuid for g in gpus}) else ()

    def _is_complete(self, bus_ids: set[str], uuids: set[str]) -> bool:
        world = self._machine.world
        wanted = world.settings.expected_gpus
        if len(wanted) == 1 and wanted[0].isdigit():
            return len(bus_ids) >= int(wanted[0])
        return set(wanted) <= uuids if wanted else bool(bus_ids)

    def _check_open(self) -> None:
        """OPEN and ready come only on a complete set, seen equal by enough fresh probes."""
        gate, world = self._machine.gate, self._machine.world
        is_open = gate.phase is Phase.OPEN
        opened, became_ready = is_open and not self._was_open, gate.ready and not self._was_ready
        self._was_open, self._was_ready = is_open, gate.ready
        if gate.phase is Phase.NOT_APPLICABLE or not (opened or became_ready):
            return
        enough = world.settings.stable_probes
        _hold(len(self._row) >= enough, f"open after {len(self._row)} of {enough} equal, complete probes")
        if not world.settings.expected_gpus and not world.lookup_s:
            shown = {identity.split("@")[1] for identity in self._row[-1]}
            lacking = {c.bus_id for c in world.expected()} - shown
            _hold(not lacking, f"open without {sorted(lacking)}")
        if world.kubelet.is_active and became_ready and not world.lookup_s:
            registered = len(world.kubelet.registered)
            _hold(registered >= len(self._row[-1]), f"ready with {registered} GPUs registered")

    def _check_release(self) -> None:
        machine, world = self._machine, self._machine.world
        released = bool(machine.gate.released)
        _hold(released or not self._was_released, "released, and then not")
        self._was_released = released
        if not released:
            late = world.now - self.deadline()
            _hold(late <= world.lookup_s, f"not released {late:.1f} s after the deadline")
            _hold(machine.due_at <= max(self.deadline(), world.now + 0.1), "no cycle planned for the deadline")

    def deadline(self) -> float:
        diagnosis, world = self._machine.diagnosis, self._machine.world
        since = diagnosis.waiting_since if diagnosis else None
        return (self._machine.gate.started_at if since is None else since) + hold_limit_s(
            world.settings, world.control_plane)

    def _check_probes(self) -> None:
        machine = self._machine
        _hold(machine.asking.asking <= 1, "two probes ask at once")
        _hold(machine.asking.kept <= 1, "two probe processes are kept")
        diagnosis = machine.diagnosis
        if machine.gate.phase is Phase.OPEN or (diagnosis and diagnosis.paused):
            _hold(not machine.asking.kept, f"a probe process is kept while {machine.gate.phase.value}")

    def _check_actions(self, decided: Step) -> None:
        world = self._machine.world
        for action in decided.actions:
            if isinstance(action, LoadModule):
                _hold(world.settings.load_driver == "auto", "the driver was loaded unasked")
            if isinstance(action, MakeNodes):
                loaded = world.hardware.module == "live" and (world.hardware.uvm or not action.uvm)
                _hold(loaded or bool(world.lookup_s), "asking for that node would load a module")
            if isinstance(action, LinkDevChar):
                _hold(world.settings.additive and bool(action.links), "nothing to link")

    def _check_pace(self, decided: Step) -> None:
        now = self._machine.world.now
        _hold(decided.wake_at > now, "a wake that is over")
        self._cycles = [at for at in self._cycles if at > now - BUSY_S] + [now]
        _hold(len(self._cycles) <= BUSY_CYCLES, f"{len(self._cycles)} cycles within {BUSY_S:.0f} s")


def _hold(claim: bool, otherwise: str) -> None:
    if not claim:
        raise Broken(otherwise)
