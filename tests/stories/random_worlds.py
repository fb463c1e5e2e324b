"""A random node from a seed: what it is like, what happens to it in its first minutes, and how it comes to rest."""

from __future__ import annotations

import random
from dataclasses import dataclass

from .machine import Machine
from .timeline import BOOT
from .verbs import happen, settings_of, world_of
from .world import World

TROUBLED_S = 240.0
"events come in the node's first four minutes"


@dataclass(frozen=True)
class Recipe:
    """A node as the words of a story, so that a failure can be read, and replayed as one."""

    seed: int
    settings: tuple[str, ...]
    world: tuple[str, ...]
    events: tuple[tuple[float, str], ...]
    hears: float
    "the share of signals that get through"
    lookup_s: float
    healed: bool
    "all trouble ends with the last event"

    def __str__(self) -> str:
        lines = [f"# seed {self.seed}, {self.hears:.0%} of the signals are heard, a look takes {self.lookup_s} s",
                 f"settings {' '.join(self.settings)}", f"world {' '.join(self.world)}"]
        return "\n".join([*lines, *(f"at {at:.2f} {event}" for at, event in self.events)])


def recipe(seed: int) -> Recipe:
    dice = random.Random(seed)
    gpus = dice.choice((1, 1, 2, 2, 2, 3, 4, 8))
    words = [f"gpus={gpus}", f"driver={dice.choice(('live', 'live', 'live', 'installed', 'building', 'none'))}",
             f"nodes={dice.choice(('yes', 'yes', 'no'))}", f"links={dice.choice(('yes', 'no'))}",
             f"uvm={dice.choice(('yes', 'no'))}", f"persistence={dice.choice(('yes', 'yes', 'no'))}",
             f"init-s={dice.choice(('0.2', '1', '3'))}", f"control-plane={dice.choice(('no', 'no', 'no', 'yes'))}"]
    if dice.random() < 0.1:
        words.append(f"container={dice.randint(0, gpus)}")
    events = [(round(dice.uniform(0.0, 3.0), 2), dice.choice(("wait starts", "wait starts", "kubelet starts")))]
    for _ in range(dice.choice((0, 1, 2, 4, 8, 12))):
        events.append((round(dice.uniform(0.0, dice.choice((5.0, 30.0, TROUBLED_S))), 2), _event(dice, gpus)))
    healed = dice.random() < 0.7
    if healed:
        events.append((TROUBLED_S, "all heals"))
    return Recipe(seed, _settings(dice), tuple(words), tuple(sorted(events)), dice.choice((1.0, 1.0, 0.8, 0.0)),
                  dice.choice((0.0, 0.0, 0.0, 0.3, 2.0)), healed)


def _settings(dice: random.Random) -> tuple[str, ...]:
    words = []
    if dice.random() < 0.5:
        words.append(f"DeadlineSec={dice.choice((5, 30, 60, 120))}")
    if dice.random() < 0.2:
        words += ["OnDeadline=hold", f"HoldSec={dice.choice((90, 300))}"]
    if dice.random() < 0.2:
        words.append(f"StableProbes={dice.choice((1, 2, 5))}")
    if dice.random() < 0.3:
        words.append("ProbeTimeoutSec=30")
    if dice.random() < 0.2:
        words.append("Load=auto")
    if dice.random() < 0.1:
        words.append("ExcludeGPUs=0000:07:00.0")
    return tuple(words)


def _event(dice: random.Random, gpus: int) -> str:
    gpu = dice.randrange(gpus)
    event = dice.choice((
        "nvml 999", "nvml 999", "nvml ok", "nvml hangs", "nvml hangs in D", "nvml thaws", "nvml junk", "nvml 18",
        "nvml shuffled", f"gpu {gpu} gone", f"gpu {gpu} back", f"gpu {gpu} error 15", f"gpu {gpu} error 27",
        f"gpu {gpu} ok", f"gpu {gpu} binds vfio-pci", f"gpu {gpu} binds nvidia", f"gpu {gpu} binds nothing",
        f"gpu {gpu} leaves", f"gpu {gpu} returns", "driver loads", "driver loads bare", "driver unloads",
        "driver uvm", "nodes appear", "nodes vanish /dev/nvidiactl", f"nodes vanish /dev/nvidia{gpu}",
        "nodes vanish /dev/char/195:255", "persistenced restarts", "persistenced stops", "containerd restarts",
        "daemon-reload", "daemon-reload", "kubelet restarts", "plugin restarts", "gpu-gate paused",
        "gpu-gate resumed", "dev unreadable", "dev readable", "bus away", "bus slow", "bus back",
        "hand MakeNodes fails", "hand LinkDevChar fails", "look stalls",
        "look is quick", "agent dies"))
    return event if dice.random() < 0.8 or event == "agent dies" else f"{event} silently"


def machine_of(made: Recipe) -> Machine:
    """The machine with all that will happen to it planned."""
    world = world_of(list(made.world), settings_of(list(made.settings)))
    world.lookup_s = made.lookup_s
    dice = random.Random(made.seed)
    machine = Machine(world, hears=lambda kind: dice.random() < made.hears)
    for at, event in made.events:
        world.time.at(BOOT + at, lambda event=event: _announce(machine, event))  # type: ignore[misc]
    return machine


def _announce(machine: Machine, event: str) -> None:
    machine.say(f"* {event}")
    if event == "agent dies":
        if machine.alive:
            machine.die()
    else:
        happen(machine.world, event.split())




def well_within_s(world: World) -> float:
    """Seconds within which a node that is well is ready, whatever was before: a heartbeat to notice, a probe that
    may hang until its deadline, a pause of a minute before the next, the count itself, a heartbeat more."""
    settings = world.settings
    one = settings.stable_interval_s + world.init_s * len(world.hardware.cards) + 1.0
    return 2 * settings.heartbeat_s + settings.probe_timeout_s + 60.0 + settings.stable_probes * one + 60.0
