"""Device access on a simulated node: what governs each container, and the access program of one
agent.

Opt-in (`do access is watched`): a node without it answers as one whose access was never asked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from agent.core.access.containers import UNUSED_DEVICE, remember
from agent.model.access import (
    AccessState,
    Allocation,
    CurrentAccess,
    Device,
    GrantResult,
    Process,
    ScopeDevices,
    Verdict,
)
from agent.model.actions import CheckAccess, GrantDevices
from agent.model.reading import Reading, Refusal, Seen, Why

if TYPE_CHECKING:
    from .runtime import Box
    from .world import World

TOOK_S = 0.15
"a run of the access program"
NOT_WATCHED = Refusal(Why.NOT_ASKED, "this story does not watch access")
CONTROL = (Device("c", 195, 255), Device("c", 511, 0))


@dataclass
class Held:
    """What one workload was given, and how."""

    gpus: tuple[int, ...]
    behind: bool = False
    "by a hook, behind the runtime's back: systemd does not know, and a reload takes it"
    cgroupfs: bool = False
    lost: bool = False
    named: bool = False
    "in its scope's device list by now"
    runtimes: bool = False
    "the runtime's own program denies it"
    turn: int = 0
    "counts the programs that were put into force"

    @property
    def devices(self) -> tuple[Device, ...]:
        return (*CONTROL, *(Device("c", 195, n) for n in self.gpus))


@dataclass
class Workloads:
    """Who was given what on this node."""

    world: World
    watched: bool = False
    held: dict[str, Held] = field(default_factory=dict)
    "by container name"
    _last: dict[str, tuple[str, float, float]] = field(default_factory=dict)
    "as agent/host/access/processes.py has it"

    def give(self, name: str, words: list[str]) -> None:
        gpus = tuple(int(word) for word in words if word.isdecimal())
        self.held[name] = Held(gpus, "behind" in words, "cgroupfs" in words)

    def reload(self) -> None:
        """systemd makes every scope's program anew, of what it knows."""
        for held in self.held.values():
            if not held.cgroupfs:
                held.turn += 1
                held.lost |= held.behind and not held.named

    def update(self, name: str) -> None:
        """runc makes its own program anew, as cpu-manager has it do: no reload, no signal."""
        self.held[name].turn += 1
        self.held[name].lost = self.held[name].runtimes = True

    def again(self, name: str) -> None:
        self.held[name].turn += 1
        self.held[name].lost = self.held[name].runtimes = False

    def allow(self, name: str) -> str:
        """All that it was given is named in its scope's device list; why that did not help, or
        ""."""
        held = self.held.get(name)
        if held is None:  # the device plugin's own container
            return "a device program that is not systemd's denies it"
        held.turn, held.named = held.turn + 1, True
        held.lost = held.runtimes
        return "a device program that is not systemd's denies it" if held.lost else ""

    def may(self, box: Box) -> tuple[Device, ...]:
        if box.plugin is not None:
            return (
                (*CONTROL, *(Device("c", 195, n) for n in range(8))) if box.plugin.allowed else ()
            )
        held = self.held.get(box.made.name)
        return held.devices if held and not held.lost else ()

    def rules(self, box: Box) -> str:
        held = self.held.get(box.made.name)
        state = int(box.plugin.allowed) if box.plugin else held.turn if held else 0
        return f"programs {box.pid},{box.pid}{state}"

    # What a Host is asked.

    def allocations(self) -> Reading[tuple[Allocation, ...]]:
        world = self.world
        if not world.kubelet.is_active or world.kubelet.silent:
            return Refusal(Why.TIMED_OUT, "no answer within 1.0 s")
        rows = []
        for box in world.cri.boxes.values():
            held, labels = self.held.get(box.made.name), box.made.labels
            if held:
                ids = tuple(world.hardware.cards[n].uuid for n in held.gpus)
                rows.append(
                    Allocation(
                        labels["io.kubernetes.pod.namespace"],
                        labels["io.kubernetes.pod.name"],
                        box.made.name,
                        "nvidia.com/gpu",
                        ids,
                    )
                )
        return Seen(tuple(rows), world.now)

    def processes(self, container_ids: tuple[str, ...]) -> Reading[tuple[Process, ...]]:
        if not self.watched:
            return NOT_WATCHED
        boxes = [self.world.cri.boxes[i] for i in container_ids if i in self.world.cri.boxes]
        return Seen(tuple(self._process(box) for box in boxes), self.world.now)

    def _process(self, box: Box) -> Process:
        held = self.held.get(box.made.name)
        path = (
            f"pod/{box.made.id}"
            if held and held.cgroupfs
            else f"pod.slice/cri-containerd-{box.made.id}.scope"
        )
        spec = tuple((d, "rw") for d in held.devices) if held and not held.behind else ()
        rules = self.rules(box)
        last, seen_at, other_until = self._last.get(box.made.id, (rules, self.world.now, 0.0))
        self._last[box.made.id] = (rules, self.world.now, other_until if last == rules else seen_at)
        return Process(
            box.made.id,
            box.pid,
            box.ticks,
            f"/kubepods/{path}",
            None,
            rules,
            True,
            self._last[box.made.id][2],
            "",
            spec,
        )


class Checks:
    """The access program of one agent, and what it remembers."""

    def __init__(
        self, world: World, on_done: Callable[[], None], say: Callable[[str], None]
    ) -> None:
        self._world, self._on_done, self._say = world, on_done, say
        self._life = object()
        self.state = AccessState()

    def kill(self) -> None:
        self._life = object()

    def start(self, action: CheckAccess) -> None:
        self.state = replace(self.state, asking_since=self._world.now)
        life = self._life
        self._world.time.after(TOOK_S, lambda: self._end(action) if life is self._life else None)

    def _end(self, action: CheckAccess) -> None:
        world, work = self._world, self._world.workloads
        verdicts = {
            v.container_id: v for v in self.state.verdicts if v.container_id in world.cri.boxes
        }
        sightings = [s for s in self.state.sightings if s.container_id in world.cri.boxes]
        for question in action.questions:
            box = world.cri.boxes.get(question.container_id)
            if box is None or not box.is_running:
                continue
            may = work.may(box)
            answers = tuple(
                (
                    d,
                    CurrentAccess.ALLOWED
                    if d in may and d != UNUSED_DEVICE
                    else CurrentAccess.DENIED,
                )
                for d in question.devices
            )
            verdict = Verdict(
                box.made.id,
                box.pid,
                box.ticks,
                work.rules(box),
                world.now,
                "scratch",
                False,
                answers,
                asked_rules=question.rules,
            )
            verdicts[box.made.id] = verdict
            sightings = [s for s in sightings if s.container_id != box.made.id]
            sightings += remember(
                self.state.sightings, verdict, question.other_until, action.reload_at
            )
        rows = tuple(self._scope(unit, rules) for unit, rules in action.scopes)
        others = tuple(s for s in self.state.scopes if s.unit not in {row.unit for row in rows})
        self.state = replace(
            self.state,
            verdicts=tuple(verdicts.values()),
            sightings=tuple(sightings),
            scopes=(*others, *rows),
            asking_since=None,
        )
        self._on_done()

    def allow(self, action: GrantDevices) -> None:
        self.state = replace(self.state, adding_since=self._world.now)
        life = self._life
        self._world.time.after(
            TOOK_S, lambda: self._allowed(action) if life is self._life else None
        )

    def _allowed(self, action: GrantDevices) -> None:
        world, work = self._world, self._world.workloads
        rows = {row.container_id: row for row in self.state.added}
        for of in action.allowances:
            box = world.cri.boxes.get(of.container_id)
            if box is None or not box.is_running:
                continue
            problem = work.allow(box.made.name)
            rows[of.container_id] = GrantResult(
                of.container_id,
                of.scope,
                of.who,
                world.now,
                work.rules(box),
                ("/dev/char/195:0 rw",),
                problem=problem,
            )
            self._say(
                f"{of.who}: its devices are named in its scope{': ' + problem if problem else ''}"
            )
        self.state = replace(self.state, added=tuple(rows.values()), adding_since=None)
        self._on_done()

    def _scope(self, unit: str, rules: str) -> ScopeDevices:
        box = next(b for b in self._world.cri.boxes.values() if b.made.id in unit)
        held = self._world.workloads.held.get(box.made.name)
        known = (
            held.devices
            if held and (held.named or not held.behind)
            else ()
            if held
            else self._world.workloads.may(box)
        )
        return ScopeDevices(
            unit,
            rules,
            self._world.now,
            "strict",
            (("/dev/char/1:3", "rwm"), ("char-*", "m"), *((d.path, "rw") for d in known)),
        )
