"""What must hold on every node after every cycle, judged by what the simulated node is, not by what
the gate believes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.core.gate.deadline import hold_limit_s
from agent.core.gate.readiness import STALE_S
from agent.core.gate.states import Phase, Step
from agent.engine.cycle import CYCLE_S
from agent.host.live import QUIET_S
from agent.model.actions import Action, LinkDevChar, LoadModule, MakeNodes
from agent.model.snapshot import ProbeEnd, ProbeReport

from .gpus import PROC
from .repair_laws import MendLaws
from .repair_laws import hold as _hold

if TYPE_CHECKING:
    from .machine import Machine

BUSY_CYCLES = 60
BUSY_S = 5.0
"""no more cycles than this in so long: signals are gathered for 20 ms, hands are looked after for
100 ms"""
REPEATS = 5
REPEATS_S = 60.0
"a hand that has been tried so often in so long, and changed nothing, is not tried on and on"


class Laws:
    """The laws of one agent's life; a restart of the agent begins a new one."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._cycles: list[float] = []
        self._was_released = False
        self._acted: list[tuple[float, Action]] = []
        self.repair_facts = MendLaws(machine)
        self._lies_since: float | None = None

    def begin(self) -> None:
        self._was_open = self._was_ready = False

    def before_look(self) -> None:
        cards = self._machine.world.hardware.cards
        self._elsewhere = {c.bus_id for c in cards if c.driver not in ("nvidia", "")}

    def before_probe(self) -> None:
        world = self._machine.world
        there = (
            world.disk.has(f"{PROC}/version")
            or world.hardware.on_soc
            or bool(self._machine.looked_s)
        )
        _hold(there, "a probe before the driver is there would load it")

    def after_hand(self, action: Action) -> None:
        now = self._machine.world.now
        if (
            self._machine.looked_s >= CYCLE_S
        ):  # the last diagnosis is acted on again: it is all there is
            return
        self._acted = [(at, done) for at, done in self._acted if at > now - REPEATS_S] + [
            (now, action)
        ]
        often = sum(done == action for _, done in self._acted)
        _hold(often <= REPEATS, f"the same hand {often} times within {REPEATS_S:.0f} s: {action}")

    def check(self, decided: Step) -> None:
        self._check_open()
        self._check_release()
        self._check_probes()
        self._check_actions(decided)
        self._check_pace(decided)
        self._check_ready()
        self.repair_facts.check()

    def _check_ready(self) -> None:
        """Ready is not said for long of a node that lists too few; a plugin's loss of a GPU sends
        no signal."""
        machine, world = self._machine, self._machine.world
        short = bool(self._given(self._row()[-1:] and self._row()[-1]) - world.kubelet.listed())
        may = machine.gate.ready and machine.gate.phase is not Phase.NOT_APPLICABLE
        lies = may and world.kubelet.is_active and short
        self._lies_since = (self._lies_since or world.now) if lies else None
        limit = max(QUIET_S, STALE_S) + 2 * world.settings.heartbeat_s + 10.0
        _hold(
            not lies or world.now - (self._lies_since or 0.0) <= limit,
            f"ready, and short for {limit:.0f} s",
        )

    def _row(self) -> list[tuple[str, ...]]:
        """What each of the last probes showed, of those that this cycle's look saw; () where it is
        not complete."""
        machine = self._machine
        seen = (
            machine.diagnosis.report.number if machine.diagnosis and machine.diagnosis.report else 0
        )
        reports = [r for r in machine.asking.reports if r.number <= seen]
        return [self._shows(r) for r in reports[-machine.world.settings.stable_probes :]]

    def _shows(self, report: ProbeReport) -> tuple[str, ...]:
        """The identities in a complete and clean report, () for any other."""
        if report.end is not ProbeEnd.ANSWERED or any(e.index < 0 for e in report.errors):
            return ()
        world = self._machine.world
        gpus = [
            g
            for g in report.gpus
            if g.bus_id not in self._elsewhere | set(world.settings.exclude_gpus)
        ]
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
        if (
            gate.phase is Phase.NOT_APPLICABLE
            or world.hardware.on_soc
            or not (opened or became_ready)
        ):
            return
        row, enough = self._row(), world.settings.stable_probes
        _hold(
            len(row) == enough and all(row) and len(set(row)) == 1,
            f"open after {enough} probes that showed {row}",
        )
        if not world.settings.expected_gpus and not self._machine.looked_s:
            lacking = {c.bus_id for c in world.expected()} - {
                identity.split("@")[1] for identity in row[-1]
            }
            _hold(not lacking, f"open without {sorted(lacking)}")
        if opened and not self._machine.looked_s:
            lacking = {"/dev/nvidiactl", *(c.node for c in world.expected())} - world.seen_nodes()
            _hold(
                not lacking or bool(world.settings.expected_gpus), f"open without {sorted(lacking)}"
            )
        if world.kubelet.is_active and became_ready and not self._machine.looked_s:
            lacking = self._given(row[-1]) - world.kubelet.listed()
            _hold(not lacking, f"ready without {sorted(lacking)} registered")

    def _given(self, identities: tuple[str, ...]) -> set[str]:
        """UUIDs of what must be listed of these."""
        return self._machine.world.kubelet.given({i.partition("@")[0] for i in identities})

    def _check_release(self) -> None:
        machine, world = self._machine, self._machine.world
        released = bool(machine.gate.released)
        _hold(released or not self._was_released, "released, and then not")
        self._was_released = released
        if not released:
            late = world.now - self.deadline()
            _hold(late <= machine.looked_s, f"not released {late:.1f} s after the deadline")
            _hold(
                machine.due_at <= max(self.deadline(), world.now + 0.1),
                "no cycle planned for the deadline",
            )

    def deadline(self) -> float:
        diagnosis, world = self._machine.diagnosis, self._machine.world
        since = diagnosis.waiting_since if diagnosis else None
        return (self._machine.gate.started_at if since is None else since) + hold_limit_s(
            world.settings, world.control_plane
        )

    def _check_probes(self) -> None:
        machine = self._machine
        _hold(machine.asking.asking <= 1, "two probes ask at once")
        _hold(machine.asking.kept <= 1, "two probe processes are kept")
        diagnosis = machine.diagnosis
        if machine.gate.phase is Phase.OPEN or (diagnosis and diagnosis.paused):
            _hold(
                not machine.asking.kept, f"a probe process is kept while {machine.gate.phase.value}"
            )

    def _check_actions(self, decided: Step) -> None:
        world = self._machine.world
        for action in decided.actions:
            if isinstance(action, LoadModule):
                _hold(world.settings.load_driver == "auto", "the driver was loaded unasked")
            if isinstance(action, MakeNodes):
                loaded = world.hardware.module == "live" and (world.hardware.uvm or not action.uvm)
                _hold(
                    loaded or bool(self._machine.looked_s),
                    "asking for that node would load a module",
                )
            if isinstance(action, LinkDevChar):
                _hold(world.settings.additive and bool(action.links), "nothing to link")

    def _check_pace(self, decided: Step) -> None:
        now = self._machine.world.now
        _hold(decided.wake_at >= now, "a wake that is over")
        self._cycles = [at for at in self._cycles if at > now - BUSY_S] + [now]
        _hold(len(self._cycles) <= BUSY_CYCLES, f"{len(self._cycles)} cycles within {BUSY_S:.0f} s")
