"""A story as text: commands, a line of dashes, and the transcript that they make (in the manner of
etcd raft's testdata).

    settings DeadlineSec=60 …     before the world
    world gpus=8 driver=live …    the node at time 0, when the agent starts; tests/stories/verbs.py
    at 6 nvml ok                  an event, at 6 s of the story
    in 2 gpu 3 gone               2 s from now
    do daemon-reload              now
    agent dies                    SIGKILL; it is started again 2 s later
    agent dies-after ledger       in its next repair, right after that: evidence, ledger, stop
    run 30                        30 s more
    must be ready                 a claim, as below: what the story is about; REWRITE=1 keeps it
    must have 4 probes            at most; or driver-starts, cycles, repairs
    must say SameCauseAgain       the reason of the phase
    run until ready               or not-ready, released, open, held; for 600 s at most
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from agent.core.gate.states import Phase
from agent.model.settings import Settings

from .machine import Machine
from .timeline import BOOT
from .verbs import happen, settings_of, world_of

PATIENCE_S = 600.0
CLAIMS: dict[str, Callable[[Machine], bool]] = {
    "ready": lambda m: m.gate.ready,
    "not-ready": lambda m: not m.gate.ready,
    "released": lambda m: bool(m.gate.released),
    "open": lambda m: m.gate.phase is Phase.OPEN,
    "held": lambda m: m.gate.phase is Phase.BLOCKED,
    "not-applicable": lambda m: m.gate.phase is Phase.NOT_APPLICABLE,
}


COUNTS: dict[str, Callable[[Machine], int]] = {
    "probes": lambda m: m.probes,
    "driver-starts": lambda m: m.world.driver_starts,
    "cycles": lambda m: m.cycles,
    "repairs": lambda m: len(m.laws.repair_facts.acts),
}


@dataclass
class Block:
    """Some commands, and what was said after them."""

    comments: list[str] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)


def parse(text: str) -> list[Block]:
    blocks, said = [Block()], False
    for line in text.splitlines():
        if not line.strip():
            if blocks[-1].commands:
                blocks.append(Block())
            said = False
        elif line == "----":
            said = True
        elif said:
            blocks[-1].said.append(line)
        elif line.startswith("#"):
            blocks[-1].comments.append(line)
        else:
            blocks[-1].commands.append(line)
    return [b for b in blocks if b.commands]


def written(blocks: list[Block]) -> str:
    return "\n".join("\n".join([*b.comments, *b.commands, "----", *b.said, ""]) for b in blocks)


class Play:
    """One performance of a story."""

    def __init__(self, make: Callable[..., Machine] = Machine, strict: bool = True) -> None:
        """With `strict` off nothing "must": the story is played with signals lost, or with the
        agent killed."""
        self._make, self.strict = make, strict
        self._settings = Settings()
        self.machine: Machine | None = None

    def perform(self, blocks: list[Block]) -> list[Block]:
        """The same story with what the machine says now."""
        performed, told = [], 0
        for block in blocks:
            for command in block.commands:
                self._do(command.split())
            machine = self._there()
            said = [*machine.said[told:], f"{'':9}{machine.summary()}"]
            told = len(machine.said)
            performed.append(Block(block.comments, block.commands, said))
        return performed

    def rest(self, span_s: float) -> Machine:
        """Let the story's end go on undisturbed."""
        machine = self._there()
        machine.run(machine.world.now + span_s)
        return machine

    def _there(self) -> Machine:
        assert self.machine is not None, "a story begins with its world"
        return self.machine

    def _do(self, words: list[str]) -> None:
        verb, rest = words[0], words[1:]
        if verb == "settings":
            self._settings = settings_of(rest)
        elif verb == "world":
            self.machine = self._make(world_of(rest, self._settings))
        elif verb == "run":
            self._run(rest)
        elif verb == "must":
            self._must(rest)
        elif verb == "agent":
            self._agent(rest)
        else:
            self._happen(verb, rest)

    def _agent(self, words: list[str]) -> None:
        if words[0] == "dies-after":
            machine = self._there()
            machine.dies_in = (words[1], machine.moments.count(words[1]) + 1)
        else:
            self._there().die()

    def _happen(self, verb: str, words: list[str]) -> None:
        world = self._there().world
        if verb == "do":
            self._announce(words)
        elif verb in ("at", "in"):
            base = BOOT if verb == "at" else world.now
            world.time.at(base + float(words[0]), partial(self._announce, words[1:]))
        else:
            raise ValueError(f"no such command: {verb} {' '.join(words)}")

    def _announce(self, words: list[str]) -> None:
        machine = self._there()
        machine.say(f"* {' '.join(words)}")
        happen(machine.world, words)

    def _must(self, words: list[str]) -> None:
        machine = self._there()
        if words[0] == "say":  # the phase's reason word
            holds = machine.gate.reason == words[1]
        elif words[0] == "be":
            holds = CLAIMS[words[1]](machine)
        else:
            holds = COUNTS[words[2]](machine) <= int(words[1])
        assert holds or not self.strict, f"must {' '.join(words)}: {machine.summary()}"

    def _run(self, words: list[str]) -> None:
        machine = self._there()
        if words[0] == "until":
            if not machine.run(machine.world.now + PATIENCE_S, CLAIMS[words[1]]):
                machine.say(f"still not {words[1]}")
        else:
            machine.run(machine.world.now + float(words[0]))
