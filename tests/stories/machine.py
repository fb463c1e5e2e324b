"""The runner: plays agent/app/daemon.py over a simulated node, and writes down what the agent would log."""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine
from typing import TypeVar

from agent.app.daemon import GATHER_S, HAND_RETRY_S
from agent.core.gate import Gate, Step, step
from agent.core.look import look
from agent.core.rules import diagnose
from agent.model.finding import Diagnosis
from agent.model.plan import Action, DropProbe, Learn, Release, StartProbe

from .asking import Asking
from .laws import Laws
from .timeline import BOOT
from .world import World

T = TypeVar("T")
RESTART_S = 2.0
"RestartSec= of gpu-gate.service"
ACTED_S = 0.1
"after a hand acted, the next look comes so soon"


def finish(asked: Coroutine[None, None, T]) -> T:
    """The result of a coroutine that never has to wait: every answer of a simulated node is there at once."""
    try:
        asked.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    raise AssertionError("a simulated node answers at once")


class Machine:
    """An agent on a node."""

    def __init__(self, world: World, hears: Callable[[str], bool] = lambda kind: True,
                 dies_after: int | None = None) -> None:
        """`hears(kind)` says whether a signal gets here; the agent dies right after action `dies_after`."""
        self.world, self.hears, self.dies_after = world, hears, dies_after
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
        self._failed: dict[Action, float] = {}
        self.due_at = now
        self.laws.begin()

    def die(self, down_s: float = RESTART_S) -> None:
        """SIGKILL: memory and probes are gone; systemd starts the agent again."""
        self.alive = False
        self.asking.kill()
        self.due_at = math.inf
        self.say("* the agent dies")
        self.world.time.after(down_s, self._start)

    def _on_signal(self, kind: str) -> None:
        if self.alive and self.hears(kind):
            self._wake()

    def _on_probe(self) -> None:
        self._wake()

    def _wake(self) -> None:
        self.due_at = min(self.due_at, self.world.now + GATHER_S)

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
        scene = finish(look(world, world.settings))
        self.due_at = math.inf  # what comes from here on asks for the next cycle
        self.diagnosis = diagnose(scene, world.settings)
        if world.lookup_s:
            world.time.advance(world.now + world.lookup_s)
            if not self.alive:
                return
        decided = step(self.gate, self.diagnosis, world.now, world.settings)
        self._tell(decided)
        self.gate = decided.gate
        wake_at = decided.wake_at
        if self._act(decided):
            wake_at = min(wake_at, world.now + ACTED_S)
        if self.alive:
            self.due_at = min(self.due_at, max(wake_at, world.now + GATHER_S))
            self.laws.check(decided)

    def _act(self, decided: Step) -> bool:
        changed = False
        for action in decided.actions:
            if self._failed.get(action, 0.0) > self.world.now:
                continue
            if isinstance(action, DropProbe):
                if not self.asking.drop():
                    continue
            elif isinstance(action, StartProbe):
                self._start_probe(action)
            elif self.world.act(action):
                changed = True
                self.laws.after_hand(action)
                if not isinstance(action, (Release, Learn)):
                    self.say(f"  {action.sentence}")
            else:
                self._failed[action] = self.world.now + HAND_RETRY_S
                self.say(f"  a hand did not take: {type(action).__name__}")
                continue
            self.acted.append(action)
            if len(self.acted) == self.dies_after:
                self.die()
                return False
        return changed

    def _start_probe(self, action: StartProbe) -> None:
        self.laws.before_probe()
        before = self.asking.number
        self.asking.start(action.overlap)
        self.probes += self.asking.number - before

    def _tell(self, decided: Step) -> None:
        before, gate = self.gate, decided.gate
        if gate.released and not before.released:
            if self.released_at is None:
                self.released_at = self.world.now
                self.released_word = next((a.word for a in decided.actions if isinstance(a, Release)), "Before")
            self.say(f"  kubelet released: {gate.released}")
        if not gate.ready:
            self.ready_at = None
        elif self.ready_at is None:
            self.ready_at = self.world.now
        if (before.phase, before.reason, before.ready) != (gate.phase, gate.reason, gate.ready):
            stands = f"{gate.phase.value}: {gate.why}"
            self.say(stands)
            if gate.ready or gate.ready_why not in (stands, gate.why):
                self.say("  ready" if gate.ready else f"  not ready: {gate.ready_why}")

    def say(self, sentence: str) -> None:
        self.said.append(f"{self.world.now - BOOT:7.1f}  {sentence}")

    def summary(self) -> str:
        """The end of a story, in one line."""
        gate = self.gate
        return (f"{gate.phase.value}, {'released' if gate.released else 'kubelet waiting'}, "
                f"{'ready' if gate.ready else 'not ready'}; {self.probes} probes, driver brought up "
                f"{self.world.driver_starts} times, {self.cycles} cycles")

    def outcome(self) -> tuple[str, bool, bool, str]:
        """What must be the same whatever signal was lost and whenever the agent died."""
        return self.gate.phase.value, bool(self.gate.released), self.gate.ready, self.gate.reason
