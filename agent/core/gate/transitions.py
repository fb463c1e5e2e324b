"""The gate: phases, and the one function that moves between them.

Everything that affects a phase, the release of the kubelet or readiness is in this file, and the
rest of the program may not know it. step() is pure: `now` comes in, deadlines go out as `wake_at`.

Three values, never one:
* phase     where the host's GPUs stand;
* released  the kubelet may start; once released, released for this boot;
* ready     GPU work may start.
"""

from __future__ import annotations

from dataclasses import replace

from ...model.actions import Action, DropProbe, Learn, Release, StartProbe
from ...model.finding import Diagnosis, Finding, Heals, Scope, Verdict
from ...model.settings import Settings
from ...model.snapshot import ProbeEnd
from ..plugin import launch as launching
from ..plugin import repair as repair_facts
from .deadline import hold_limit_s
from .readiness import explain_unready, record_troubles
from .schedule import (
    AGREE,
    DOUBT_S,
    HOLD_AFTER_S,
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
    phase, why, reason = _phase(moved, diagnosis, settings, now)
    moved, mended = _mend(moved, diagnosis, phase, now, settings)
    launched = launching.step(
        moved.launch, diagnosis, moved.open_since if phase is Phase.OPEN else None, now
    )
    phase, why, reason = _with_mend(moved, bool(gate.repair.acting), phase, why, reason)
    if phase is not moved.phase:
        moved = replace(moved, phase=phase, since=now)
    moved = replace(moved, why=why, reason=reason, launch=launched.launch)
    word, released = _released(moved, diagnosis, now, launched.holds)
    moved = replace(moved, released=released)
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
    actions = _actions(moved, diagnosis, now, settings, word) + launched.actions + mended.actions
    wakes = [
        wake_at(moved, diagnosis, now, settings),
        *(max(now, w) for w in (mended.wake_at, launched.wake_at) if w is not None),
    ]
    if any(isinstance(action, StartProbe) for action in actions):
        moved = replace(moved, asked_for=diagnosis.mig_instances)
    return Step(replace(moved, answered_at=diagnosis.registered_at), actions, min(wakes))


def _mend(
    gate: Gate, diagnosis: Diagnosis, phase: Phase, now: float, settings: Settings
) -> tuple[Gate, repair_facts.RepairStep]:
    """Count the kubelet's answers, then let the mender decide, who may act only while NVML is
    stable."""
    stable = gate.good >= settings.stable_probes
    gate = replace(
        gate,
        open_since=(gate.open_since if gate.open_since is not None else now) if stable else None,
    )
    registered, fault = (
        diagnosis.registered,
        diagnosis.repair_facts.fault if diagnosis.repair_facts else None,
    )
    if (
        fault is not None and fault.access_denied
    ):  # what it offers is of no use, and no later look may count it
        gate = replace(gate, listed=0, listed_at=diagnosis.registered_at)
    elif registered is None or registered.verdict is not Verdict.HOLDS:
        gate = replace(gate, listed=0)
    elif diagnosis.registered_at > gate.listed_at:
        gate = replace(gate, listed=gate.listed + 1, listed_at=diagnosis.registered_at)
    open_since = gate.open_since if phase is Phase.OPEN else None
    mended = repair_facts.step(gate.repair, diagnosis, open_since, gate.listed, now, settings)
    report = diagnosis.report
    if (
        mended.repair.acting
        and not gate.repair.acting
        and report is not None
        and report.ended_at < now - DOUBT_S
    ):
        # NVML itself may be the plugin's trouble, and was asked long ago.
        gate, mended = (
            replace(gate, probe_after=now),
            repair_facts.RepairStep(gate.repair, wake_at=now + repair_facts.AGREE_S),
        )
    return replace(gate, repair=mended.repair), mended


def _with_mend(
    gate: Gate, was_acting: bool, phase: Phase, why: str, reason: str
) -> tuple[Phase, str, str]:
    """REPAIRING is said once the hand did begin: it may refuse."""
    if phase not in (Phase.OPEN, Phase.REVALIDATING):
        return phase, why, reason
    if gate.repair.acting and was_acting:
        return (
            Phase.REPAIRING,
            f"the device plugin is being started afresh ({gate.repair.acting}); the kubelet's "
            "word is awaited",
            "Repairing",
        )
    if gate.repair.held and phase is Phase.OPEN:
        return Phase.BLOCKED, gate.repair.held, gate.repair.held_reason
    return phase, why, reason


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
    nvml = _of_link(diagnosis, 5)
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
    finding = _of_link(diagnosis, 5)
    return (
        finding is not None and finding.verdict is Verdict.FAILS and finding.heals is not Heals.SOON
    )


def _of_link(diagnosis: Diagnosis, link: int) -> Finding | None:
    return next((f for f in diagnosis.findings if f.link == link and f.blocks), None)


def _deadline(gate: Gate, diagnosis: Diagnosis, now: float, settings: Settings) -> float:
    """When the kubelet starts whatever is known; counted from the wait unit's start, or from ours.
    A mark that does not lie in the past is none: it must not hold anybody longer."""
    waiting = diagnosis.waiting_since
    origin = waiting if waiting is not None and 0.0 < waiting <= now else gate.started_at
    return origin + hold_limit_s(settings, diagnosis.control_plane)


def _phase(
    gate: Gate, diagnosis: Diagnosis, settings: Settings, now: float
) -> tuple[Phase, str, str]:
    """The table: the first line that fits."""
    if diagnosis.held and now >= gate.doubt_since + HOLD_AFTER_S:
        return Phase.BLOCKED, _with_remedy(diagnosis.held), diagnosis.held.reason
    if diagnosis.scope is Scope.NONE:
        return Phase.NOT_APPLICABLE, diagnosis.scope_because, "NoGpuForContainers"
    if not diagnosis.may_probe:
        first = next(
            (
                f
                for f in diagnosis.findings
                if f.link <= 2 and f.blocks and f.verdict is not Verdict.HOLDS
            ),
            None,
        )
        return (
            Phase.WAITING,
            first.because if first else diagnosis.scope_because,
            first.reason if first else "DriverUnknown",
        )
    earlier = next(
        (
            f
            for f in diagnosis.findings
            if f.link == 1 and f.blocks and f.verdict is not Verdict.HOLDS
        ),
        None,
    )
    if earlier and gate.hopeless < AGREE:
        return Phase.WAITING, earlier.because, earlier.reason
    nvml = _of_link(diagnosis, 5)
    because, reason = (nvml.because, nvml.reason) if nvml else ("NVML was not asked", "NotProbed")
    if gate.hopeless >= AGREE:
        return Phase.BLOCKED, _with_remedy(nvml) if nvml else because, reason
    if gate.good >= settings.stable_probes:
        return _stable_phase(gate, diagnosis, settings, now)
    if gate.good > 0:
        return (
            Phase.SETTLING,
            f"{because}: {gate.good} of {settings.stable_probes} equal probes",
            "Settling",
        )
    nodes = _of_link(diagnosis, 3)
    if nvml and nvml.verdict is Verdict.HOLDS:
        if nodes and nodes.verdict is not Verdict.HOLDS:
            return Phase.WAITING, nodes.because, nodes.reason
        return Phase.PROBING, f"{because}; a fresh probe is awaited", "Probing"
    return Phase.PROBING, because, reason or "Probing"


def _stable_phase(
    gate: Gate, diagnosis: Diagnosis, settings: Settings, now: float
) -> tuple[Phase, str, str]:
    """Of a set that enough probes saw: what may still stand between it and OPEN."""
    nvml = _of_link(diagnosis, 5)
    because, reason = (nvml.because, nvml.reason) if nvml else ("NVML was not asked", "NotProbed")
    disturbed = gate.validated_at is not None and diagnosis.disturbed_at > gate.validated_at
    nodes = next(
        (
            f
            for f in diagnosis.findings
            if f.link == 3 and f.blocks and f.verdict is not Verdict.HOLDS
        ),
        None,
    )
    if nodes:
        return Phase.WAITING, nodes.because, nodes.reason
    if nvml and nvml.verdict is Verdict.FAILS:
        return Phase.REVALIDATING, because, reason
    if diagnosis.fabric and gate.fabric_since is not None:
        if now < gate.fabric_since + settings.fabric_within_s:
            return Phase.WAITING, diagnosis.fabric.because, diagnosis.fabric.reason
        if diagnosis.fabric.blocks:
            return Phase.BLOCKED, _with_remedy(diagnosis.fabric), diagnosis.fabric.reason
    if disturbed:
        return (
            Phase.REVALIDATING,
            f"{diagnosis.disturbed_by} {now - diagnosis.disturbed_at:.0f} s ago is newer "
            "than the last validation",
            "Revalidating",
        )
    return Phase.OPEN, because, ""


def _with_remedy(finding: Finding) -> str:
    return f"{finding.because}; next step: {finding.next_step}"


def _released(gate: Gate, diagnosis: Diagnosis, now: float, holds: str) -> tuple[str, str]:
    """(word, sentence) of why the kubelet may start; ("", "") while it may not. `holds`: what an
    open gate still waits for, for some seconds."""
    if gate.released:
        return "Before", gate.released
    if diagnosis.released_before:
        return "Before", diagnosis.released_before
    if diagnosis.kubelet_active:
        return "KubeletActive", "the kubelet was already running"
    if diagnosis.paused and diagnosis.paused.by_person:
        return "Paused", diagnosis.paused.why
    if gate.phase is Phase.OPEN and not holds:
        return "Open", f"stable: {gate.why}"
    if gate.phase is Phase.NOT_APPLICABLE:
        return "NotApplicable", gate.why
    if diagnosis.scope is Scope.LATE_DRIVER:
        return "DriverNotOnHost", gate.why
    if gate.phase is Phase.BLOCKED:
        return "CannotHeal", f"waiting cannot heal it: {gate.why}"
    if now >= gate.deadline_at:
        return "Deadline", f"the deadline is over while {gate.phase.value}: {holds or gate.why}"
    return "", ""


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
    gate: Gate, diagnosis: Diagnosis, now: float, settings: Settings, word: str
) -> tuple[Action, ...]:
    actions: list[Action] = []
    if not diagnosis.paused:
        actions += diagnosis.additive
        if diagnosis.access_check is not None:
            actions.append(diagnosis.access_check)
        if diagnosis.allow is not None:
            actions.append(diagnosis.allow)
    if gate.released and not diagnosis.released_before:
        actions.append(Release(gate.released, word))
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
