"""The runner: plays agent/service/daemon.py over a simulated node, and writes down what the agent
would log."""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import TypeVar

from agent.core.collect import collect
from agent.core.diagnose import diagnose
from agent.core.gate.states import Gate, Phase, Step
from agent.core.gate.transitions import step
from agent.core.plugin.repair import refuse
from agent.engine.backoff import ActionBackoff
from agent.host.tape import Recorder, Tape
from agent.model.actions import (
    DISRUPTIVE,
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
from agent.service.daemon import CYCLE_S, GATHER_S

from .asking import Asking
from .laws import Laws
from .repairer import Died, PluginRepairer
from .timeline import BOOT
from .workloads import Checks
from .world import World

T = TypeVar("T")
RESTART_S = 2.0
"RestartSec= of gpu-gate.service"
ACTED_S = 0.1
"after a hand acted, the next look comes so soon"


def finish(asked: Coroutine[None, None, T]) -> T:
    """The result of a coroutine that never has to wait: every answer of a simulated node is there
    at once."""
    try:
        asked.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    raise AssertionError("a simulated node answers at once")


class Machine:
    """An agent on a node."""

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
        self.cycles = 0
        self.probes = 0
        self.starts = 0
        self.released_at: float | None = None
        self.released_word = ""
        self.ready_at: float | None = None
        "since when it has been ready, without a gap"
        world.on_signal, world.on_word = self._on_signal, lambda sentence: self.say(f"* {sentence}")
        world.on_thaw = lambda: self.asking.thaw()
        self.laws = Laws(self)
        self._start()

    def _start(self) -> None:
        now = self.world.now
        self.starts += 1
        self.alive = True
        self.gate = Gate(started_at=now, since=now)
        self.diagnosis: Diagnosis | None = None
        self.asking = Asking(self.world, self.world.settings.probe_timeout_s, self._on_probe)
        self.world.probes = lambda: self.asking.state
        self._access_said: list[str] = []
        self.looked_s = 0.0
        "how long this cycle's look took: what it saw is so old"
        self._rests = ActionBackoff()
        self._is_quiet = False
        "nothing but the timer has woken us"
        self.checks = Checks(self.world, self._on_probe, lambda text: self.say(f"  {text}"))
        self.world.checks = lambda: self.checks.state
        self.repairer = PluginRepairer(self.world, self._passes, self._on_mended)
        self.due_at = now
        self.laws.begin()

    def die(self, down_s: float = RESTART_S) -> None:
        """SIGKILL: memory and probes are gone; systemd starts the agent again."""
        self.alive = False
        self.asking.kill()
        self.checks.kill()
        self.repairer.kill()
        self.due_at = math.inf
        self.say("* the agent dies")
        self.world.time.after(down_s, self._start)

    def _on_signal(self, kind: str) -> None:
        if self.alive and self.hears(kind):
            self._wake(GATHER_S)

    def _on_probe(self) -> None:
        self._wake(0.0)

    def _on_mended(self, sentence: str) -> None:
        self.say(f"  {sentence}")
        self._wake(GATHER_S)

    def _wake(self, gather_s: float) -> None:
        self._is_quiet = False
        self.due_at = min(self.due_at, self.world.now + gather_s)

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
            when = min(self.world.time.next_at(), self.due_at)
            if when > until:
                self.world.time.advance(until)
                return False
            self.world.time.advance(max(when, self.world.now))
            if self.alive and self.world.now >= self.due_at:
                self.cycle()
        return True

    def cycle(self) -> None:
        world = self.world
        self.cycles += 1
        self.due_at = math.inf  # what comes from here on asks for the next cycle
        is_quiet = self._is_quiet and self.gate.ready and self.gate.phase is Phase.OPEN
        world.is_quiet = is_quiet
        self._is_quiet = True
        tape = self._look()
        world.time.advance(world.now + self.looked_s)
        if not self.alive:
            return
        if self.diagnosis is None:
            self.due_at = world.now + world.settings.stable_interval_s
            return
        decided = step(self.gate, self.diagnosis, world.now, world.settings)
        self._tell(decided)
        self.gate = decided.gate
        wake_at = decided.wake_at
        if self._act(decided, tape):
            wake_at = min(wake_at, world.now + ACTED_S)
        if self.alive:
            self.due_at = min(self.due_at, max(wake_at, world.now))
            self.laws.check(decided)

    def _look(self) -> Tape | None:
        """Look; the tape of it where the look may lead to a repair."""
        world = self.world
        self.looked_s = min(world.lookup_s, CYCLE_S)
        if (
            world.lookup_s > CYCLE_S
        ):  # the last diagnosis stays in force, and nothing is begun on it
            if self.diagnosis is not None:
                self.diagnosis = replace(
                    self.diagnosis,
                    probe_busy=True,
                    additive=(),
                    repair_facts=None,
                    access_check=None,
                )
            self.laws.repair_facts.looked(None)
            return None
        self.laws.before_look()
        recorder = Recorder(world) if self.gate.repair.is_armed else None
        self.diagnosis = diagnose(
            finish(collect(recorder or world, world.settings)), world.settings
        )
        self.laws.repair_facts.looked(self.diagnosis.repair_facts)
        return recorder.tape if recorder else None

    def _act(self, decided: Step, tape: Tape | None) -> bool:
        changed = False
        due, in_vain = self._rests.due(decided.actions, self.looked_s >= CYCLE_S, self.world.now)
        for action in in_vain:
            self.say(f"  a hand had no effect, and rests: {type(action).__name__}")
        for action in due:
            try:
                did = self._do(action, tape)
            except ActionFailed as failed:
                self._refused(action, failed)
                continue
            except Died:
                return False
            if not did:
                continue
            if not isinstance(action, (StartProbe, DropProbe, CheckAccess, GrantDevices)):
                changed = True
                self._rests.done(action)
                if not isinstance(action, (Release, Learn)):
                    self.say(f"  {action.sentence}")
            self.acted.append(action)
            if len(self.acted) == self.dies_after:
                self.die()
                return False
        return changed

    def _do(self, action: Action, tape: Tape | None) -> bool:
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

    def _refused(self, action: Action, failed: ActionFailed) -> None:
        self._rests.failed(action, self.world.now)
        is_news = failed.sentence != self.gate.repair.held
        if isinstance(action, DISRUPTIVE):
            self.gate = replace(
                self.gate, repair=refuse(self.gate.repair, failed.sentence, self.world.now)
            )
        if is_news:
            self.say(f"  a hand did not take: {failed.sentence}")

    def _start_probe(self, action: StartProbe) -> None:
        self.laws.before_probe()
        before = self.asking.number
        self.asking.start(action.overlap)
        self.probes += self.asking.number - before

    def _tell(self, decided: Step) -> None:
        before, gate = self.gate, decided.gate
        self._tell_access()
        if gate.released and not before.released:
            if self.released_at is None:
                self.released_at = self.world.now
                self.released_word = next(
                    (a.word for a in decided.actions if isinstance(a, Release)), "Before"
                )
            self.say(f"  kubelet released: {gate.released}")
        if not gate.ready:
            self.ready_at = None
        elif self.ready_at is None:
            self.ready_at = self.world.now
        is_worse = not gate.ready and len(gate.troubles) > len(before.troubles)
        if is_worse or (before.phase, before.reason, before.ready) != (
            gate.phase,
            gate.reason,
            gate.ready,
        ):
            stands = f"{gate.phase.value}: {gate.why}"
            self.say(stands)
            if gate.ready or gate.ready_why not in (stands, gate.why):
                self.say("  ready" if gate.ready else f"  not ready: {gate.ready_why}")

    def _tell_access(self) -> None:
        """Link 12, whenever it reads otherwise."""
        findings = self.diagnosis.findings if self.diagnosis else ()
        said = [f"  {f.condition} {f.verdict.value}: {f.because}" for f in findings if f.link == 12]
        for line in said:
            if line not in self._access_said:
                self.say(line)
        self._access_said = said

    def say(self, sentence: str) -> None:
        self.said.append(f"{self.world.now - BOOT:7.1f}  {sentence}")

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
