"""Everything that opens or closes the barrier is in this file, pure: `now` comes in, patches go
out.

The order through which no pod can slip:

* opening: the condition first, then label and startup taint, in one patch; only while the agent's
  agent is yes
  for ReadyForSec without a break, and only once the kubelet of this very boot has reported;
* closing: label and startup taint first, in one patch, then the condition.

A Node that still carries the boot ID of an earlier boot carries that boot's label as well: it is
closed at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..model.settings import Settings
from .readiness import AgentReadiness
from .view import View, stamp

HEARTBEAT_S = 300.0
"""The condition is written again after this, so that a stale one can be told; as often as the
kubelet reports."""
REASON_S = 15.0
"""Another reason for the same status is written at most so often."""
YES = "true"


@dataclass(frozen=True, slots=True)
class BarrierState:
    """What the barrier says. Lost with the program: the next one takes up what the Node carries."""

    is_open: bool
    status: str
    "of the condition: True, False, Unknown"
    agent: AgentReadiness
    "the one that stands"
    ready_since: float | None = None
    "boottime, seconds, of a yes without a break"
    unknown_since: float | None = None
    is_steady: bool = False
    "the yes has lasted for ReadyForSec: something may be opened by it"


@dataclass(frozen=True, slots=True)
class Patch:
    """One write to the Node."""

    body: Mapping[str, Any]
    status: bool = False
    "of the /status subresource: a strategic merge, in which conditions are merged by their type"
    opens: bool = False


def adopt(node: View, boot_id: str, settings: Settings) -> BarrierState:
    """What an earlier program of this boot left on the Node stands until the agent's agent is
    heard."""
    found = node.conditions.get(settings.node_condition)
    same_boot = node.boot_id == boot_id
    is_open = same_boot and not _is_closed(node, settings)
    agent = AgentReadiness(None, "NotLooked", "the agent has not been asked yet")
    status = (
        found.status if found and same_boot and found.status in ("True", "False") else "Unknown"
    )
    return BarrierState(
        is_open,
        "True" if is_open else "False" if status == "False" else "Unknown",
        replace(agent, reason=found.reason) if found and status != "Unknown" else agent,
    )


def step(
    state: BarrierState, agent: AgentReadiness, now: float, settings: Settings
) -> BarrierState:
    """Hysteresis: no at once, yes after ReadyForSec, not known after WithdrawAfterSec."""
    if agent.ready is False:
        return BarrierState(False, "False", agent)
    if agent.ready:
        since = now if state.ready_since is None else state.ready_since
        if now - since >= settings.node_ready_for_s:
            return BarrierState(True, "True", agent, ready_since=since, is_steady=True)
        return replace(state, ready_since=since, unknown_since=None)
    since = now if state.unknown_since is None else state.unknown_since
    if now - since >= settings.node_withdraw_after_s:
        return BarrierState(False, "Unknown", agent, unknown_since=since)
    return replace(state, ready_since=None, unknown_since=since, is_steady=False)


def stopped() -> BarrierState:
    """Nobody vouches for the node any more."""
    return BarrierState(
        False,
        "Unknown",
        AgentReadiness(None, "BarrierStopped", "gpu-gate-node.service was stopped"),
    )


def patches(
    state: BarrierState,
    node: View,
    boot_id: str,
    realtime: float,
    settings: Settings,
    may_taint: bool = True,
) -> tuple[Patch, ...]:
    """What is to be written so that the Node says what the barrier says, in order. Nothing where it
    does."""
    if state.is_open and node.boot_id != boot_id:
        state = BarrierState(
            False,
            "Unknown",
            AgentReadiness(
                None, "KubeletNotReported", "the kubelet of this boot has not reported yet"
            ),
        )
    if state.is_open and not state.is_steady:
        return ()  # the last agent stands, but nothing is opened by it
    condition, gate = (
        _condition(state, node, realtime, settings),
        _gate(state, node, settings, may_taint),
    )
    return condition + gate if state.is_open else gate + condition


def _is_closed(node: View, settings: Settings) -> bool:
    """Nothing on the Node says that work may start."""
    labelled = bool(settings.node_label) and settings.node_label in node.labels
    untainted = bool(settings.node_taint) and not node.has_taint(settings.node_taint)
    return not labelled and not untainted


def _gate(
    state: BarrierState, node: View, settings: Settings, may_taint: bool
) -> tuple[Patch, ...]:
    """Label and startup taint in one merge patch. A list is replaced whole by it: resourceVersion
    keeps what others wrote meanwhile (409, and we read again)."""
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
    state: BarrierState, node: View, realtime: float, settings: Settings
) -> tuple[Patch, ...]:
    if not settings.node_condition:
        return ()
    found = node.conditions.get(settings.node_condition)
    if found is not None and found.status == state.status:
        age_s = realtime - found.heartbeat_at
        same = found.reason == state.agent.reason
        if 0 <= age_s < (HEARTBEAT_S if same else REASON_S):
            return ()
    changed = found is None or found.status != state.status
    body = {
        "type": settings.node_condition,
        "status": state.status,
        "reason": state.agent.reason,
        "message": state.agent.message,
        "lastHeartbeatTime": stamp(realtime),
        "lastTransitionTime": stamp(realtime if changed or found is None else found.transition_at),
    }
    return (Patch({"status": {"conditions": [body]}}, status=True),)
