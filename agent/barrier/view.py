"""The parts of a Node object that the barrier reads, validated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition of a Node."""

    status: str
    """True, False or Unknown."""
    reason: str
    heartbeat_at: float
    """Realtime, seconds; 0.0 if missing."""
    transition_at: float


@dataclass(frozen=True, slots=True)
class Taint:
    """One taint; `raw` is the whole object, so that the list can be written back unchanged."""

    key: str
    raw: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class NodeView:
    """A Node object."""

    name: str
    version: str
    """metadata.resourceVersion."""
    boot_id: str
    """Of the boot whose kubelet reported last."""
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    conditions: Mapping[str, Condition]
    capacity: Mapping[str, str]
    allocatable: Mapping[str, str]

    def has_taint(self, key: str) -> bool:
        return any(taint.key == key for taint in self.taints)


def view(node: Mapping[str, Any]) -> NodeView:
    """Parse a Node from JSON. A part of the wrong type counts as absent."""
    meta, spec, status = (_object(node.get(part)) for part in ("metadata", "spec", "status"))
    taints = spec.get("taints")
    conditions = status.get("conditions")
    return NodeView(
        name=str(meta.get("name") or ""),
        version=str(meta.get("resourceVersion") or ""),
        boot_id=str(_object(status.get("nodeInfo")).get("bootID") or ""),
        labels=_strings(meta.get("labels")),
        taints=tuple(Taint(str(t.get("key") or ""), t) for t in map(_object, taints or ()))
        if isinstance(taints, list)
        else (),
        conditions={str(c.get("type")): _condition(c) for c in map(_object, conditions or ())}
        if isinstance(conditions, list)
        else {},
        capacity=_strings(status.get("capacity")),
        allocatable=_strings(status.get("allocatable")),
    )


def is_older(one: str, other: str) -> bool:
    """Compare resource versions, which grow. If one is not a number, neither counts as older."""
    return one.isdecimal() and other.isdecimal() and int(one) < int(other)


def stamp(at: float) -> str:
    """Format realtime seconds as a metav1.Time."""
    return datetime.fromtimestamp(int(at), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _condition(found: Mapping[str, Any]) -> Condition:
    return Condition(
        str(found.get("status") or ""),
        str(found.get("reason") or ""),
        _at(found.get("lastHeartbeatTime")),
        _at(found.get("lastTransitionTime")),
    )


def _at(written: Any) -> float:
    try:
        return (
            datetime.strptime(str(written), "%Y-%m-%dT%H:%M:%SZ")
            .replace(tzinfo=timezone.utc)
            .timestamp()
        )
    except ValueError:
        return 0.0


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _strings(value: Any) -> Mapping[str, str]:
    return {str(k): str(v) for k, v in _object(value).items()}
