"""A thousand random nodes. The laws (tests/stories/laws.py) are checked after every cycle of each.

SEED=123 pytest tests/stories/test_worlds.py -s      plays one of them, and prints what was said
make soak                                            plays others, for SOAK_SECONDS
"""

from __future__ import annotations

import os
import time

import pytest

from .machine import Machine
from .random_worlds import TROUBLED_S, Recipe, machine_of, mended_within_s, recipe, well_within_s
from .repair_laws import Broken
from .timeline import BOOT

WORLDS = 1000
BLOCK = 50
FOR_A_PERSON = {
    "RepairOff",
    "PartlyRegistered",
    "PluginSawUnhealthy",
    "PluginLacksLibrary",
    "PluginLogUnread",
}
"reasons of BLOCKED that stay when all but the plugin's process is well"
AFTER_REPAIRS = {"SameCauseAgain", "BudgetSpent", "RepairFailed"}
"the same, where there were repairs before"
STAYS_S = 130.0
"so long BLOCKED for one of them, beyond the pauses between repairs, and it is the end"


def play(seed: int) -> Machine:
    made = recipe(seed)
    machine = machine_of(made)
    try:
        _play(machine, made)
    except Exception as problem:
        story = "\n".join([str(made), "----", *machine.said[-60:], f"{'':9}{machine.summary()}"])
        raise Broken(f"SEED={seed}: {type(problem).__name__}: {problem}\n{story}") from problem
    return machine


def _play(machine: Machine, made: Recipe) -> None:
    world = machine.world
    machine.run(BOOT + TROUBLED_S + 20.0)
    if made.healed:
        _heals(machine, made)
    else:
        machine.run(BOOT + 330.0)
    assert machine.gate.released or not world.kubelet.waiting, "the kubelet is still held"
    assert machine.cycles < 3.0 * (world.now - BOOT), (
        f"{machine.cycles} cycles in {world.now - BOOT:.0f} s"
    )


def _heals(machine: Machine, made: Recipe) -> None:
    """A node that is well is ready in time, by itself or by the mender; or it is said why a person
    is needed."""
    world, repairs = machine.world, len(machine.laws.repair_facts.acts)
    within_s = well_within_s(world) + (
        mended_within_s(world) if made.healed == "everything heals" else 0.0
    )
    excuses = FOR_A_PERSON | (AFTER_REPAIRS if repairs else set())
    machine.run(
        world.now + within_s,
        lambda m: m.gate.ready or (m.gate.reason in excuses and world.now - m.gate.since > STAYS_S),
    )
    if machine.gate.ready:
        return
    assert made.healed == "everything heals" and machine.gate.reason in excuses, (
        f"well for {within_s:.0f} s and not ready: {machine.gate.ready_why}"
    )


@pytest.mark.parametrize(
    "block",
    [0, *(pytest.param(n, marks=pytest.mark.exhaustive) for n in range(1, WORLDS // BLOCK))],
)
def test_worlds(block: int) -> None:
    if "SEED" in os.environ:
        pytest.skip("one seed is played")
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        play(seed)


@pytest.mark.skipif("SEED" not in os.environ, reason="SEED= plays one world")
def test_one_world() -> None:
    machine = play(int(os.environ["SEED"]))
    print("\n".join(["", str(recipe(int(os.environ["SEED"]))), *machine.said, machine.summary()]))


@pytest.mark.skipif("SOAK_SECONDS" not in os.environ, reason="make soak")
def test_soak() -> None:
    """Worlds that no soak has played: the first one's number is the time."""
    until, first = (
        time.monotonic() + float(os.environ["SOAK_SECONDS"]),
        WORLDS + int(time.time() * 1000),
    )
    seed = first
    while time.monotonic() < until:
        play(seed)
        seed += 1
    print(f"{seed - first} worlds, {first} to {seed - 1}")
