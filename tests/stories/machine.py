"""The runner: the agent's own engine (agent/engine) over a simulated node in virtual time, with a
transcript of what an operator would read in the log."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from typing import Any, TypeVar

from agent.core.gate.states import Gate, Step
from agent.engine.cycle import Engine
from agent.engine.ports import LastCycle, Stalled, Wakes
from agent.model.actions import (
    Action,
    CheckAccess,
    DropProbe,
    GrantDevices,
    Learn,
    NoteNvmlFailed,
    NoteOutcome,
    Rebuild,
    Release,
    RestartUnit,
    SendHup,
    StartProbe,
)
from agent.model.errors import ActionFailed
from agent.model.finding import Diagnosis
from agent.model.settings import Settings
from agent.model.snapshot import Snapshot
from agent.model.wake import WakeReason, WakeSource

from .asking import Asking
from .laws import Laws
from .repairer import Died, PluginRepairer
from .timeline import BOOT
from .workloads import Checks
from .world import World

T = TypeVar("T")
RESTART_S = 2.0
"RestartSec= of gpu-gate.service"


def finish(work: Awaitable[T]) -> T:
    """The result of a coroutine that never has to wait: a simulated node answers at once."""
    steps = work.__await__()
    try:
        next(steps)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    raise AssertionError("a simulated node answers at once")


class Pause:
    """The engine waits: until an instant, or for an event."""

    def __init__(self, until: float, event: VirtualEvent | None = None) -> None:
        self.until, self.event = until, event

    def __await__(self) -> Generator[Pause, None, None]:
        yield self

    def is_over(self, now: float) -> bool:
        return now >= self.until or (self.event is not None and self.event.is_set)


class VirtualEvent:
    """As asyncio.Event."""

    is_set = False

    def set(self) -> None:
        self.is_set = True

    def clear(self) -> None:
        self.is_set = False


class VirtualClock:
    """The engine's clock: time passes only when the runner advances it, or the node answers
    slowly."""

    def __init__(self, machine: Machine) -> None:
        self._machine, self._world = machine, machine.world

    def now(self) -> float:
        return self._world.now

    def realtime(self) -> float:
        return self._world.realtime

    def event(self) -> VirtualEvent:
        return VirtualEvent()

    async def wait(self, event: VirtualEvent, within_s: float) -> bool:
        await Pause(self._world.now + within_s, event)
        return event.is_set

    async def sleep(self, for_s: float) -> None:
        await Pause(self._world.now + for_s)

    async def within(self, work: Awaitable[T], limit_s: float) -> T:
        """A node that answers slowly is one whose answers are old when they are used."""
        machine, world = self._machine, self._world
        machine.looked_s = min(world.lookup_s, limit_s)
        is_stalled = world.lookup_s > limit_s
        if is_stalled:
            assert isinstance(work, Coroutine)
            work.close()
        result = None if is_stalled else finish(work)
        machine.observed(result)
        life = machine.engine
        world.time.advance(world.now + machine.looked_s)
        if not machine.alive or machine.engine is not life:  # killed, and perhaps started again
            raise Died
        if is_stalled:
            raise Stalled
        return result  # type: ignore[return-value]


class Machine:
    """An agent on a node: the engine's executor, watches and observer."""

    def __init__(
        self,
        world: World,
        hears: Callable[[str], bool] = lambda kind: True,
        dies_after: int | None = None,
        dies_in: tuple[str, int] | None = None,
    ) -> None:
        """`hears(kind)` says whether a signal gets here; the agent dies right after action
        `dies_after`, or right after that moment (evidence, ledger, stop) of the repair of that
        number."""
        self.world, self.hears, self.dies_after, self.dies_in = world, hears, dies_after, dies_in
        self.moments: list[str] = []
        "of all repairs so far"
        self.said: list[str] = []
        self.acted: list[Action] = []
        "every action that was executed"
        self.cycles = 0
        self.heartbeats = 0
        "cycles whose end fed the watchdog"
        self.probes = 0
        self.starts = 0
        self.followed: list[tuple[str, ...]] = []
        "folders, each time the watches changed"
        self.released_at: float | None = None
        self.released_word = ""
        self.ready_at: float | None = None
        "since when it has been ready, without a gap"
        world.on_signal = self._on_signal
        world.on_word = lambda sentence: self.say(f"* {sentence}")
        world.on_thaw = lambda: self.asking.thaw()
        self.laws = Laws(self)
        self._start()

    def _start(self) -> None:
        self.starts += 1
        self.alive = True
        self.looked_s = 0.0
        "how long this cycle's snapshot took: what it shows is so old"
        self.engine = Engine(self.world.settings, self.world, self, self, self, VirtualClock(self))
        self.asking = Asking(
            self.world,
            self.world.settings.probe_timeout_s,
            lambda: self._wake(WakeReason(WakeSource.PROBE)),
        )
        self.world.probes = lambda: self.asking.state
        self._access_said: list[str] = []
        self.checks = Checks(
            self.world,
            lambda: self._wake(WakeReason(WakeSource.ACCESS)),
            lambda text: self.say(f"  {text}"),
        )
        self.world.checks = lambda: self.checks.state
        self.repairer = PluginRepairer(self.world, self._passes, self._on_repaired)
        self.diagnosis: Diagnosis | None = None
        "of the last snapshot"
        self._decided: Step | None = None
        self._wake(WakeReason(WakeSource.START))
        self._cycles = self.engine.run().__await__()
        self._pause: Pause | None = Pause(self.world.now)
        self.laws.begin()

    def die(self, down_s: float = RESTART_S) -> None:
        """SIGKILL: memory and probes are gone; systemd starts the agent again."""
        self.alive = False
        self.asking.kill()
        self.checks.kill()
        self.repairer.kill()
        self.say("* the agent dies")
        self.world.time.after(down_s, self._start)

    @property
    def gate(self) -> Gate:
        return self.engine.last.gate

    @property
    def due_at(self) -> float:
        return self.engine.wake_at

    def observed(self, result: Any) -> None:
        """A snapshot and its diagnosis, at the instant of the snapshot; None where the node
        stalled. The laws compare what the node was then."""
        if result is not None:
            self.diagnosis = result[1]
        self.laws.repair_facts.looked(result[1].repair_facts if result is not None else None)

    def _on_signal(self, kind: str, reason: WakeReason) -> None:
        if self.alive and self.hears(kind):
            self._wake(reason)

    def _wake(self, reason: WakeReason) -> None:
        self.engine.wakes.wake(reason)

    def _on_repaired(self, sentence: str) -> None:
        self.say(f"  {sentence}")
        self._wake(WakeReason(WakeSource.ACTION))

    def _passes(self, moment: str) -> None:
        """A repair has got so far; an agent that is to die there does."""
        self.moments.append(moment)
        if self.dies_in == (moment, self.moments.count(moment)):
            self.dies_in = None
            self.die()
            raise Died

    def run(self, until: float, stop: Callable[[Machine], bool] = lambda machine: False) -> bool:
        """Run until then, or until the claim holds, which is the answer."""
        while not stop(self):
            when = min(self.world.time.next_at(), self._next_at())
            if when > until:
                self.world.time.advance(until)
                return False
            self.world.time.advance(max(when, self.world.now))
            if self.alive and self._pause is not None and self._pause.is_over(self.world.now):
                self._go_on()
        return True

    def _next_at(self) -> float:
        if not self.alive or self._pause is None:
            return math.inf
        return self.world.now if self._pause.is_over(self.world.now) else self._pause.until

    def _go_on(self) -> None:
        """Let the engine run until it waits again."""
        life = self._cycles
        try:
            pause = next(life)
        except Died:
            return
        if life is self._cycles:
            self._pause = pause

    def say(self, sentence: str) -> None:
        self.said.append(f"{self.world.now - BOOT:7.1f}  {sentence}")

    # The engine's watches.

    def refresh(self) -> None:
        pass

    async def watch_units(self, names: tuple[str, ...]) -> None:
        self.followed.append(names)

    def watch_folders(self, folders: Mapping[str, tuple[str, ...]]) -> None:
        self.followed.append(tuple(folders))

    # The engine's executor.

    def prepare_repair(self, settings: Settings, snapshot: Snapshot) -> None:
        pass

    async def act(self, action: Action, tape: Any, socket: str) -> None:
        if not self._do(action, tape):
            return
        self.acted.append(action)
        if len(self.acted) == self.dies_after:
            self.die()
            raise Died

    def _do(self, action: Action, tape: Any) -> bool:
        """False where there was nothing to be done."""
        match action:
            case DropProbe():
                if action.forget:
                    self.asking.forget()
                return self.asking.drop()
            case StartProbe():
                self._start_probe(action)
            case CheckAccess():
                self.checks.start(action)
            case GrantDevices():
                self.checks.allow(action)
            case NoteOutcome() | NoteNvmlFailed():
                self.repairer.note(action)
            case RestartUnit() | SendHup() | Rebuild():
                self.repairer.begin(action, tape, "")
                self.laws.repair_facts.acted(action, tape)
            case _:
                self.world.act(action)
                self.laws.after_hand(action)
        return True

    def _start_probe(self, action: StartProbe) -> None:
        self.laws.before_probe()
        before = self.asking.number
        self.asking.start(action.overlap)
        self.probes += self.asking.number - before

    # The engine's observer.

    async def cycle_begins(self) -> None:
        self.cycles += 1
        self._decided = None
        self.laws.before_look()

    def collected(self, before: Snapshot | None, snapshot: Snapshot) -> None: ...

    def stalled(self, limit_s: float) -> None: ...

    def decided(self, before: LastCycle, step: Step, diagnosis: Diagnosis, reasons: Wakes) -> None:
        self.diagnosis, self._decided = diagnosis, step
        self._say_access(diagnosis)
        old, gate = before.gate, step.gate
        if gate.released and not old.released:
            if self.released_at is None:
                self.released_at = self.world.now
                self.released_word = next(
                    (a.kind.value for a in step.actions if isinstance(a, Release)), "Before"
                )
            self.say(f"  kubelet released: {gate.released}")
        if not gate.ready:
            self.ready_at = None
        elif self.ready_at is None:
            self.ready_at = self.world.now
        is_worse = not gate.ready and len(gate.troubles) > len(old.troubles)
        if is_worse or (old.phase, old.reason, old.ready) != (gate.phase, gate.reason, gate.ready):
            stands = f"{gate.phase.value}: {gate.why}"
            self.say(stands)
            if gate.ready or gate.ready_why not in (stands, gate.why):
                self.say("  ready" if gate.ready else f"  not ready: {gate.ready_why}")

    def _say_access(self, diagnosis: Diagnosis) -> None:
        """Link 12, whenever it reads otherwise."""
        said = [
            f"  {f.condition} {f.verdict.value}: {f.because}"
            for f in diagnosis.findings
            if f.link == 12
        ]
        for line in said:
            if line not in self._access_said:
                self.say(line)
        self._access_said = said

    def executed(self, action: Action) -> None:
        if not isinstance(action, (Release, Learn)):
            self.say(f"  {action.sentence}")  # type: ignore[union-attr]

    def failed(self, action: Action, failure: ActionFailed, is_news: bool) -> None:
        if is_news:
            self.say(f"  action failed: {failure.sentence}")

    def had_no_effect(self, action: Action, retry_s: float) -> None:
        self.say(f"  action had no effect; retrying in {retry_s:.0f} s: {type(action).__name__}")

    def cycle_ended(self, reasons: Wakes) -> None:
        self.heartbeats += 1
        if self._decided is not None:
            self.laws.check(self._decided)

    def summary(self) -> str:
        """The end of a story, in one line."""
        gate = self.gate
        return (
            f"{gate.phase.value}, {'released' if gate.released else 'kubelet waiting'}, "
            f"{'ready' if gate.ready else 'not ready'}; {self.probes} probes, driver brought up "
            f"{self.world.driver_starts} times, {self.cycles} cycles"
        )

    def outcome(self) -> tuple[str, bool, bool, str]:
        """What must be the same whatever signal was lost and whenever the agent died."""
        return self.gate.phase.value, bool(self.gate.released), self.gate.ready, self.gate.reason
