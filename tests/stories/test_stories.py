"""Stories: a simulated node in virtual time, told in tests/stories/*.txt.

    REWRITE=1 pytest tests/stories/test_stories.py    writes what the machine says now into the stories: read the
                                                      difference before you commit it

Every story is also performed with each kind of signal lost, with one signal in five lost, and with the agent killed
after each of its actions: it must end in the same place, later by a few heartbeats at most.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from agent.model.plan import Action, DropProbe, StartProbe

from .machine import Machine
from .script import Play, parse, written
from .world import SIGNALS

FOLDER = Path(__file__).parent
KNOWN = {
    "no_gpu": "a node without GPUs is not ready, because its kubelet lists none",
    "all_vfio": "as no_gpu",
    "expected_zero": "as no_gpu",
    "container_node_without_gpus": "as no_gpu",
    "no_persistence": "the kubelet's own start asks for one more probe, which brings the driver up again",
    "daemon_reload_slow_probes": "readiness is lost for as long as a slow probe takes after a daemon-reload",
    "nodes_not_makeable": "a hand that changes nothing is tried ten times a second",
}
"""What a story says must be, and is not yet."""


def every_story(*broken: str) -> pytest.MarkDecorator:
    """Each story, by name; the `broken` ones are known to fail."""
    names = sorted(path.stem for path in FOLDER.glob("*.txt"))
    marks = {n: [pytest.mark.xfail(reason=KNOWN[n], strict=True)] for n in names if n in broken}
    return pytest.mark.parametrize("name", [pytest.param(n, marks=marks.get(n, [])) for n in names])


REST_S = 400.0
"""After its last command a story is left alone so long, before its end is compared: a backed-off probe, two
heartbeats, and the slowest count of three probes."""


@every_story(*KNOWN)
def test_story(name: str) -> None:
    path = FOLDER / f"{name}.txt"
    text = path.read_text()
    rewrite = bool(os.environ.get("REWRITE"))
    told = written(Play(strict=not rewrite).perform(parse(text)))
    if rewrite:
        path.write_text(told)
    else:
        assert told == text


def end_of(name: str, make: Callable[..., Machine] = Machine) -> Machine:
    play = Play(make, strict=False)
    play.perform(parse((FOLDER / f"{name}.txt").read_text()))
    return play.rest(REST_S)


@every_story("nodes_not_makeable")
def test_lost_signals_cost_seconds_never_truth(name: str) -> None:
    expected = end_of(name).outcome()
    for lost in SIGNALS:
        assert end_of(name, partial(Machine, hears=lambda kind, lost=lost: kind != lost)).outcome() == expected, lost
    assert end_of(name, partial(Machine, hears=lambda kind: False)).outcome() == expected, "every signal"
    for seed in range(5):
        dice = random.Random(seed)
        outcome = end_of(name, partial(Machine, hears=lambda kind, dice=dice: dice.random() > 0.2)).outcome()
        assert outcome == expected, f"one signal in five, seed {seed}"


def moments(acted: list[Action]) -> list[int]:
    """After which actions the agent is killed: every one, but of a long row of probes only some."""
    chosen, row = [], 0
    for number, action in enumerate(acted, start=1):
        row = row + 1 if isinstance(action, (StartProbe, DropProbe)) else 0
        if row <= 8 or row % 25 == 0:
            chosen.append(number)
    return chosen


@every_story("nodes_not_makeable")
def test_an_agent_killed_after_any_action_ends_in_the_same_place(name: str) -> None:
    calm = end_of(name)
    for number in moments(calm.acted):
        killed = end_of(name, partial(Machine, dies_after=number))
        assert killed.outcome() == calm.outcome(), f"killed after action {number}: {calm.acted[number - 1]}"
