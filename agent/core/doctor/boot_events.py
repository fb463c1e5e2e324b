"""The instants of this boot that a scene tells of, on one clock.

What others stamped in realtime is converted by the scene's own clock; one that was set meanwhile is
found by our marks, which hold boottime inside and realtime outside.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...model.kernel import KernelEvent
from ...model.reading import Seen
from ...model.runtime import PluginLogState, PluginSight
from ...model.settings import Settings
from ...model.snapshot import Snapshot
from ..common.paths import FIRST
from ..common.watched import DRIVER_UNITS, RUNTIME_UNITS, kubelet_units
from ..plugin import ledger
from ..plugin.kinds import KINDS, matches, plugin_units

SET_S = 1.0
"""A clock that moved by more was set; less is what NTP slews."""
_MILESTONES = {
    "look": "gpu-gate took its first snapshot",
    "seen": "NVML showed every GPU for the first time",
    "stable": "NVML was stable",
    "open": "the gate opened",
    "registered": "the kubelet listed every GPU",
}
_ORDER = {name: number for number, name in enumerate(_MILESTONES)}
"""Of one cycle's milestones: each follows from the one before it."""
_LOGGED = {
    PluginLogState.INIT_FAILED: "logged",
    PluginLogState.NO_DEVICES: "logged",
    PluginLogState.NOT_REGISTERED: "logged",
    PluginLogState.REGISTERED: "logged (a hint)",
    PluginLogState.UNHEALTHY: "logged",
    PluginLogState.WAITING: "logged",
    PluginLogState.UNWATCHED: "logged",
}


@dataclass(frozen=True, slots=True)
class BootEvent:
    """Something that happened in this boot."""

    at: float
    "boottime, seconds"
    what: str
    """a word for programs: pci, module, persistenced, nodes, seen, stable, open, released, kubelet,
    created, started …"""
    text: str
    source: str
    "who stamped it: kernel, systemd, mark, inode, runtime, log, ledger"
    of: str = ""
    "which container or unit, where several are of one kind"
    is_theirs: bool = False
    "converted from realtime: wrong by as much as the clock was set since"


def clock_set(snapshot: Snapshot) -> tuple[float, float] | None:
    """(by how many seconds the clock was set forward, boottime of the newest mark from before), if
    it was."""
    if not isinstance(snapshot.boot.run_files, Seen):
        return None
    offset, found = snapshot.clock.realtime - snapshot.clock.boottime, None
    own = {f"{FIRST}{name}": mark for name, mark in snapshot.boot.milestones.items()}
    own.update(
        waiting=snapshot.boot.waiting,
        released=snapshot.boot.released,
        launched=snapshot.boot.launched,
    )
    for entry in snapshot.boot.run_files.value:
        mark = own.get(entry.name)
        if entry.kind != "file" or not isinstance(mark, Seen) or mark.value.at <= 0:
            continue
        moved = offset - (entry.mtime - mark.value.at)
        if abs(moved) > SET_S and (found is None or mark.value.at > found[1]):
            found = (moved, mark.value.at)
    return found


def boot_events(snapshot: Snapshot, settings: Settings) -> tuple[BootEvent, ...]:
    """Oldest first. What lies outside this boot is not among them."""
    found = [*_kernel(snapshot), *_units(snapshot, settings), *_nodes(snapshot), *_marks(snapshot)]
    offset = snapshot.clock.realtime - snapshot.clock.boottime
    for theirs in (*_plugins(snapshot), *_sockets(snapshot), *_ledger(snapshot)):
        found.append(
            BootEvent(
                theirs.at - offset,
                theirs.what,
                theirs.text,
                theirs.source,
                theirs.of,
                is_theirs=True,
            )
        )
    here = [m for m in found if 0 < m.at <= snapshot.clock.boottime + SET_S]
    return tuple(sorted(here, key=lambda m: (m.at, _ORDER.get(m.what, 0))))


def _kernel(snapshot: Snapshot) -> Iterator[BootEvent]:
    words = snapshot.hardware.kernel.value_or(())
    buses = [w for w in words if w.event is KernelEvent.FOUND]
    if buses:
        found = f"the kernel found {_count(len({w.bus_id for w in buses}), 'GPU')} on PCI"
        yield BootEvent(min(w.at for w in buses), "pci", found, "kernel")
    loaded = [w for w in words if w.event is KernelEvent.LOADED]
    for number, word in enumerate(loaded):
        again = " again" if number else ""
        yield BootEvent(word.at, "module", f"the nvidia module was loaded{again}", "kernel")
    for word in [w for w in words if w.event not in (KernelEvent.FOUND, KernelEvent.LOADED)][-3:]:
        yield BootEvent(word.at, "trouble", f"the kernel: {word.line[:160]}", "kernel")


def _units(snapshot: Snapshot, settings: Settings) -> Iterator[BootEvent]:
    kinds = {
        **dict.fromkeys(kubelet_units(settings), "kubelet"),
        **dict.fromkeys(RUNTIME_UNITS, "runtime"),
        **dict.fromkeys(plugin_units(settings), "started"),
        **dict(zip(DRIVER_UNITS, ("persistenced", "fabric"), strict=True)),
    }
    for unit in snapshot.boot.units.value_or(()):
        if unit.name in kinds and unit.active_since is not None and unit.is_active:
            of = unit.name if kinds[unit.name] == "started" else ""
            yield BootEvent(
                unit.active_since, kinds[unit.name], f"{unit.name} was active", "systemd", of
            )
    manager = snapshot.boot.manager.value_or(None)
    if manager is not None and manager.last_reload_at is not None:
        yield BootEvent(
            manager.last_reload_at,
            "reload",
            "systemd last loaded its units (boot or daemon-reload)",
            "systemd",
        )


def _nodes(snapshot: Snapshot) -> Iterator[BootEvent]:
    offset = snapshot.clock.realtime - snapshot.clock.boottime
    nodes = snapshot.hardware.nodes.value_or(())
    made = sorted(
        (n for n in nodes if n.made_at > 0 and "/nvidia-caps/" not in n.path),
        key=lambda n: n.made_at,
    )
    if not made:
        return
    if made[-1].made_at - made[0].made_at > SET_S:
        yield BootEvent(
            made[0].made_at - offset,
            "first-node",
            f"the first device node, {made[0].path}",
            "inode",
            is_theirs=True,
        )
    last = f"the last of {_count(len(made), 'device node')}, {made[-1].path}"
    yield BootEvent(made[-1].made_at - offset, "nodes", last, "inode", is_theirs=True)


def _marks(snapshot: Snapshot) -> Iterator[BootEvent]:
    for name, mark in snapshot.boot.milestones.items():
        if isinstance(mark, Seen) and name in _MILESTONES:
            yield BootEvent(mark.value.at, name, _MILESTONES[name], "mark")
    boot = snapshot.boot
    for name, mark, text in (
        ("waiting", boot.waiting, "the kubelet's start began to wait for the gate"),
        ("released", boot.released, "the kubelet was released"),
        ("launched", boot.launched, "gpu-gate launched the plugin"),
    ):
        if isinstance(mark, Seen) and mark.value.at > 0:
            why = f": {mark.value.reason}" if name == "released" and mark.value.reason else ""
            yield BootEvent(mark.value.at, name, text + why, "mark")


def label(snapshot: Snapshot, sight: PluginSight) -> str:
    """A plugin's container, by its id where there are several."""
    return (
        f"the plugin {sight.container.id[:8]}" if len(snapshot.plugin.plugins) > 1 else "the plugin"
    )


def _plugins(snapshot: Snapshot) -> Iterator[BootEvent]:
    for sight in snapshot.plugin.plugins:
        name, of = label(snapshot, sight), sight.container.id
        detail = sight.detail.value_or(None)
        started = detail.started_at if detail else 0.0
        if started <= 0 or started - sight.container.created_at > SET_S:
            yield BootEvent(
                sight.container.created_at,
                "created",
                f"{name}'s container was created",
                "runtime",
                of,
            )
        if detail and started > 0:
            yield BootEvent(started, "started", f"{name} started", "runtime", of)
        if detail and detail.finished_at > started > 0:
            yield BootEvent(
                detail.finished_at,
                "ended",
                f"{name} ended, status {detail.exit_code}",
                "runtime",
                of,
            )
        log = sight.log.value_or(None)
        if log is not None and log.at > 0 and log.says in _LOGGED:
            yield BootEvent(
                log.at,
                f"said-{log.says.value}",
                f"{name} {_LOGGED[log.says]}: {log.line}",
                "log",
                of,
            )


def _sockets(snapshot: Snapshot) -> Iterator[BootEvent]:
    patterns = {p for kind in KINDS for p in kind.sockets}
    for entry in snapshot.kubelet.plugin_sockets.value_or(()):
        if entry.kind != "socket":
            continue
        if entry.name == "kubelet.sock":
            yield BootEvent(
                entry.mtime, "kubelet-socket", "the kubelet opened its plugin socket", "inode"
            )
        elif matches(entry.name, patterns):
            yield BootEvent(entry.mtime, "socket", f"the plugin's socket {entry.name}", "inode")


def _ledger(snapshot: Snapshot) -> Iterator[BootEvent]:
    entries = snapshot.plugin.ledger.value_or(())
    for entry in entries:
        if entry.boot_id != snapshot.boot.boot_id:
            continue
        if entry.what == ledger.OUTCOME:
            yield BootEvent(
                entry.at,
                "outcome",
                f"repair {entry.number}: {entry.outcome}",
                "ledger",
                str(entry.number),
            )
        else:
            yield BootEvent(
                entry.at,
                "repair",
                f"repair {entry.number} begins: {entry.what} {entry.target[:12]}, for "
                f"{entry.cause.split(' ')[0]}",
                "ledger",
                str(entry.number),
            )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
