"""When the next probe and the next cycle are due. Instants are boottime, seconds."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ...model.condition import Link
from ...model.finding import Diagnosis
from ...model.reason import Reason
from ...model.settings import Settings
from ...model.snapshot import ProbeEnd
from ..plugin import repair
from .states import Gate, Phase

AGREE = 2
"""Fresh probes in a row that must agree before a cause counts as one that waiting cannot heal, and
answers of the kubelet before the node is ready."""
HOLD_AFTER_S = 1.0
"A cause that is known without NVML must last so long before it blocks."
REFUSED_S = 5.0
"""A module that the kernel refuses sends no signal: a kubelet that waits must not wait a heartbeat
for it."""
FABRIC_S = 2.0
"Between probes while the fabric is awaited."
FIRST_FAILURES_S = 60.0
"""Failing probes repeat at the stable interval for so long, then ever more rarely: each costs the
driver work."""
MAX_BACKOFF_S = 60.0
UNREADY_S = 2.0
HELD_S = 10.0
"""The shortest time between two cycles of a node that is not ready, and of one that needs an
operator."""
DOUBT_S = 10.0
"The oldest probe that a repair may rely on, and the time between probes while one is under way."


def backoff(
    settings: Settings, failures: int, failing_for_s: float, hung: bool, hopeless: int
) -> float:
    """Seconds until the next probe: few at first, because a boot is short; more later, because a
    failed init costs the driver work.

    `hung`: the last probe did not answer. `hopeless`: probes in a row whose cause waiting cannot
    heal."""
    if hopeless >= AGREE:
        return MAX_BACKOFF_S
    if hung:
        return min(MAX_BACKOFF_S, 5.0 * float(2 ** min(failures - 1, 4)))
    if failing_for_s < FIRST_FAILURES_S:
        return settings.stable_interval_s
    late = failing_for_s - FIRST_FAILURES_S
    return min(MAX_BACKOFF_S, max(settings.stable_interval_s, late / 4))


def stands_for_s(gate: Gate, settings: Settings) -> float:
    """Seconds that the last verdict stands. A driver without persistence answers slowly, and the
    probe that was under way when the reload came does not count. The slowest probe counts, not the
    last: a driver that others keep initialised answers at once."""
    return max(settings.revalidate_s, 2.0 * gate.slowest_s + settings.stable_interval_s + 1.0)


def keeps_probe(gate: Gate, diagnosis: Diagnosis) -> bool:
    """True to keep the last probe's process until the next one is done: only while the kubelet
    waits, and only of a driver that answered."""
    settling = gate.phase in (Phase.WAITING, Phase.PROBING, Phase.SETTLING) and not gate.released
    answered = diagnosis.report is not None and diagnosis.report.end is ProbeEnd.ANSWERED
    return settling and answered and diagnosis.may_probe and not diagnosis.paused


def wants_probe(gate: Gate, diagnosis: Diagnosis) -> bool:
    return diagnosis.may_probe and not diagnosis.paused and gate.phase is not Phase.NOT_APPLICABLE


def probe_due(gate: Gate, diagnosis: Diagnosis, settings: Settings) -> float:
    return max(_probe_due(gate, diagnosis, settings), diagnosis.rests_until)


def _probe_due(gate: Gate, diagnosis: Diagnosis, settings: Settings) -> float:
    validated_at = gate.validated_at
    if validated_at is None:
        return _due_before_validation(gate, diagnosis)
    if diagnosis.fabric and gate.phase is Phase.WAITING:
        return validated_at + FABRIC_S
    if diagnosis.fabric and gate.phase is Phase.BLOCKED:
        return validated_at + MAX_BACKOFF_S
    if _is_blocked_without_nvml(gate, diagnosis):
        return _due_before_validation(gate, diagnosis)
    if gate.phase is Phase.REVALIDATING or diagnosis.disturbed_at > validated_at:
        return validated_at + settings.stable_interval_s
    return min(gate.probe_after, validated_at + _doubted_within_s(gate, diagnosis, settings))


def _is_blocked_without_nvml(gate: Gate, diagnosis: Diagnosis) -> bool:
    return diagnosis.held is not None and gate.phase is Phase.BLOCKED


def _due_before_validation(gate: Gate, diagnosis: Diagnosis) -> float:
    if _is_blocked_without_nvml(gate, diagnosis) and diagnosis.report:
        # Nothing new is to be learned from NVML.
        return max(gate.probe_after, diagnosis.report.started_at + MAX_BACKOFF_S)
    return gate.probe_after


def _doubted_within_s(gate: Gate, diagnosis: Diagnosis, settings: Settings) -> float:
    """Seconds after the last validation at which something gives reason to ask again."""
    if diagnosis.mig_instances and gate.asked_for not in ("", diagnosis.mig_instances):
        return settings.stable_interval_s  # somebody made or destroyed MIG instances
    if gate.repair.acting:
        return DOUBT_S  # is NVML healthy while the plugin restarts?
    registered = diagnosis.registered
    is_partly = registered is not None and registered.reason is Reason.PARTLY_REGISTERED
    if is_partly and gate.phase in (Phase.OPEN, Phase.BLOCKED):
        return settings.heartbeat_s  # a GPU may be lost
    return math.inf


def wake_at(gate: Gate, diagnosis: Diagnosis, now: float, settings: Settings) -> float:
    """When the next cycle is due at the latest: boottime, seconds."""
    instants = [
        *_release_instants(gate, diagnosis, now),
        *_probe_instants(gate, diagnosis, settings),
        diagnosis.access_due,
        diagnosis.paused.until if diagnosis.paused else None,
        now + _asks_kubelet_within_s(gate, diagnosis, now, settings),
    ]
    heartbeat = now + settings.heartbeat_s
    return max(now, min([heartbeat, *(i for i in instants if i is not None and i > now)]))


def _release_instants(gate: Gate, diagnosis: Diagnosis, now: float) -> Iterator[float]:
    if not gate.released:
        yield gate.deadline_at
        if not diagnosis.may_probe:
            yield now + REFUSED_S
    elif not diagnosis.released_before:  # the mark is not there yet
        yield now + UNREADY_S


def _probe_instants(gate: Gate, diagnosis: Diagnosis, settings: Settings) -> Iterator[float]:
    if wants_probe(gate, diagnosis) and not diagnosis.probe_busy:
        yield probe_due(gate, diagnosis, settings)
    if gate.doubt and gate.phase is not Phase.BLOCKED:
        yield gate.doubt_since + HOLD_AFTER_S
    if gate.fabric_since is not None:
        yield gate.fabric_since + settings.fabric_within_s
    if gate.phase is Phase.REVALIDATING:
        yield diagnosis.disturbed_at + stands_for_s(gate, settings) + 0.01


def _asks_kubelet_within_s(
    gate: Gate, diagnosis: Diagnosis, now: float, settings: Settings
) -> float:
    """Only a node that is not ready asks more often than at every heartbeat."""
    broken = diagnosis.first_broken()
    # A CDI spec that is written is a folder's event.
    awaits_a_spec = broken is not None and broken.link is Link.RUNTIME and gate.listed >= AGREE
    may_become_ready = gate.phase in (Phase.OPEN, Phase.REVALIDATING, Phase.BLOCKED)
    if gate.ready or not gate.good or not may_become_ready or awaits_a_spec:
        return math.inf
    return _listens_again_s(gate, diagnosis, now, settings)


def _listens_again_s(gate: Gate, diagnosis: Diagnosis, now: float, settings: Settings) -> float:
    """Seconds until a node that is not ready asks the kubelet again. The kubelet sends no signal
    when a plugin registers, but it writes its checkpoint, which wakes the agent: the interval grows
    while nothing comes."""
    kubelet_since = diagnosis.repair_facts.kubelet_since if diagnosis.repair_facts else 0.0
    # An answer that was reused does not show what woke the agent.
    is_old = diagnosis.registered_at == gate.answered_at > 0.0
    if 0 < gate.listed < AGREE or now < kubelet_since + repair.QUICK_S or is_old:
        return repair.AGAIN_S
    least_s = HELD_S if gate.phase is Phase.BLOCKED else UNREADY_S
    return min(settings.heartbeat_s, max(least_s, (now - gate.unready_since) / 10))
