"""The gate: the one function that moves it from cycle to cycle.

All that decides the phase, the release of the kubelet and readiness is in this package; the rest of
the program only reads it. phases.py is the table of phases. step() is pure: `now` comes in, and the
instant of the next cycle goes out as `wake_at`. Instants are boottime, seconds.

The gate has three values, because no one of them follows from another:
* phase     where the host's GPUs stand;
* released  the kubelet may start; once released, released for this boot;
* ready     GPU work may start.
"""

from __future__ import annotations

from dataclasses import replace

from ...model.actions import Action, DropProbe, Learn, Release, StartProbe
from ...model.condition import Condition
from ...model.finding import Diagnosis, Heals, Scope, Verdict
from ...model.reason import ReleaseReason
from ...model.settings import Settings
from ...model.snapshot import ProbeEnd
from ..plugin import launch as launching
from ..plugin import repair
from .deadline import hold_limit_s
from .phases import Situation, phase_of, with_repair
from .readiness import judge_readiness, record_troubles
from .schedule import (
    DOUBT_S,
    backoff,
    keeps_probe,
    probe_due,
    wake_at,
    wants_probe,
)
from .states import Gate, Phase, Step


def step(gate: Gate, diagnosis: Diagnosis, now: float, settings: Settings) -> Step:
    """Judge a diagnosis, move the gate, and decide the actions and the next cycle."""
    moved = _count(_forget(_notice(gate, diagnosis, now), diagnosis, now), diagnosis, now, settings)
    moved = replace(moved, deadline_at=_deadline(moved, diagnosis, now, settings))
    outcome = phase_of(Situation(moved, diagnosis, settings, now))
    phase = outcome.phase
    moved, repaired = _repair(moved, diagnosis, phase, now, settings)
    launched = launching.step(
        moved.launch, diagnosis, moved.open_since if phase is Phase.OPEN else None, now
    )
    phase, why, reason = with_repair(outcome, gate.repair, moved.repair)
    if phase is not moved.phase:
        moved = replace(moved, phase=phase, since=now)
    moved = replace(moved, why=why, reason=reason, launch=launched.launch)
    release = _released(moved, diagnosis, now, launched.holds)
    moved = replace(moved, released=release.reason if release else "")
    ready, ready_why = judge_readiness(moved, diagnosis, now, settings)
    pause = diagnosis.paused
    moved = replace(
        moved,
        ready=ready,
        ready_why=f"{ready_why}; {pause.why}" if pause else ready_why,
        paused=pause.why if pause else "",
        paused_until=pause.until if pause else None,
    )
    moved = record_troubles(moved, gate, diagnosis, now)
    actions = (
        _actions(moved, diagnosis, now, settings, release) + launched.actions + repaired.actions
    )
    wakes = [
        wake_at(moved, diagnosis, now, settings),
        *(max(now, w) for w in (repaired.wake_at, launched.wake_at) if w is not None),
    ]
    if any(isinstance(action, StartProbe) for action in actions):
        moved = replace(moved, asked_for=diagnosis.mig_instances)
    return Step(replace(moved, answered_at=diagnosis.registered_at), actions, min(wakes))


def _repair(
    gate: Gate, diagnosis: Diagnosis, phase: Phase, now: float, settings: Settings
) -> tuple[Gate, repair.RepairStep]:
    """Count the kubelet's answers, then decide about a repair, which may begin only while NVML is
    stable."""
    if gate.good < settings.stable_probes:
        gate = replace(gate, open_since=None)
    elif gate.open_since is None:
        gate = replace(gate, open_since=now)
    gate = _count_answers(gate, diagnosis)
    open_since = gate.open_since if phase is Phase.OPEN else None
    repaired = repair.step(gate.repair, diagnosis, open_since, gate.listed, now, settings)
    report, begins = diagnosis.report, repaired.repair.acting and not gate.repair.acting
    if begins and report is not None and report.ended_at < now - DOUBT_S:
        # NVML itself may be what the plugin lacks, and the last probe is long ago: probe first.
        gate = replace(gate, probe_after=now)
        repaired = repair.RepairStep(gate.repair, wake_at=now + repair.AGREE_S)
    return replace(gate, repair=repaired.repair), repaired


def _count_answers(gate: Gate, diagnosis: Diagnosis) -> Gate:
    """Answers of the kubelet in a row that list every GPU."""
    registered, facts = diagnosis.registered, diagnosis.repair_facts
    if facts is not None and facts.fault is not None and facts.fault.access_denied:
        # What the plugin offers is of no use, and no later answer may count it.
        return replace(gate, listed=0, listed_at=diagnosis.registered_at)
    if registered is None or registered.verdict is not Verdict.HOLDS:
        return replace(gate, listed=0)
    if diagnosis.registered_at > gate.listed_at:
        return replace(gate, listed=gate.listed + 1, listed_at=diagnosis.registered_at)
    return gate


def _notice(gate: Gate, diagnosis: Diagnosis, now: float) -> Gate:
    """Note since when a cause is known that would block, and since when the fabric is awaited."""
    doubt = diagnosis.held.reason if diagnosis.held else ""
    if doubt != gate.doubt:
        gate = replace(gate, doubt=doubt, doubt_since=now)
    if diagnosis.fabric is None:
        return replace(gate, fabric_since=None)
    if gate.fabric_since is not None:
        return gate
    # An earlier agent of this boot waited for it already.
    has_waited = diagnosis.released_before and gate.validated_at is None
    return replace(gate, fabric_since=0.0 if has_waited else now)


def _forget(gate: Gate, diagnosis: Diagnosis, now: float) -> Gate:
    """Drop what earlier probes reported once the driver that answered them is gone, or the readings
    they were made of have changed."""
    if gate.paused and not diagnosis.paused:  # a pause ends because something was changed
        gate = replace(gate, probe_after=now)
    is_outdated = _is_outdated(gate, diagnosis)
    gate = replace(gate, loaded_at=diagnosis.driver_loaded_at)
    if gate.good == gate.hopeless == gate.failures == 0 or not is_outdated:
        return gate
    return replace(
        gate,
        good=0,
        fingerprint="",
        validated_at=None,
        hopeless=0,
        failures=0,
        failing_since=None,
        probe_after=now,
    )


def _is_outdated(gate: Gate, diagnosis: Diagnosis) -> bool:
    if not diagnosis.may_probe or diagnosis.scope is Scope.NONE:
        return True
    shown, before, loaded_at = diagnosis.fingerprint, gate.fingerprint, diagnosis.driver_loaded_at
    if shown and before and shown != before:
        return True
    # The module can be unloaded and loaded again between two cycles.
    is_reloaded, report = gate.loaded_at < loaded_at, diagnosis.report
    return is_reloaded and report is not None and report.started_at < loaded_at


def _count(gate: Gate, diagnosis: Diagnosis, now: float, settings: Settings) -> Gate:
    """Judge the last probe, once. Only a difference between readings restarts the count."""
    report = diagnosis.report
    if report is None or report.number == gate.counted:
        return gate
    # Otherwise a cycle was missed, and with it a probe that was never judged.
    is_next = report.number == gate.counted + 1
    gate = replace(gate, counted=report.number)
    if report.end is ProbeEnd.ANSWERED:
        gate = replace(gate, slowest_s=max(gate.slowest_s, report.ended_at - report.started_at))
    if not diagnosis.fingerprint:
        return _count_failure(gate, diagnosis, report.end is ProbeEnd.HUNG, now, settings)
    is_same = is_next and diagnosis.fingerprint == gate.fingerprint
    good = gate.good + 1 if is_same else 1
    is_stable = good >= settings.stable_probes
    return replace(
        gate,
        good=good,
        fingerprint=diagnosis.fingerprint,
        hopeless=0,
        failures=0,
        failing_since=None,
        validated_at=report.started_at if is_stable else None,
        probe_after=now + settings.probe_interval_s
        if is_stable
        else report.started_at + settings.stable_interval_s,
    )


def _count_failure(
    gate: Gate, diagnosis: Diagnosis, hung: bool, now: float, settings: Settings
) -> Gate:
    failures = gate.failures + 1
    since = gate.failing_since if gate.failing_since is not None else now
    hopeless = gate.hopeless + 1 if _is_hopeless(diagnosis) else 0
    nvml = diagnosis.get(Condition.NVML_COMPLETE)
    nvml_fails = nvml is not None and nvml.verdict is Verdict.FAILS  # and not: /dev is unreadable
    if diagnosis.repair_facts is not None and nvml_fails:
        gate = replace(gate, repair=replace(gate.repair, bad_probe_at=now))
    return replace(
        gate,
        good=0,
        fingerprint="",
        validated_at=None,
        failures=failures,
        failing_since=since,
        hopeless=hopeless,
        probe_after=now + backoff(settings, failures, now - since, hung, hopeless),
    )


def _is_hopeless(diagnosis: Diagnosis) -> bool:
    finding = diagnosis.get(Condition.NVML_COMPLETE)
    return (
        finding is not None and finding.verdict is Verdict.FAILS and finding.heals is not Heals.SOON
    )


def _deadline(gate: Gate, diagnosis: Diagnosis, now: float, settings: Settings) -> float:
    """When the kubelet is released in any case: counted from the start of the wait unit, or else of
    the agent. A mark from the future counts for nothing: it must not make the kubelet wait longer.
    """
    waiting = diagnosis.waiting_since
    origin = waiting if waiting is not None and 0.0 < waiting <= now else gate.started_at
    return origin + hold_limit_s(settings, diagnosis.control_plane)


def _released(gate: Gate, diagnosis: Diagnosis, now: float, holds: str) -> Release | None:
    """Why the kubelet may start; None while it may not. The first line that fits. `holds`: what an
    open gate still waits for, for some seconds."""
    before = gate.released or diagnosis.released_before
    pause = diagnosis.paused
    lines = (
        (bool(before), ReleaseReason.BEFORE, before),
        (
            bool(diagnosis.kubelet_active),
            ReleaseReason.KUBELET_ACTIVE,
            "the kubelet was already running",
        ),
        (
            pause is not None and pause.by_person,
            ReleaseReason.PAUSED,
            pause.why if pause else "",
        ),
        (gate.phase is Phase.OPEN and not holds, ReleaseReason.OPEN, f"stable: {gate.why}"),
        (gate.phase is Phase.NOT_APPLICABLE, ReleaseReason.NOT_APPLICABLE, gate.why),
        (diagnosis.scope is Scope.LATE_DRIVER, ReleaseReason.DRIVER_NOT_ON_HOST, gate.why),
        (
            gate.phase is Phase.BLOCKED,
            ReleaseReason.CANNOT_HEAL,
            f"waiting cannot heal it: {gate.why}",
        ),
        (
            now >= gate.deadline_at,
            ReleaseReason.DEADLINE,
            f"the deadline is over while {gate.phase.value}: {holds or gate.why}",
        ),
    )
    return next((Release(why, kind) for fits, kind, why in lines if fits), None)


def _actions(
    gate: Gate, diagnosis: Diagnosis, now: float, settings: Settings, release: Release | None
) -> tuple[Action, ...]:
    actions: list[Action] = []
    if not diagnosis.paused:
        actions += diagnosis.additive
        if diagnosis.access_check is not None:
            actions.append(diagnosis.access_check)
        if diagnosis.allow is not None:
            actions.append(diagnosis.allow)
    if release and not diagnosis.released_before:
        actions.append(release)
    if not keeps_probe(gate, diagnosis):
        actions.append(DropProbe(forget=not diagnosis.may_probe))
    known = tuple(sorted({*diagnosis.learned, *diagnosis.expected}))
    if gate.phase is Phase.OPEN and known != diagnosis.learned:
        actions.append(Learn(known))
    if (
        wants_probe(gate, diagnosis)
        and not diagnosis.probe_busy
        and now >= probe_due(gate, diagnosis, settings)
    ):
        actions.append(StartProbe(overlap=not gate.released and gate.good < settings.stable_probes))
    return tuple(actions)
