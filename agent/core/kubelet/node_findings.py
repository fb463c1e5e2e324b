"""Link 11: does the API server show the GPUs that the kubelet lists? Known only where
gpu-gate-node.service runs."""

from __future__ import annotations

from ...model.condition import Condition, Link
from ...model.finding import Finding, Verdict
from ...model.reading import Refusal, Seen
from ...model.reason import Reason
from ...model.settings import Settings
from ...model.snapshot import NodeObject, Snapshot
from ..plugin.kinds import PREFERRED, matches
from .findings import find_unit

STALE_S = 180.0
"""A server gives a sign about once a minute; three of them missed."""


def findings(snapshot: Snapshot, settings: Settings) -> tuple[Finding, ...]:
    """Nothing where nobody asked the API server."""
    if isinstance(snapshot.kubelet.node_object, Refusal):
        if snapshot.kubelet.node_object.is_missing or not snapshot.kubelet.node_object.is_telling:
            return ()
        return (
            _finding(
                Verdict.UNKNOWN,
                f"gpu-gate-node's report could not be read ({snapshot.kubelet.node_object})",
                Reason.NODE_REPORT_UNREADABLE,
            ),
        )
    node = snapshot.kubelet.node_object.value
    age_s = max(0.0, snapshot.clock.boottime - node.seen_at)
    silence = _silence(snapshot, settings, node, age_s)
    if silence is not None:
        return (silence,)
    shown, capacity = (
        _ours(quantities, settings) for quantities in (node.allocatable, node.capacity)
    )
    seen = (
        f"Node {node.name} shows {sum(shown.values())} allocatable of capacity "
        f"{sum(capacity.values())}"
    )
    if not isinstance(snapshot.kubelet.allocatable, Seen):
        return (
            _finding(
                Verdict.UNKNOWN,
                f"{seen}; the kubelet was not heard",
                Reason.KUBELET_NOT_HEARD,
                age_s,
            ),
        )
    listed = {
        d.resource: len(d.ids)
        for d in snapshot.kubelet.allocatable.value
        if _is_ours(d.resource, settings)
    }
    if not any(shown.values()) or any(
        shown.get(name, 0) < number for name, number in listed.items()
    ):
        return (
            _finding(
                Verdict.FAILS,
                f"{seen}; the kubelet lists {sum(listed.values())}",
                Reason.NODE_SHOWS_FEWER,
                age_s,
            ),
        )
    return (_finding(Verdict.HOLDS, seen, Reason.NONE, age_s),)


def _silence(
    snapshot: Snapshot, settings: Settings, node: NodeObject, age_s: float
) -> Finding | None:
    """Why what the API server shows says nothing about the node as it is now."""
    if age_s > STALE_S or not node.name:
        return _finding(
            Verdict.UNKNOWN,
            node.trouble or f"the API server gave no sign for {age_s:.0f} s",
            Reason.API_SERVER_SILENT,
            age_s,
        )
    if snapshot.boot.boot_id and node.boot_id != snapshot.boot.boot_id:
        return _finding(
            Verdict.UNKNOWN,
            f"Node {node.name} still shows an earlier boot",
            Reason.NODE_FROM_EARLIER_BOOT,
            age_s,
        )
    unit = find_unit(snapshot, settings)
    if unit and unit.active_since is not None:
        started_at = unit.active_since + snapshot.clock.realtime - snapshot.clock.boottime
        # A heartbeat is a whole second: one of the kubelet's first second may be its predecessor's
        # last.
        if node.kubelet_heartbeat_at <= started_at:
            return _finding(
                Verdict.UNKNOWN,
                f"Node {node.name} is older than the kubelet: it reports every five "
                "minutes, or when something changes",
                Reason.NODE_FROM_EARLIER_KUBELET,
                age_s,
            )
    return None


def _ours(quantities: dict[str, str], settings: Settings) -> dict[str, int]:
    return {
        name: int(value)
        for name, value in quantities.items()
        if value.isdecimal() and len(value) < 6 and _is_ours(name, settings)
    }


def _is_ours(resource: str, settings: Settings) -> bool:
    return matches(resource, settings.resources or PREFERRED)


def _finding(verdict: Verdict, because: str, reason: Reason, age_s: float = 0.0) -> Finding:
    next_step = (
        "" if verdict is Verdict.HOLDS else "systemctl status gpu-gate-node; kubectl describe node"
    )
    return Finding(
        Link.NODE,
        Condition.NODE_RESOURCES,
        verdict,
        because,
        reason,
        next_step=next_step,
        age_s=round(age_s, 1),
        missing=() if verdict is Verdict.HOLDS else ("GPUs in the Node's status",),
    )
