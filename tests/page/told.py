"""Statuses that the agent renders for the stories' simulated nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agent.core.collect import collect
from agent.engine.history import ActionHistory
from agent.engine.ports import LastCycle
from agent.model.reading import Seen
from agent.model.snapshot import Clock, ProbeState
from agent.service.status import StatusInput, status
from tests.stories.machine import Machine, finish
from tests.stories.script import Play, parse
from tests.stories.timeline import BOOT

STORIES = Path(__file__).parents[1] / "stories"


class Telling:
    """A story in progress, and its present /status."""

    def __init__(self, text: str) -> None:
        self.play = Play(strict=False)
        self.milestones: dict[str, float] = {}
        self.do(text)

    def do(self, text: str) -> None:
        self.play.perform(parse(text))

    @property
    def machine(self) -> Machine:
        machine = self.play.machine
        assert machine is not None
        return machine

    def status(self) -> dict[str, Any]:
        machine = self.machine
        world = machine.world
        now = world.now
        snapshot = finish(collect(world, world.settings))
        if machine.gate.ready and not self.milestones:
            self.milestones = {
                "seen": BOOT + 6.1,
                "stable": now - 4,
                "open": now - 4,
                "registered": now,
            }
        history = ActionHistory()
        for action in machine.acted[-40:]:
            history.note(action, world.realtime - now + BOOT + 9)
        seen = LastCycle(machine.gate, machine.diagnosis, snapshot, machine.cycles, now, 0.004)
        state = (
            snapshot.hardware.probe.value
            if isinstance(snapshot.hardware.probe, Seen)
            else ProbeState()
        )
        return status(
            StatusInput(
                seen,
                world.settings,
                state,
                (),
                self.milestones,
                history.recent,
                Clock(now, now, world.realtime),
            )
        )


def story(name: str) -> Telling:
    return Telling((STORIES / f"{name}.txt").read_text())
