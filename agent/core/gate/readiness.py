"""What is said of a plugin that does not come: in the line why the node is not ready, and once in
the journal."""

from __future__ import annotations

from dataclasses import replace

from ...model.condition import Condition
from ...model.fault import Cure
from ...model.finding import Diagnosis, Finding, Verdict
from ..plugin import repair
from .states import Gate, Phase


def explain_unready(registered: Finding, diagnosis: Diagnosis) -> str:
    """What the kubelet lists, and what is known of the plugin; a next step only where the mender
    takes none."""
    trouble = _trouble(diagnosis)
    if trouble is None or trouble.verdict is Verdict.HOLDS:
        return registered.because
    fault = diagnosis.repair_facts.fault if diagnosis.repair_facts else None
    is_ours = fault is not None and fault.cure in (Cure.FRESH_START, Cure.TIME) and not fault.barred
    next_step = "" if is_ours else f"; next step: {trouble.next_step}"
    return f"{registered.because}; {trouble.because}{next_step}"


def record_troubles(gate: Gate, before: Gate, diagnosis: Diagnosis, now: float) -> Gate:
    """Since when it is not ready, and each trouble of a plugin that does not come soon, once: a
    crash loop is told once."""
    if gate.ready:
        return replace(gate, troubles=())
    since = now if before.ready or not before.unready_since else gate.unready_since
    trouble, kubelet = (
        _trouble(diagnosis),
        diagnosis.repair_facts.kubelet_since if diagnosis.repair_facts else 0.0,
    )
    is_late = now >= max(since, kubelet) + repair.QUICK_S
    is_told = (before.phase, before.reason, before.ready) != (gate.phase, gate.reason, gate.ready)
    word = trouble.reason if trouble and gate.phase is Phase.OPEN and (is_late or is_told) else ""
    new = (word,) if word and word not in gate.troubles else ()
    return replace(gate, unready_since=since, troubles=gate.troubles + new)


def _trouble(diagnosis: Diagnosis) -> Finding | None:
    return next((f for f in diagnosis.findings if f.condition == Condition.PLUGIN_HEALTHY), None)
