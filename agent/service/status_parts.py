"""Parts of /status beside gate and findings: this boot, its services, the plugin, and what was
done.

Whatever the node's work can make long is cut here; what was left out is counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..core.plugin import ledger
from ..core.plugin.candidates import effective
from ..core.plugin.resources import listing
from ..engine.history import MOST_ACTIONS, Done
from ..model.reading import Seen
from ..model.settings import Settings
from ..model.snapshot import Snapshot

MOST_PLUGINS = 8
MOST_RESOURCES = 32
"""Their names come from the kubelet, and a node has few."""
LINE_CHARS = 300


def actions(snapshot: Snapshot | None, recent: Iterable[Done]) -> list[dict[str, Any]]:
    """The last ones, oldest first: the disruptive ones of this boot, from the ledger, and what this
    agent added."""
    entries = (
        snapshot.plugin.ledger.value
        if snapshot and isinstance(snapshot.plugin.ledger, Seen)
        else ()
    )
    disruptive = ledger.actions(entries, snapshot.boot.boot_id) if snapshot else ()
    written, recent = {e.number for e in disruptive}, tuple(recent)
    reasons = {d.number: d.why for d in recent if d.number}
    rows = [
        {
            "at": e.at,
            "kind": e.what,
            "disruptive": True,
            "target": e.target,
            "why": reasons.get(e.number) or e.cause,
            "evidence": e.evidence,
            "outcome": ledger.outcome_of(entries, e) or "awaited",
        }
        for e in disruptive[-MOST_ACTIONS:]
    ]
    rows += [
        {
            "at": d.at,
            "kind": d.kind,
            "disruptive": bool(d.number),
            "target": d.target,
            "why": d.why,
            "evidence": "",
            "outcome": d.outcome,
        }
        for d in recent
        if d.number not in written
    ]
    return sorted(rows, key=lambda row: float(str(row["at"])))[-MOST_ACTIONS:]


def boot(
    snapshot: Snapshot | None, milestones: Mapping[str, float], now: float, realtime: float
) -> dict[str, Any]:
    """This boot: its instants are seconds after its begin."""
    manager = (
        snapshot.boot.manager.value
        if snapshot and isinstance(snapshot.boot.manager, Seen)
        else None
    )
    return {
        "id": snapshot.boot.boot_id if snapshot else "",
        "at_s": round(realtime - now, 1),
        "up_s": round(now, 1),
        "milestones": {name: round(at, 2) for name, at in milestones.items()},
        "reloaded_s": _rounded(manager.last_reload_at) if manager else None,
    }


def services(snapshot: Snapshot | None) -> list[dict[str, Any]]:
    """The units that are followed and are there."""
    units = snapshot.boot.units.value if snapshot and isinstance(snapshot.boot.units, Seen) else ()
    return [
        {"name": u.name, "active": u.active, "since_s": _rounded(u.active_since)}
        for u in units
        if u.load != "not-found"
    ]


def registered(snapshot: Snapshot | None, settings: Settings) -> list[dict[str, Any]]:
    """Device ids that the kubelet lists, by resource, and how many GPUs or parts of them each
    should hold."""
    if snapshot is None or not isinstance(snapshot.kubelet.allocatable, Seen):
        return []
    offers = listing(snapshot, effective(settings, snapshot.plugin.plugins)).offers
    expected = {offer.resource: len(offer.expected) for offer in offers}
    listed = {d.resource: len(d.ids) for d in snapshot.kubelet.allocatable.value}
    return [
        {"resource": name, "listed": listed.get(name, 0), "expected": expected.get(name)}
        for name in sorted({**listed, **expected})[:MOST_RESOURCES]
    ]


def plugins(snapshot: Snapshot | None) -> list[dict[str, Any]]:
    """Containers that look like the device plugin, and what each shows of itself."""
    rows = []
    for sight in (snapshot.plugin.plugins if snapshot else ())[:MOST_PLUGINS]:
        detail = sight.detail.value_or(None)
        log = sight.log.value_or(None)
        access = sight.access.value_or(None)
        rows.append(
            {
                "namespace": sight.sandbox.namespace if sight.sandbox else "",
                "pod": sight.sandbox.name if sight.sandbox else "",
                "container": sight.container.name,
                "id": sight.container.id,
                "image": detail.image if detail else sight.container.image,
                "state": sight.container.state.value,
                "attempt": sight.container.attempt,
                "started_at": detail.started_at if detail and detail.started_at else None,
                "says": log.says.value if log else None,
                "line": log.line[:LINE_CHARS] if log else "",
                "plugin_version": log.version[:LINE_CHARS] if log else "",
                "may_open_gpus": access.allowed if access else None,
            }
        )
    return rows


def _rounded(instant: float | None) -> float | None:
    return round(instant, 2) if instant is not None else None
