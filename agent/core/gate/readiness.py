"""Whether GPU work may start, and why not. Why a plugin does not register is logged once."""

from __future__ import annotations

from dataclasses import replace

from ...model.condition import Condition
from ...model.fault import Cure
from ...model.finding import Diagnosis, Finding, Verdict
from ...model.settings import Settings
from ..plugin import repair
from .schedule import AGREE, stands_for_s
from .states import Gate, Phase

STALE_S = 150.0
"""Seconds that the kubelet's answer is good for. A quiet node asks at every fourth heartbeat; one
whose collections stall does not ask at all."""


def judge_readiness(
    gate: Gate, diagnosis: Diagnosis, now: float, settings: Settings
) -> tuple[bool, str]:
    """Whether GPU work may start, and why or why not."""
    broken, registered = diagnosis.first_broken(own=True), diagnosis.registered
    if gate.phase is Phase.NOT_APPLICABLE:
        return (False, broken.because) if broken else (True, gate.why)
    why_not = _unready_phase(gate, diagnosis, now, settings)
    if why_not is None and broken and broken != registered:
        why_not = broken.because
    if why_not is None and registered:
        why_not = _unregistered(registered, gate, diagnosis, now)
    if why_not is not None:
        return False, why_not
    return True, registered.because if registered else gate.why


def _unready_phase(gate: Gate, diagnosis: Diagnosis, now: float, settings: Settings) -> str | None:
    """Why a node in this phase is not ready; None where it may be."""
    if gate.phase is Phase.OPEN:
        return None
    if gate.phase is not Phase.REVALIDATING:
        return gate.why
    if diagnosis.paused:
        return f"not validated since {diagnosis.disturbed_by}"
    if now <= diagnosis.disturbed_at + stands_for_s(gate, settings):
        return None
    return f"no verdict for {now - diagnosis.disturbed_at:.0f} s after {diagnosis.disturbed_by}"


def _unregistered(registered: Finding, gate: Gate, diagnosis: Diagnosis, now: float) -> str | None:
    """Why the kubelet's list does not make a node ready; None where it does."""
    if registered.verdict is not Verdict.HOLDS:
        return _explain(registered, diagnosis)
    if gate.listed < AGREE:
        return f"{registered.because}, once so far"
    age_s = now - diagnosis.registered_at
    return f"{registered.because}, but that was {age_s:.0f} s ago" if age_s > STALE_S else None


def _explain(registered: Finding, diagnosis: Diagnosis) -> str:
    """What the kubelet lists and what is wrong with the plugin, with a next step where no repair
    will follow."""
    trouble = _trouble(diagnosis)
    if trouble is None or trouble.verdict is Verdict.HOLDS:
        return registered.because
    fault = diagnosis.repair_facts.fault if diagnosis.repair_facts else None
    is_ours = fault is not None and fault.cure in (Cure.FRESH_START, Cure.TIME) and not fault.barred
    next_step = "" if is_ours else f"; next step: {trouble.next_step}"
    return f"{registered.because}; {trouble.because}{next_step}"


def record_troubles(gate: Gate, before: Gate, diagnosis: Diagnosis, now: float) -> Gate:
    """Since when the node is not ready, and each reason why its plugin does not register: once
    each, so that a crash loop is logged once."""
    if gate.ready:
        return replace(gate, troubles=())
    since = now if before.ready or not before.unready_since else gate.unready_since
    facts = diagnosis.repair_facts
    is_late = now >= max(since, facts.kubelet_since if facts else 0.0) + repair.QUICK_S
    changed = (before.phase, before.reason, before.ready) != (gate.phase, gate.reason, gate.ready)
    trouble = _trouble(diagnosis)
    reason = trouble.reason if trouble and (is_late or changed) else ""
    is_new = gate.phase is Phase.OPEN and reason and reason not in gate.troubles
    troubles = (*gate.troubles, reason) if is_new else gate.troubles
    return replace(gate, unready_since=since, troubles=troubles)


def _trouble(diagnosis: Diagnosis) -> Finding | None:
    return next((f for f in diagnosis.findings if f.condition == Condition.PLUGIN_HEALTHY), None)
