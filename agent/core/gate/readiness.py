"""Why a plugin does not register: for the line why the node is not ready, and once for the
journal."""

from __future__ import annotations

from dataclasses import replace

from ...model.condition import Condition
from ...model.fault import Cure
from ...model.finding import Diagnosis, Finding, Verdict
from ..plugin import repair
from .states import Gate, Phase


def explain_unready(registered: Finding, diagnosis: Diagnosis) -> str:
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
