"""A random node from a seed: what it is like, what happens to it in its first minutes, and how it
comes to rest."""

from __future__ import annotations

import random
from dataclasses import dataclass

from .machine import Machine
from .timeline import BOOT
from .verbs import happen, settings_of, world_of
from .world import World

TROUBLED_S = 150.0
"events come in the node's first minutes"
PLUGIN_EVENTS = (
    "plugin is own-error=999",
    "plugin is own-error=0",
    "plugin is deaf=yes",
    "plugin is hangs=no",
    "plugin restarts",
    "plugin overlaps",
    "plugin denied",
    "plugin denied",
    "plugin allowed",
    "plugin joined",
    "plugin leaves",
    "plugin hears",
    "cri silent",
    "cri refusing",
    "cri stuck",
    "cri slow",
    "cri back",
    "cri back",
    "pod-resources silent",
    "pod-resources answers",
    "ledger unwritable",
    "ledger unreadable",
    "ledger torn",
    "ledger well",
    "logs unreadable",
    "logs readable",
    "disk full",
    "disk empty",
    "containerd stops",
    "containerd starts",
    "kubelet restarts",
    "nvml 999",
    "nvml ok",
    "nvml ok",
    "agent dies",
    "agent dies-after evidence",
    "agent dies-after ledger",
    "agent dies-after stop",
)


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
    healed: str
    """how all trouble ends at TROUBLED_S: "all heals" (a person starts the plugin afresh),
    "everything heals" (the mender must), or not at all"""

    def __str__(self) -> str:
        lines = [
            f"# seed {self.seed}, {self.hears:.0%} of the signals are heard, a look takes "
            f"{self.lookup_s} s",
            f"settings {' '.join(self.settings)}",
            f"world {' '.join(self.world)}",
        ]
        return "\n".join([*lines, *(f"at {at:.2f} {event}" for at, event in self.events)])


def recipe(seed: int) -> Recipe:
    dice = random.Random(seed)
    gpus = dice.choice((1, 1, 2, 2, 2, 3, 4, 8))
    words = [
        f"gpus={gpus}",
        f"driver={dice.choice(('live', 'live', 'live', 'installed', 'building', 'none'))}",
        f"nodes={dice.choice(('yes', 'yes', 'no'))}",
        f"links={dice.choice(('yes', 'no'))}",
        f"uvm={dice.choice(('yes', 'no'))}",
        f"persistence={dice.choice(('yes', 'yes', 'no'))}",
        f"init-s={dice.choice(('0.2', '1', '3'))}",
        f"control-plane={dice.choice(('no', 'no', 'no', 'yes'))}",
    ]
    words.append(f"plugin={dice.choice(('pod', 'pod', 'pod', 'pod', 'unit', 'two'))}")
    if dice.random() < 0.1:
        words.append(f"container={dice.randint(0, gpus)}")
    events = [(0.0, f"plugin is {word}") for word in _kind(dice)]
    events += [
        (
            round(dice.uniform(0.0, 3.0), 2),
            dice.choice(("wait starts", "wait starts", "kubelet starts")),
        )
    ]
    for _ in range(dice.choice((0, 1, 2, 4, 8, 12))):
        events.append(
            (round(dice.uniform(0.0, dice.choice((5.0, 30.0, TROUBLED_S))), 2), _event(dice, gpus))
        )
    for _ in range(dice.choice((0, 0, 1, 2, 4))):
        events.append((round(dice.uniform(0.0, TROUBLED_S), 2), dice.choice(PLUGIN_EVENTS)))
    healed = dice.choice(("all heals", "everything heals", "everything heals", ""))
    if healed:
        events.append((TROUBLED_S, healed))
    return Recipe(
        seed,
        _settings(dice),
        tuple(words),
        tuple(sorted(events)),
        dice.choice((1.0, 1.0, 0.8, 0.0)),
        dice.choice((0.0, 0.0, 0.0, 0.3, 2.0)),
        healed,
    )


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
    if dice.random() < 0.1:
        words.append("Repair=report")
    if dice.random() < 0.2:
        words.append("RepairPartial=yes")
    if dice.random() < 0.3:
        words.append(f"RepairsPerHour={dice.choice((1, 2, 10))}")
    return (*words, "PluginUnit=nvidia-k8s-device-plugin.service")


def _kind(dice: random.Random) -> list[str]:
    """How the node's plugin is set up."""
    words = [f"version={dice.choice(('0.9', '0.12', '0.14', '0.17', '0.20'))}"]
    odd = (
        "fail-on-init=yes",
        "deaf=yes",
        "library=no",
        "own-error=999",
        "mute=yes",
        "hangs=yes",
        "hup-ends=yes",
    )
    return words + [word for word in odd if dice.random() < 0.12]


def _event(dice: random.Random, gpus: int) -> str:
    gpu = dice.randrange(gpus)
    event = dice.choice(
        (
            "nvml 999",
            "nvml 999",
            "nvml ok",
            "nvml hangs",
            "nvml hangs in D",
            "nvml thaws",
            "nvml junk",
            "nvml 18",
            "nvml shuffled",
            f"gpu {gpu} gone",
            f"gpu {gpu} back",
            f"gpu {gpu} error 15",
            f"gpu {gpu} error 27",
            f"gpu {gpu} ok",
            f"gpu {gpu} binds vfio-pci",
            f"gpu {gpu} binds nvidia",
            f"gpu {gpu} binds nothing",
            f"gpu {gpu} leaves",
            f"gpu {gpu} returns",
            "driver loads",
            "driver loads bare",
            "driver unloads",
            "driver uvm",
            "nodes appear",
            "nodes vanish /dev/nvidiactl",
            f"nodes vanish /dev/nvidia{gpu}",
            "nodes vanish /dev/char/195:255",
            "persistenced restarts",
            "persistenced stops",
            "containerd restarts",
            "daemon-reload",
            "daemon-reload",
            "kubelet restarts",
            "plugin restarts",
            "gpu-gate paused",
            "gpu-gate paused for 40",
            "mig-manager works",
            "mig-manager ends",
            "gpu-gate resumed",
            "dev unreadable",
            "dev readable",
            "bus away",
            "bus slow",
            "bus back",
            "hand MakeNodes fails",
            "hand LinkDevChar fails",
            "look stalls",
            "look is quick",
            "agent dies",
        )
    )
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
    words = event.split()
    if words[:2] == ["agent", "dies-after"]:
        machine.dies_in = (words[2], machine.moments.count(words[2]) + 1)
    elif event == "agent dies":
        if machine.alive:
            machine.die()
    else:
        happen(machine.world, words)


def well_within_s(world: World) -> float:
    """Seconds within which a node that is well is ready, whatever was before: a heartbeat to
    notice, a probe that may hang until its deadline, a pause of a minute before the next, the count
    itself, a heartbeat more."""
    settings = world.settings
    one = settings.stable_interval_s + world.init_s * len(world.hardware.cards) + 1.0
    return (
        2 * settings.heartbeat_s
        + settings.probe_timeout_s
        + 60.0
        + settings.stable_probes * one
        + 60.0
    )


def mended_within_s(world: World) -> float:
    """Seconds within which a plugin is mended on top of that: the longest pause of a crash loop, or
    a hand that was refused just now, the time it is given, two rungs of the ladder with the pause
    between them, and a stop."""
    settings = world.settings
    return 300.0 + 60.0 + settings.register_within_s + 2 * settings.verify_within_s + 60.0 + 15.0
