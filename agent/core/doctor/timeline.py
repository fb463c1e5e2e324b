"""This boot as a race is read: its moments, the gaps that matter as sentences, and what is not
known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

from ...model.reading import Reading, Refusal, Why
from ...model.runtime import PluginLogState, PluginSight
from ...model.settings import Settings
from ...model.snapshot import Snapshot
from .boot_events import BootEvent, boot_events, clock_set, label

T = TypeVar("T")
FIRST_PROBE_S = 5.0
"""NVML complete so soon after our first look may have been complete before it."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """One boot."""

    boot_events: tuple[BootEvent, ...]
    "oldest first"
    sentences: tuple[str, ...]
    "the gaps that decide something, as seen; causes are the doctor's to name"
    unknown: tuple[str, ...]


def timeline(snapshot: Snapshot, settings: Settings) -> Timeline:
    found = boot_events(snapshot, settings)
    race = _Race(snapshot, found)
    return Timeline(found, tuple(race.sentences()), tuple(_unknown(snapshot, race)))


class _Race:
    """The moments by their word, and what is between them."""

    def __init__(self, snapshot: Snapshot, found: tuple[BootEvent, ...]) -> None:
        self.snapshot = snapshot
        self.first: dict[str, BootEvent] = {}
        self.last: dict[str, BootEvent] = {}
        for boot_event in found:
            self.first.setdefault(boot_event.what, boot_event)
            self.last[boot_event.what] = boot_event
        self.by = {(m.what, m.of): m for m in found}

    def sentences(self) -> Iterator[str]:
        for sight in self.snapshot.plugin.plugins:
            yield from self._plugin(sight)
        kubelet, stable, release = (
            self.last.get("kubelet"),
            self.first.get("stable"),
            self.first.get("released"),
        )
        if kubelet and stable and self._was_watched:
            yield f"the kubelet was up {_between(kubelet, stable, 'NVML was stable')}" + (
                f"; it was released {_between(release, stable, 'that')}" if release else ""
            )
        if (
            kubelet
            and not self._was_watched
            and (look := self.first.get("look"))
            and kubelet.at < look.at
        ):
            late = _span(look.at - kubelet.at)
            first = f"gpu-gate's first snapshot came {late} after it was up"
            yield f"no gate delayed the kubelet: {first}"
        yield from self._repairs()

    @property
    def _was_watched(self) -> bool:
        """NVML was seen to become complete: not so at the very first look."""
        look, seen = self.first.get("look"), self.first.get("seen")
        return bool(look and seen and seen.at - look.at > FIRST_PROBE_S)

    def _plugin(self, sight: PluginSight) -> Iterator[str]:
        id_ = sight.container.id
        start = self.by.get(("started", id_)) or self.by.get(("created", id_))
        if start is None:
            return
        name = label(self.snapshot, sight)
        parts = list(self._before_it(start))
        if parts:
            yield f"{name} started {', '.join(parts)}"
        log = sight.log.value_or(None)
        if log and log.says in (PluginLogState.INIT_FAILED, PluginLogState.NO_DEVICES):
            said = self.by.get((f"said-{log.says.value}", id_))
            when = f" {_span(said.at - start.at)} after its start" if said else ""
            yield f"{name} logged{when}: {log.line.rstrip('.')}; it logged no success since"
        kubelet = self.last.get("kubelet")
        if kubelet and kubelet.at > start.at:
            yield (
                f"the kubelet was up {_span(kubelet.at - start.at)} after {name} "
                "started, so the plugin had to register again"
            )
        reload = self.first.get("reload")
        if reload and reload.at > start.at:
            yield f"the last daemon-reload came {_span(reload.at - start.at)} after {name} started"

    def _before_it(self, start: BootEvent) -> Iterator[str]:
        """What its start is measured against."""
        for word, name in (
            ("persistenced", "nvidia-persistenced"),
            ("module", "the module was loaded"),
            ("nodes", "its last device node was made"),
        ):
            other = self.first.get(word)
            if other and (word == "persistenced" or start.at < other.at):
                yield _between(start, other, name)
        stable = self.first.get("stable")
        if stable and (self._was_watched or stable.at < start.at):
            yield _between(start, stable, "NVML was stable")

    def _repairs(self) -> Iterator[str]:
        for (what, number), begun in self.by.items():
            ended = self.by.get(("outcome", number)) if what == "repair" else None
            if ended:
                yield (
                    f"repair {number} took {_span(ended.at - begun.at)} until its outcome was known"
                )


def _unknown(snapshot: Snapshot, race: _Race) -> Iterator[str]:
    moved = clock_set(snapshot)
    if moved is not None:
        way = "forward" if moved[0] > 0 else "back"
        yield (
            f"the clock was set {way} by {_span(abs(moved[0]))} after {moved[1]:.1f} s: what "
            "others stamped "
            "before (marked *) is off by that"
        )
    if "pci" not in race.first:
        why = _why(snapshot.hardware.kernel, "not in the kernel log")
        yield f"when the GPUs appeared on PCI: {why}"
    if "module" not in race.first:
        yield (
            "when the module was loaded: "
            f"{_why(snapshot.hardware.kernel, 'the kernel log does not go back so far')}"
        )
    if isinstance(snapshot.boot.units, Refusal):
        yield f"when units started: {snapshot.boot.units}"
    if isinstance(snapshot.hardware.nodes, Refusal):
        yield f"when device nodes were made: {snapshot.hardware.nodes}"
    yield from _unknown_nvml(race)
    if isinstance(snapshot.plugin.runtime, Refusal):
        yield f"when the plugin started: {_why(snapshot.plugin.runtime, '')}"
    elif not snapshot.plugin.plugins and "started" not in race.first:
        yield "when the plugin started: no container or unit of it was seen"
    for sight in snapshot.plugin.plugins:
        if not {("started", sight.container.id), ("created", sight.container.id)} & race.by.keys():
            yield (
                f"when {label(snapshot, sight)} started: its timestamp is from another boot, or "
                "the clock was set since"
            )
    if "registered" not in race.first:
        yield f"when the kubelet listed every GPU: {_registration(snapshot, race)}"


def _unknown_nvml(race: _Race) -> Iterator[str]:
    look, seen = race.first.get("look"), race.first.get("seen")
    if look is None:
        yield "when NVML was complete and stable: gpu-gate has no mark of it in this boot"
    elif seen is None:
        yield f"when NVML was complete: never, since gpu-gate's first snapshot at {look.at:.1f} s"
    elif seen.at - look.at <= FIRST_PROBE_S:
        yield f"whether NVML was complete before {look.at:.1f} s: gpu-gate took no earlier snapshot"


def _registration(snapshot: Snapshot, race: _Race) -> str:
    if isinstance(snapshot.kubelet.allocatable, Refusal):
        return f"the kubelet was not asked ({snapshot.kubelet.allocatable})"
    listed = sum(len(d.ids) for d in snapshot.kubelet.allocatable.value)
    if "said-registered" in race.first:
        return f"no mark; it lists {listed} now, and the plugin's log is a hint"
    return f"no mark of it in this boot; it lists {listed} now"


def _why(reading: Reading[T], otherwise: str) -> str:
    if isinstance(reading, Refusal):
        return "not asked on a node without GPUs" if reading.why is Why.NOT_ASKED else str(reading)
    return otherwise


def _between(boot_event: BootEvent, other: BootEvent, name: str) -> str:
    apart = boot_event.at - other.at
    return f"{_span(abs(apart))} {'after' if apart >= 0 else 'before'} {name}"


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"
