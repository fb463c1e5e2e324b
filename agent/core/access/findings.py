"""Link 12: may the containers that hold GPUs open them, now and after the next daemon-reload?"""

from __future__ import annotations

from collections.abc import Sequence

from ...model.access import CurrentAccess, GivenDevice, GpuContainer, ReloadRisk
from ...model.actions import CheckAccess, GrantDevices, ScopeGrant
from ...model.condition import Condition, Link
from ...model.finding import Finding, Heals, Verdict
from ...model.reading import Refusal, Seen, Why
from ...model.reason import Reason
from ...model.settings import Settings
from ...model.snapshot import Snapshot
from ..common.paths import ALLOW_STOPPED, RUN
from ..gpu import kernel_events as kernel_log
from . import containers
from . import grants as allow
from .containers import View
from .holders import at, scope_of

NAMED = 3
"containers named in a finding's sentence; gpu-gate access lists all"
AFTER_RELOAD_S = 5.0
"a second look after a reload: hooks and runtimes may still be at work"
UNREAD_S = 1.0
"containers whose status the runtime did not give in time are asked for again after so long"


def findings(
    snapshot: Snapshot, settings: Settings, holders: Sequence[GpuContainer]
) -> tuple[Finding, ...]:
    processes = snapshot.workloads.processes
    if isinstance(processes, Refusal):
        # A node that was not asked (no driver yet, no runtime, which link 8 tells) has no finding.
        return (
            (
                Finding(
                    Link.WORKLOADS,
                    Condition.WORKLOAD_ACCESS,
                    Verdict.UNKNOWN,
                    f"the processes of running containers could not be read ({processes})",
                    Reason.ACCESS_UNKNOWN,
                    blocks=False,
                    next_step="as root: gpu-gate access",
                ),
            )
            if processes.is_telling or processes.why is Why.NOT_PERMITTED
            else ()
        )
    if not holders:
        return ()
    return (
        _now(snapshot, settings, holders),
        *_next(settings, holders),
        *_stopped(snapshot),
        *_older(snapshot, settings, holders),
    )


def _now(snapshot: Snapshot, settings: Settings, holders: Sequence[GpuContainer]) -> Finding:
    denied = [h for h in holders if h.denied]
    if denied:
        return _denied(snapshot, settings, denied, holders)
    unknown = [h for h in holders if _unknown_devices(h)]
    if unknown:
        return _unknown(unknown, holders)
    unheard = ""
    allocations = snapshot.workloads.allocations
    if isinstance(allocations, Refusal):
        unheard = f" (the kubelet did not report whom it allocated GPUs to: {allocations})"
    return Finding(
        Link.WORKLOADS,
        Condition.WORKLOAD_ACCESS,
        Verdict.HOLDS,
        f"{containers.number(len(holders))} with GPUs may open what was given{unheard}",
        blocks=False,
    )


def _unknown_devices(holder: GpuContainer) -> list[GivenDevice]:
    return [d for d in holder.devices if d.access is CurrentAccess.UNKNOWN]


def _denied(
    snapshot: Snapshot,
    settings: Settings,
    denied: list[GpuContainer],
    holders: Sequence[GpuContainer],
) -> Finding:
    def one(holder: GpuContainer) -> str:
        devices = ", ".join(d.name for d in holder.denied)
        since = at(snapshot, _since(holder))
        return f"{who(holder)} ({devices}) since {since}, {holder.loss_why}"

    named = "; ".join(map(one, denied[:NAMED])) + _more(denied)
    return Finding(
        Link.WORKLOADS,
        Condition.WORKLOAD_ACCESS,
        Verdict.FAILS,
        f"{_count(denied, holders)} may not open what was given: {named}",
        Reason.ACCESS_DENIED,
        tuple(f"{who(h)} {d.name}" for h in denied for d in h.denied)[:64],
        Heals.CONFIGURATION,
        "gpu-gate access; " + denied[0].cure,
        blocks=settings.strict_access,
    )


def _unknown(unknown: list[GpuContainer], holders: Sequence[GpuContainer]) -> Finding:
    named = ", ".join(who(h) for h in unknown[:NAMED]) + _more(unknown)
    return Finding(
        Link.WORKLOADS,
        Condition.WORKLOAD_ACCESS,
        Verdict.UNKNOWN,
        f"of {_count(unknown, holders)} it is not known whether they may open what was given: "
        f"{named} ({_unknown_devices(unknown[0])[0].detail})",
        Reason.ACCESS_UNKNOWN,
        next_step="gpu-gate access",
        blocks=False,
    )


def _next(settings: Settings, holders: Sequence[GpuContainer]) -> tuple[Finding, ...]:
    """After the next daemon-reload."""
    risky = [
        h
        for h in holders
        if settings.prevent != "off"
        and any(d.risk is ReloadRisk.YES and d.access is CurrentAccess.ALLOWED for d in h.devices)
    ]
    if not risky:
        return ()
    return (
        Finding(
            Link.WORKLOADS,
            Condition.ACCESS_AFTER_RELOAD,
            Verdict.FAILS,
            f"{_count(risky, holders)} would lose access at a daemon-reload: "
            + ", ".join(who(h) for h in risky[:NAMED])
            + _more(risky)
            + f": {risky[0].risk_why}",
            Reason.ACCESS_AT_RISK,
            tuple(who(h) for h in risky)[:64],
            Heals.CONFIGURATION,
            "gpu-gate access; " + risky[0].cure,
            blocks=False,
        ),
    )


def _stopped(snapshot: Snapshot) -> tuple[Finding, ...]:
    """Adding to a device list took something away: said in every look of this boot."""
    mark = snapshot.workloads.allow_stopped
    if isinstance(mark, Refusal) and (mark.is_missing or not mark.is_telling):
        return ()
    why = (
        mark.value.reason
        if isinstance(mark, Seen)
        else f"{RUN}/{ALLOW_STOPPED} is there and cannot be read"
    )
    return (
        Finding(
            Link.WORKLOADS,
            Condition.DEVICE_ALLOW_UPDATES_ENABLED,
            Verdict.FAILS,
            why,
            Reason.ALLOW_STOPPED,
            blocks=False,
            heals=Heals.CONFIGURATION,
            next_step=f"start that pod anew; report it; rm {RUN}/{ALLOW_STOPPED} lets gpu-gate "
            "go on",
        ),
    )


def _allow(
    snapshot: Snapshot, heal: bool, prevent: bool, holders: tuple[GpuContainer, ...]
) -> GrantDevices | None:
    """Which scopes' device lists are to be added to now. Nothing after a surprise, nor while one is
    at work."""
    if (
        not isinstance(snapshot.workloads.access, Seen)
        or snapshot.workloads.access.value.adding_since is not None
        or _stopped(snapshot)
    ):
        return None
    due = allow.due(holders, heal, prevent, snapshot.clock.boottime)
    return GrantDevices(due, prevent) if due else None


def _older(
    snapshot: Snapshot, settings: Settings, holders: Sequence[GpuContainer]
) -> tuple[Finding, ...]:
    """The driver was loaded again under them: what they were given (libraries, device nodes) is of
    the one before."""
    loaded = kernel_log.loaded_at(snapshot)
    made = (
        {c.id: c.created_at for c in snapshot.plugin.runtime.value.containers}
        if isinstance(snapshot.plugin.runtime, Seen)
        else {}
    )
    old = [
        h
        for h in holders
        if not h.is_plugin
        and 0.0 < made.get(h.id, 0.0) - (snapshot.clock.realtime - snapshot.clock.boottime) < loaded
    ]
    if not old:
        return ()
    return (
        Finding(
            Link.WORKLOADS,
            Condition.WORKLOAD_DRIVER,
            Verdict.FAILS,
            f"{_count(old, holders)} were created before the nvidia module was loaded at "
            f"{at(snapshot, loaded)}, and hold "
            "what was there then: " + ", ".join(who(h) for h in old[:NAMED]) + _more(old),
            Reason.WORKLOAD_OLDER_THAN_DRIVER,
            tuple(who(h) for h in old)[:64],
            Heals.CONFIGURATION,
            "start these pods anew",
            blocks=settings.strict_access,
        ),
    )


def who(holder: GpuContainer) -> str:
    return f"{holder.namespace}/{holder.pod} {holder.name}"


def _since(holder: GpuContainer) -> float:
    return min((d.denied_since for d in holder.denied), default=0.0)


def _count(some: Sequence[GpuContainer], holders: Sequence[GpuContainer]) -> str:
    return f"{len(some)} of {containers.number(len(holders))} with GPUs"


def _more(some: Sequence[GpuContainer]) -> str:
    return f" and {len(some) - NAMED} more" if len(some) > NAMED else ""


def device_lists(
    of: View, settings: Settings, holders: tuple[GpuContainer, ...]
) -> GrantDevices | None:
    """The scopes whose DeviceAllow= is to be added to now."""
    return _allow(of.snapshot, settings.heal, settings.prevent == "on", holders)


def guarded(
    of: View, settings: Settings, holders: tuple[GpuContainer, ...]
) -> tuple[ScopeGrant, ...]:
    """The scopes that a reload may take something from."""
    return allow.exposed(holders) if settings.heal and not _stopped(of.snapshot) else ()


def check(of: View, holders: Sequence[GpuContainer]) -> CheckAccess | None:
    """What the access program is to be asked now; None where every verdict stands, or it is
    asking."""
    snapshot = of.snapshot
    if (
        not isinstance(snapshot.workloads.access, Seen)
        or snapshot.workloads.access.value.asking_since is not None
    ):
        return None
    asked = containers.questions(of)
    scopes = tuple(
        (h.unit, h.process.rules) for h in holders if h.unit and h.process and _is_unread(of, h)
    )
    if not asked and not scopes:
        return None
    reload_at = (
        snapshot.boot.manager.value.last_reload_at
        if isinstance(snapshot.boot.manager, Seen)
        else None
    )
    return CheckAccess(asked, scopes, reload_at or 0.0)


def _is_unread(of: View, holder: GpuContainer) -> bool:
    scope = scope_of(of, holder.unit, holder.process)
    if isinstance(scope, Refusal) and scope.is_telling:
        return of.snapshot.clock.boottime - holder.scope_at > containers.AGAIN_S
    return isinstance(scope, Refusal)


def due_at(of: View, holders: Sequence[GpuContainer], disturbed: float) -> float | None:
    """Boottime of the next look that access wants; None for none."""
    if not isinstance(of.snapshot.workloads.processes, Seen):
        return None
    now = of.snapshot.clock.boottime
    if {c.id for c, _ in of.running} - of.processes.keys():
        return now + UNREAD_S
    if holders and now < disturbed + AFTER_RELOAD_S:
        return disturbed + AFTER_RELOAD_S
    return None
