"""A tape of one look means what the look meant: diagnose(look(Replay(record(host)))) ==
diagnose(look(host))."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.core.collect import collect
from agent.core.diagnose import diagnose
from agent.host.evidence import bundle
from agent.host.tape import Recorder, Replay

from .machine import Machine, finish
from .random_worlds import TROUBLED_S, machine_of, recipe
from .timeline import BOOT

WORLDS, BLOCKS = 60, 12
LOOKS = 4


def moments(seed: int) -> Iterator[Machine]:
    """A node at some moments of its troubles: the same machine each time, further on."""
    machine, dice = machine_of(recipe(seed)), random.Random(seed)
    for moment in sorted(dice.uniform(0.0, TROUBLED_S + 20.0) for _ in range(LOOKS)):
        machine.run(BOOT + moment)
        yield machine


@pytest.mark.parametrize(
    "block", [0, *(pytest.param(n, marks=pytest.mark.exhaustive) for n in range(1, BLOCKS))]
)
def test_a_tape_gives_the_same_diagnosis_as_the_snapshot(block: int, tmp_path: Path) -> None:
    for seed in range(block * WORLDS // BLOCKS, (block + 1) * WORLDS // BLOCKS):
        for number, machine in enumerate(moments(seed)):
            world, settings = machine.world, machine.world.settings
            meant = diagnose(finish(collect(world, settings)), settings)
            recorder = Recorder(world)
            assert diagnose(finish(collect(recorder, settings)), settings) == meant, (
                f"recorded, seed {seed}"
            )
            assert diagnose(finish(collect(Replay(recorder.tape), settings)), settings) == meant, (
                f"seed {seed}"
            )
            bundle.write(recorder.tape, tmp_path / f"{seed}.{number}")
            read = bundle.read(tmp_path / f"{seed}.{number}")
            assert diagnose(finish(collect(Replay(read), settings)), settings) == meant, (
                f"from disk, seed {seed}"
            )
