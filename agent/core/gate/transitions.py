"""The gate: phases, and the one function that moves between them.

Everything that affects a phase, the release of the kubelet or readiness is in this room, and the
rest of the program may not know it. phases.py is the table of phases. step() is pure: `now` comes
in, deadlines go out as `wake_at`.

Three values, never one:
* phase     where the host's GPUs stand;
* released  the kubelet may start; once released, released for this boot;
* ready     GPU work may start.
"""

from __future__ import annotations

from dataclasses import replace

from ...model.actions import Action, DropProbe, Learn, Release, StartProbe
from ...model.condition import Condition
from ...model.finding import Diagnosis, Finding, Heals, Scope, Verdict
from ...model.reason import ReleaseReason
from ...model.settings import Settings
from ...model.snapshot import ProbeEnd
from ..plugin import launch as launching
from ..plugin import repair
from .deadline import hold_limit_s
from .phases import Situation, phase_of, with_repair
from .readiness import explain_unready, record_troubles
from .schedule import (
    AGREE,
    DOUBT_S,
    backoff,
    keeps_probe,
    probe_due,
    stands_for_s,
    wake_at,
    wants_probe,
)
from .states import Gate, Phase, Step

STALE_S = 150.0
"""the kubelet's answer is good for so long: a quiet node asks every fourth heartbeat, one whose
looks stall never"""


def step(gate: Gate, diagnosis: Diagnosis, now: float, settings: Settings) -> Step:
    """Judge what was seen, move, and say what is to be done."""
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
    ready, ready_why = _ready(moved, diagnosis, now, settings)
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
    stable = gate.good >= settings.stable_probes
    gate = replace(
        gate,
        open_since=(gate.open_since if gate.open_since is not None else now) if stable else None,
    )
    registered, facts = diagnosis.registered, diagnosis.repair_facts
    fault = facts.fault if facts else None
    if fault is not None and fault.access_denied:
        # What it offers is of no use, and no later answer may count.
        gate = replace(gate, listed=0, listed_at=diagnosis.registered_at)
    elif registered is None or registered.verdict is not Verdict.HOLDS:
        gate = replace(gate, listed=0)
    elif diagnosis.registered_at > gate.listed_at:
        gate = replace(gate, listed=gate.listed + 1, listed_at=diagnosis.registered_at)
    open_since = gate.open_since if phase is Phase.OPEN else None
    repaired = repair.step(gate.repair, diagnosis, open_since, gate.listed, now, settings)
    report = diagnosis.report
    if (
        repaired.repair.acting
        and not gate.repair.acting
        and report is not None
        and report.ended_at < now - DOUBT_S
    ):
        # NVML itself may be the plugin's trouble, and was asked long ago.
        gate, repaired = (
            replace(gate, probe_after=now),
            repair.RepairStep(gate.repair, wake_at=now + repair.AGREE_S),
        )
    return replace(gate, repair=repaired.repair), repaired


def _notice(gate: Gate, diagnosis: Diagnosis, now: float) -> Gate:
    """Since when: a cause that would hold, a fabric that is awaited."""
    doubt = diagnosis.held.reason if diagnosis.held else ""
    if doubt != gate.doubt:
        gate = replace(gate, doubt=doubt, doubt_since=now)
    if diagnosis.fabric is None:
        return replace(gate, fabric_since=None)
    if gate.fabric_since is not None:
        return gate
    waited = (
        diagnosis.released_before and gate.validated_at is None
    )  # by an earlier agent of this boot
    return replace(gate, fabric_since=0.0 if waited else now)


def _forget(gate: Gate, diagnosis: Diagnosis, now: float) -> Gate:
    """What earlier probes said does not outlive the driver they asked, nor the readings they were
    made of."""
    if gate.paused and not diagnosis.paused:  # whatever was done meanwhile was done to be seen
        gate = replace(gate, probe_after=now)
    reloaded = (
        gate.loaded_at < diagnosis.driver_loaded_at
    )  # unloaded and loaded again between two looks
    asked_before = (
        diagnosis.report is not None and diagnosis.report.started_at < diagnosis.driver_loaded_at
    )
    gate = replace(gate, loaded_at=diagnosis.driver_loaded_at)
    if gate.good == gate.hopeless == gate.failures == 0:
        return gate
    differs = (
        bool(diagnosis.fingerprint)
        and bool(gate.fingerprint)
        and diagnosis.fingerprint != gate.fingerprint
    )
    if (
        diagnosis.may_probe
        and diagnosis.scope is not Scope.NONE
        and not differs
        and not (reloaded and asked_before)
    ):
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


def _count(gate: Gate, diagnosis: Diagnosis, now: float, settings: Settings) -> Gate:
    """Judge the last probe, once. Only a difference between readings starts the count again."""
    report = diagnosis.report
    if report is None or report.number == gate.counted:
        return gate
    in_a_row = (
        report.number == gate.counted + 1
    )  # else a look was missed, and with it a probe nobody judged
    gate = replace(gate, counted=report.number)
    if report.end is ProbeEnd.ANSWERED:
        gate = replace(gate, slowest_s=max(gate.slowest_s, report.ended_at - report.started_at))
    if diagnosis.fingerprint:
        same = in_a_row and diagnosis.fingerprint == gate.fingerprint
        good = gate.good + 1 if same else 1
        done = good >= settings.stable_probes
        return replace(
            gate,
            good=good,
            fingerprint=diagnosis.fingerprint,
            hopeless=0,
            failures=0,
            failing_since=None,
            validated_at=report.started_at if done else None,
            probe_after=now + settings.probe_interval_s
            if done
            else report.started_at + settings.stable_interval_s,
        )
    failures = gate.failures + 1
    since = gate.failing_since if gate.failing_since is not None else now
    hopeless = gate.hopeless + 1 if _is_hopeless(diagnosis) else 0
    nvml = diagnosis.get(Condition.NVML_COMPLETE)
    if (
        diagnosis.repair_facts is not None and nvml is not None and nvml.verdict is Verdict.FAILS
    ):  # not a /dev unread
        gate = replace(gate, repair=replace(gate.repair, bad_probe_at=now))
    pause = backoff(settings, failures, now - since, report.end is ProbeEnd.HUNG, hopeless)
    return replace(
        gate,
        good=0,
        fingerprint="",
        validated_at=None,
        failures=failures,
        failing_since=since,
        hopeless=hopeless,
        probe_after=now + pause,
    )


def _is_hopeless(diagnosis: Diagnosis) -> bool:
    finding = diagnosis.get(Condition.NVML_COMPLETE)
    return (
        finding is not None and finding.verdict is Verdict.FAILS and finding.heals is not Heals.SOON
    )


def _deadline(gate: Gate, diagnosis: Diagnosis, now: float, settings: Settings) -> float:
    """When the kubelet starts whatever is known; counted from the wait unit's start, or from ours.
    A mark that does not lie in the past is none: it must not hold anybody longer."""
    waiting = diagnosis.waiting_since
    origin = waiting if waiting is not None and 0.0 < waiting <= now else gate.started_at
    return origin + hold_limit_s(settings, diagnosis.control_plane)


def _with_remedy(finding: Finding) -> str:
    return f"{finding.because}; next step: {finding.next_step}"


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


def _ready(gate: Gate, diagnosis: Diagnosis, now: float, settings: Settings) -> tuple[bool, str]:
    """(ready, why or why not)."""
    if gate.phase is Phase.NOT_APPLICABLE:
        broken = diagnosis.first_broken(own=True)
        return (False, broken.because) if broken else (True, gate.why)
    if gate.phase is Phase.REVALIDATING:
        if diagnosis.paused:
            return False, f"not validated since {diagnosis.disturbed_by}"
        if now > diagnosis.disturbed_at + stands_for_s(gate, settings):
            return (
                False,
                f"no verdict for {now - diagnosis.disturbed_at:.0f} s after "
                f"{diagnosis.disturbed_by}",
            )
    elif gate.phase is not Phase.OPEN:
        return False, gate.why
    broken, registered = diagnosis.first_broken(own=True), diagnosis.registered
    if broken and broken != registered:
        return False, broken.because
    if registered and registered.verdict is not Verdict.HOLDS:
        return False, explain_unready(registered, diagnosis)
    if registered and gate.listed < AGREE:
        return False, f"{registered.because}, once so far"
    if registered and now - diagnosis.registered_at > STALE_S:
        return (
            False,
            f"{registered.because}, but that was {now - diagnosis.registered_at:.0f} s ago",
        )
    return True, registered.because if registered else gate.why


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
