"""Stories: a simulated node in virtual time, told in tests/stories/*.txt.

    REWRITE=1 pytest tests/stories/test_stories.py    writes the present transcripts into the
                                                      stories: read the difference before you
                                                      commit it

Every story is also performed with each kind of signal lost, with one signal in five lost, and with
the agent killed after each of its actions: it must end in the same place, later by a few heartbeats
at most.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import pytest

from agent.host.live import QUIET_S
from agent.model.actions import Action, CheckAccess, DropProbe, StartProbe

from .machine import Machine
from .script import Play, parse, written
from .world import SIGNALS

REWRITE = bool(os.environ.get("REWRITE"))
FOLDER = Path(__file__).parent


def every_story(but: Iterable[str] = ()) -> pytest.MarkDecorator:
    """Each story, by name."""
    return pytest.mark.parametrize(
        "name", sorted({path.stem for path in FOLDER.glob("*.txt")} - set(but))
    )


OTHERWISE = ("repair_budget", "repair_clock_set", "repair_cri_stuck")
"""Long stories whose end depends on when each repair was made, which lost signals and deaths
change."""
REST_S = 400.0
"""After its last command a story is left alone so long, before its end is compared: a backed-off
probe, two heartbeats, and the slowest count of three probes."""
LATE_S = QUIET_S + 65.0
"""What lost signals may cost in all: answers that are given again on a quiet node, two heartbeats,
a probe or two."""


@every_story()
def test_story(name: str) -> None:
    path = FOLDER / f"{name}.txt"
    text = path.read_text()
    told = written(Play(strict=not REWRITE).perform(parse(text)))
    if REWRITE:
        path.write_text(told)
    else:
        assert told == text


def end_of(name: str, make: Callable[..., Machine] = Machine) -> Machine:
    play = Play(make, strict=False)
    play.perform(parse((FOLDER / f"{name}.txt").read_text()))
    return play.rest(REST_S)


@pytest.mark.exhaustive
@every_story(but=OTHERWISE)
def test_lost_signals_only_delay_the_result(name: str) -> None:
    calm = end_of(name)
    for lost in SIGNALS:
        compare(
            end_of(name, partial(Machine, hears=lambda kind, lost=lost: kind != lost)),
            calm,
            f"{lost} lost",
        )
    compare(end_of(name, partial(Machine, hears=lambda kind: False)), calm, "every signal lost")
    for seed in range(2):
        dice = random.Random(seed)
        some = end_of(name, partial(Machine, hears=lambda kind, dice=dice: dice.random() > 0.2))
        compare(some, calm, f"one signal in five lost, seed {seed}")


def compare(machine: Machine, calm: Machine, otherwise: str) -> None:
    """The same end, at most so much later."""
    assert machine.outcome() == calm.outcome(), otherwise
    for what in ("released_at", "ready_at"):
        then, now = getattr(calm, what), getattr(machine, what)
        assert then is None or now <= then + LATE_S, f"{otherwise}: {what} {now - then:.1f} s late"


def moments(acted: list[Action]) -> list[int]:
    """After which actions the agent is killed: every one, but of a long row only some."""
    chosen, row = [], 0
    for number, action in enumerate(acted, start=1):
        row = row + 1 if isinstance(action, (StartProbe, DropProbe, CheckAccess)) else 0
        if row <= 1 or row % 50 == 0:
            chosen.append(number)
    return chosen


@pytest.mark.exhaustive
@every_story(but=OTHERWISE)
def test_an_agent_killed_after_any_action_ends_in_the_same_place(name: str) -> None:
    calm = end_of(name)
    for number in moments(calm.acted):
        killed = end_of(name, partial(Machine, dies_after=number))
        assert killed.outcome() == calm.outcome(), (
            f"killed after action {number}: {calm.acted[number - 1]}"
        )


@pytest.mark.exhaustive
@every_story(but=OTHERWISE)
def test_an_agent_killed_within_any_repair_ends_in_the_same_place(name: str) -> None:
    calm = end_of(name)
    for number, moment in enumerate(calm.moments):
        nth = calm.moments[: number + 1].count(moment)
        killed = end_of(name, partial(Machine, dies_in=(moment, nth)))
        assert killed.outcome() == calm.outcome(), f"killed after {moment} of repair {nth}"
