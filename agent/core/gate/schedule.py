"""When is NVML asked again, and when is the next look due? Deadlines go out as instants of
boottime."""

from __future__ import annotations

from ...model.finding import Diagnosis
from ...model.settings import Settings
from ...model.snapshot import ProbeEnd
from ..plugin import repair as repair_facts
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
    if (
        diagnosis.fabric
        and gate.validated_at is not None
        and gate.phase in (Phase.WAITING, Phase.BLOCKED)
    ):
        return gate.validated_at + (FABRIC_S if gate.phase is Phase.WAITING else MAX_BACKOFF_S)
    if (
        diagnosis.held and gate.phase is Phase.BLOCKED and diagnosis.report
    ):  # nothing new is to be learned from NVML
        return max(gate.probe_after, diagnosis.report.started_at + MAX_BACKOFF_S)
    disturbed = gate.validated_at is not None and diagnosis.disturbed_at > gate.validated_at
    if gate.validated_at is not None and (gate.phase is Phase.REVALIDATING or disturbed):
        return gate.validated_at + settings.stable_interval_s
    if (
        diagnosis.mig_instances
        and gate.asked_for not in ("", diagnosis.mig_instances)
        and gate.validated_at
    ):
        return min(
            gate.probe_after, gate.validated_at + settings.stable_interval_s
        )  # made or destroyed by hand
    if (
        gate.repair.acting and gate.validated_at is not None
    ):  # is NVML well while the plugin starts afresh?
        return min(gate.probe_after, gate.validated_at + DOUBT_S)
    registered = diagnosis.registered
    partly = registered is not None and registered.reason == "PartlyRegistered"
    if gate.phase in (Phase.OPEN, Phase.BLOCKED) and partly and gate.validated_at:
        return min(gate.probe_after, gate.validated_at + settings.heartbeat_s)  # a GPU may be lost
    return gate.probe_after


def wake_at(gate: Gate, diagnosis: Diagnosis, now: float, settings: Settings) -> float:
    instants = [now + settings.heartbeat_s]
    if not gate.released:
        instants.append(gate.deadline_at)
        if not diagnosis.may_probe:
            instants.append(now + REFUSED_S)
    elif not diagnosis.released_before:  # the mark is not there yet
        instants.append(now + UNREADY_S)
    if diagnosis.access_due is not None:
        instants.append(diagnosis.access_due)
    if wants_probe(gate, diagnosis) and not diagnosis.probe_busy:
        instants.append(probe_due(gate, diagnosis, settings))
    if diagnosis.paused and diagnosis.paused.until is not None:
        instants.append(diagnosis.paused.until)
    if gate.doubt and gate.phase is not Phase.BLOCKED:
        instants.append(gate.doubt_since + HOLD_AFTER_S)
    if gate.fabric_since is not None:
        instants.append(gate.fabric_since + settings.fabric_within_s)
    if gate.phase is Phase.REVALIDATING:
        instants.append(diagnosis.disturbed_at + stands_for_s(gate, settings) + 0.01)
    broken = diagnosis.first_broken()
    if (
        gate.phase in (Phase.OPEN, Phase.REVALIDATING, Phase.BLOCKED)
        and not gate.ready
        and gate.good
        and (broken is None or broken.link != 6 or gate.listed < AGREE)
    ):  # a CDI spec that is written wakes us
        instants.append(now + _listens_again_s(gate, diagnosis, now, settings))
    return max(now, min(i for i in instants if i > now or i == instants[0]))


def _listens_again_s(gate: Gate, diagnosis: Diagnosis, now: float, settings: Settings) -> float:
    """Until the kubelet is asked again by a node that is not ready. It sends no signal when a
    plugin registers, but it writes its checkpoint, which does wake us: the longer nothing comes,
    the more rarely."""
    kubelet_since = diagnosis.repair_facts.kubelet_since if diagnosis.repair_facts else 0.0
    # An answer that was given a second time says nothing of what woke us.
    is_old = diagnosis.registered_at == gate.answered_at > 0.0
    if 0 < gate.listed < AGREE or now < kubelet_since + repair_facts.QUICK_S or is_old:
        return repair_facts.AGAIN_S
    least_s = HELD_S if gate.phase is Phase.BLOCKED else UNREADY_S
    return min(settings.heartbeat_s, max(least_s, (now - gate.unready_since) / 10))
