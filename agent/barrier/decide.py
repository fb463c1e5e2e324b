"""Every decision to open or close the barrier, as pure functions: `now` comes in, patches go out.

The order of writes leaves no gap in which a pod could bind:

* To open, the condition is written first, then label and startup taint in one patch. This happens
  only after the agent was ready for ReadyForSec without a break, and only once the kubelet of this
  boot has reported.
* To close, label and startup taint are written first, in one patch, then the condition.

A Node that still carries the boot ID of an earlier boot also carries that boot's label, so the
barrier closes at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..model.settings import Settings
from .readiness import AgentReadiness
from .view import NodeView, stamp

HEARTBEAT_S = 300.0
"""The condition is rewritten at this interval, so that a stale one can be recognized. The kubelet
reports as often."""
REASON_S = 15.0
"""Minimum interval between two writes that change only the reason."""
YES = "true"


@dataclass(frozen=True, slots=True)
class BarrierState:
    """What the barrier publishes. Not stored: a restarted program adopts what the Node carries."""

    is_open: bool
    status: str
    """The condition's status: True, False or Unknown."""
    readiness: AgentReadiness
    """The reason and message in force."""
    ready_since: float | None = None
    """Boottime, seconds: ready without a break since then."""
    unknown_since: float | None = None
    is_steady: bool = False
    """True if ready for ReadyForSec: only then does the barrier open anything."""


@dataclass(frozen=True, slots=True)
class Patch:
    """One write to the Node."""

    body: Mapping[str, Any]
    status: bool = False
    """True for the /status subresource: a strategic merge, which merges conditions by type."""
    opens: bool = False


def adopt(node: NodeView, boot_id: str, settings: Settings) -> BarrierState:
    """Take over what an earlier run in this boot left on the Node, until the agent answers."""
    found = node.conditions.get(settings.node_condition)
    same_boot = node.boot_id == boot_id
    is_open = same_boot and not _is_closed(node, settings)
    readiness = AgentReadiness(None, "NotLooked", "the agent has not been asked yet")
    status = (
        found.status if found and same_boot and found.status in ("True", "False") else "Unknown"
    )
    return BarrierState(
        is_open,
        "True" if is_open else "False" if status == "False" else "Unknown",
        replace(readiness, reason=found.reason) if found and status != "Unknown" else readiness,
    )


def step(
    state: BarrierState, readiness: AgentReadiness, now: float, settings: Settings
) -> BarrierState:
    """Apply hysteresis: not ready counts at once, ready after ReadyForSec, unknown after
    WithdrawAfterSec."""
    if readiness.ready is False:
        return BarrierState(False, "False", readiness)
    if readiness.ready:
        since = now if state.ready_since is None else state.ready_since
        if now - since >= settings.node_ready_for_s:
            return BarrierState(True, "True", readiness, ready_since=since, is_steady=True)
        return replace(state, ready_since=since, unknown_since=None)
    since = now if state.unknown_since is None else state.unknown_since
    if now - since >= settings.node_withdraw_after_s:
        return BarrierState(False, "Unknown", readiness, unknown_since=since)
    return replace(state, ready_since=None, unknown_since=since, is_steady=False)


def stopped() -> BarrierState:
    """The state after the barrier's service has stopped."""
    return BarrierState(
        False,
        "Unknown",
        AgentReadiness(None, "BarrierStopped", "gpu-gate-node.service was stopped"),
    )


def patches(
    state: BarrierState,
    node: NodeView,
    boot_id: str,
    realtime: float,
    settings: Settings,
    may_taint: bool = True,
) -> tuple[Patch, ...]:
    """The writes that make the Node agree with `state`, in order. Empty if it agrees already."""
    if state.is_open and node.boot_id != boot_id:
        state = BarrierState(
            False,
            "Unknown",
            AgentReadiness(
                None, "KubeletNotReported", "the kubelet of this boot has not reported yet"
            ),
        )
    if state.is_open and not state.is_steady:
        return ()  # keep what the Node carries, but open nothing
    condition, gate = (
        _condition(state, node, realtime, settings),
        _gate(state, node, settings, may_taint),
    )
    return condition + gate if state.is_open else gate + condition


def _is_closed(node: NodeView, settings: Settings) -> bool:
    """True if neither label nor missing startup taint lets work start."""
    labelled = bool(settings.node_label) and settings.node_label in node.labels
    untainted = bool(settings.node_taint) and not node.has_taint(settings.node_taint)
    return not labelled and not untainted


def _gate(
    state: BarrierState, node: NodeView, settings: Settings, may_taint: bool
) -> tuple[Patch, ...]:
    """Label and startup taint in one merge patch.

    A merge patch replaces a list whole. With resourceVersion the API server answers 409 if
    another client has written meanwhile, and the Node is read again.
    """
    label, key = settings.node_label, settings.node_taint if may_taint else ""
    body: dict[str, Any] = {}
    if label and state.is_open and node.labels.get(label) != YES:
        body["metadata"] = {"labels": {label: YES}}
    elif label and not state.is_open and label in node.labels:
        body["metadata"] = {"labels": {label: None}}
    if key and node.has_taint(key) is state.is_open:
        taints = [dict(t.raw) for t in node.taints if t.key != key]
        if not state.is_open:
            taints.append({"key": key, "effect": "NoSchedule"})
        body["spec"] = {"taints": taints or None}
        body["metadata"] = {**body.get("metadata", {}), "resourceVersion": node.version}
    return (Patch(body, opens=state.is_open),) if body else ()


def _condition(
    state: BarrierState, node: NodeView, realtime: float, settings: Settings
) -> tuple[Patch, ...]:
    if not settings.node_condition:
        return ()
    found = node.conditions.get(settings.node_condition)
    if found is not None and found.status == state.status:
        age_s = realtime - found.heartbeat_at
        same = found.reason == state.readiness.reason
        if 0 <= age_s < (HEARTBEAT_S if same else REASON_S):
            return ()
    changed = found is None or found.status != state.status
    body = {
        "type": settings.node_condition,
        "status": state.status,
        "reason": state.readiness.reason,
        "message": state.readiness.message,
        "lastHeartbeatTime": stamp(realtime),
        "lastTransitionTime": stamp(realtime if changed or found is None else found.transition_at),
    }
    return (Patch({"status": {"conditions": [body]}}, status=True),)
