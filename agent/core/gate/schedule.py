"""When is NVML asked again, and when is the next look due? Deadlines go out as instants of
boottime."""

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
"looks at fresh probes that must agree before a cause counts as one that waiting cannot heal"
HOLD_AFTER_S = 1.0
"a cause that is known without NVML must be seen for so long before it holds"
REFUSED_S = 5.0
"""a module that the kernel refuses sends no signal: a kubelet that waits is not to wait a heartbeat
for that"""
FABRIC_S = 2.0
"between probes while the fabric is awaited"
FIRST_FAILURES_S = 60.0
"""failing probes are repeated at the stable interval for so long, then ever more rarely: each costs
the driver work"""
MAX_BACKOFF_S = 60.0
UNREADY_S = 2.0
HELD_S = 10.0
"""the shortest time between two looks at a node that is not ready, and at one where a person is
needed"""
DOUBT_S = 10.0
"NVML's word may be so old where a repair is made; and it is asked so often while one settles"


def backoff(
    settings: Settings, failures: int, failing_for_s: float, hung: bool, hopeless: int
) -> float:
    """Seconds until the next probe: soon at first, a boot is short; rarely later, a failed init is
    not free."""
    if hopeless >= AGREE:
        return MAX_BACKOFF_S
    if hung:
        return min(MAX_BACKOFF_S, 5.0 * float(2 ** min(failures - 1, 4)))
    if failing_for_s < FIRST_FAILURES_S:
        return settings.stable_interval_s
    late = failing_for_s - FIRST_FAILURES_S
    return min(MAX_BACKOFF_S, max(settings.stable_interval_s, late / 4))


def stands_for_s(gate: Gate, settings: Settings) -> float:
    """How long the last verdict stands, in seconds: a driver without persistence answers slowly,
    and the probe that was under way when the reload came does not count. One that others keep awake
    answers at once: the slowest probe counts, not the last."""
    return max(settings.revalidate_s, 2.0 * gate.slowest_s + settings.stable_interval_s + 1.0)


def keeps_probe(gate: Gate, diagnosis: Diagnosis) -> bool:
    """Keep the last probe's process until the next one is done: only while the kubelet waits, and
    only of a driver that came up."""
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
        return DOUBT_S  # is NVML well while the plugin starts afresh?
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
    """Until the kubelet is asked again by a node that is not ready. It sends no signal when a
    plugin registers, but it writes its checkpoint, which does wake us: the longer nothing comes,
    the more rarely."""
    kubelet_since = diagnosis.repair_facts.kubelet_since if diagnosis.repair_facts else 0.0
    # An answer that was given a second time says nothing of what woke us.
    is_old = diagnosis.registered_at == gate.answered_at > 0.0
    if 0 < gate.listed < AGREE or now < kubelet_since + repair.QUICK_S or is_old:
        return repair.AGAIN_S
    least_s = HELD_S if gate.phase is Phase.BLOCKED else UNREADY_S
    return min(settings.heartbeat_s, max(least_s, (now - gate.unready_since) / 10))
