"""The containers that hold GPUs: their access now, after the next daemon-reload, and what was
observed of a loss."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone

from ...model.access import (
    CurrentAccess,
    Device,
    Driver,
    Entitlement,
    GivenDevice,
    GpuContainer,
    GrantResult,
    LossCause,
    Process,
    ReloadRisk,
    ScopeDevices,
    Sighting,
    Verdict,
)
from ...model.reading import Reading, Refusal, Seen, Why
from ...model.runtime import Access, Container, Sandbox
from ...model.snapshot import Snapshot
from . import cgroups, containers, device_list
from .containers import Granted, View

SLACK_S = 1.0
"systemd's stamp of a reload and the kernel's new programs lie so far apart at most"
BEHIND = "given behind the runtime's back (the legacy NVIDIA hook)"
LEFT_OUT = (
    "its OCI spec names it and systemd was not told (runc 1.1.3 to 1.1.6 without "
    "the /dev/char link)"
)
CURE_BEHIND = (
    "CDI (NVIDIA Container Toolkit 1.18 or later), or the device plugin's --pass-device-specs, "
    "or the "
    "runtime's cgroupfs driver; then start the pod anew"
)
CURE_GIVEN = (
    "CDI (NVIDIA Container Toolkit 1.18 or later), or the device plugin's --pass-device-specs; "
    "then start "
    "the pod anew"
)
CURE_LEFT_OUT = (
    "/dev/char links before the container starts (MakeNodes=yes), or runc 1.1.7 or later with "
    "systemd "
    "240 or later; then start the pod anew"
)


def holders(of: View) -> tuple[GpuContainer, ...]:
    """Every container that holds GPUs, by namespace, pod and name."""
    found = [
        _holder(of, container, sandbox, of.claims[container.id])
        for container, sandbox in of.running
        if container.id in of.claims
    ]
    return tuple(sorted(found, key=lambda h: (h.namespace, h.pod, h.name, h.id)))


def _holder(
    of: View,
    container: Container,
    sandbox: Sandbox | None,
    claimed: dict[Device, tuple[Entitlement, ...]],
) -> GpuContainer:
    process = of.processes.get(container.id)
    verdict = containers.valid_verdict(of, process) if process else None
    driver, unit = (
        cgroups.carrier(container.id, process.cgroup_v2, process.cgroup_v1)
        if process
        else (Driver.UNKNOWN, "")
    )
    row, scope = _row(of, unit, process), scope_of(of, unit, process)
    is_all = verdict.all_devices if verdict else bool(process and containers.allows_all(process))
    key = containers.key_of(container, sandbox)
    risk, why = _risk(of, driver, unit, scope, is_all, tuple(claimed), verdict)
    old = containers.stale_verdict(of, process) if process and verdict is None else None
    seen = of.sightings.get(container.id, {})
    devices = tuple(
        _given(
            device,
            claims,
            of.nodes.get(device, ""),
            verdict,
            process,
            seen.get(device),
            risk[device],
            old,
        )
        for device, claims in claimed.items()
    )
    holder = GpuContainer(
        id=container.id,
        namespace=key[0],
        pod=key[1],
        pod_uid=sandbox.uid if sandbox else container.labels.get("io.kubernetes.pod.uid", ""),
        name=container.name,
        is_plugin=any(Entitlement.PLUGIN in claims for claims in claimed.values()),
        gpus=of.allocated.get(key, ()),
        process=process,
        driver=driver,
        unit=unit,
        all_devices=is_all,
        devices=devices,
        scope=scope,
        scope_at=row.at if row else 0.0,
        verdict=verdict,
        risk_why=why,
    )
    return replace(_explained(of.snapshot, holder, seen), added=_added(of.snapshot, container.id))


def _added(snapshot: Snapshot, container_id: str) -> GrantResult | None:
    rows = (
        snapshot.workloads.access.value.added if isinstance(snapshot.workloads.access, Seen) else ()
    )
    return next((row for row in rows if row.container_id == container_id), None)


def scope_of(of: View, unit: str, process: Process | None) -> Reading[ScopeDevices]:
    """The scope's device list, as it was read for the rules that govern its container now."""
    if not unit or process is None:
        return Refusal(Why.NOT_ASKED, "no scope of systemd carries it")
    row = _row(of, unit, process)
    if row is None:
        return Refusal(Why.NOT_ASKED, "its device list is being read")
    return Refusal(Why.FAILED, row.problem) if row.problem else Seen(row, row.at)


def _row(of: View, unit: str, process: Process | None) -> ScopeDevices | None:
    row = of.scopes.get(unit)
    return row if row is not None and process is not None and row.rules == process.rules else None


def _given(
    device: Device,
    claims: tuple[Entitlement, ...],
    path: str,
    verdict: Verdict | None,
    process: Process | None,
    sighting: Sighting | None,
    risk: ReloadRisk,
    old: Verdict | None,
) -> GivenDevice:
    now = (
        dict(verdict.answers).get(device, CurrentAccess.UNKNOWN)
        if verdict
        else CurrentAccess.UNKNOWN
    )
    detail = ""
    if verdict is None and old is not None and (stale_verdict := dict(old.answers).get(device)):
        now, detail = stale_verdict, "as it was before its rules changed; it is being asked again"
    if now is CurrentAccess.UNKNOWN:
        detail = (
            verdict.detail
            if verdict
            else process.problem
            if process
            else "its process was not read yet"
        ) or "it is being asked"
    since = (sighting.denied_at if sighting else 0.0) or (verdict.at if verdict else 0.0)
    return GivenDevice(
        device,
        path,
        claims,
        now,
        ReloadRisk.NO if now is CurrentAccess.DENIED else risk,
        detail,
        sighting.allowed_at if sighting else 0.0,
        since if now is CurrentAccess.DENIED else 0.0,
    )


def _risk(
    of: View,
    driver: Driver,
    unit: str,
    scope: Reading[ScopeDevices],
    is_all: bool,
    devices: tuple[Device, ...],
    verdict: Verdict | None,
) -> tuple[dict[Device, ReloadRisk], str]:
    """What the next daemon-reload does to each, and why in a sentence."""

    def everything(risk: ReloadRisk, why: str) -> tuple[dict[Device, ReloadRisk], str]:
        return dict.fromkeys(devices, risk), why

    if driver is Driver.CGROUPFS:
        return everything(
            ReloadRisk.NO,
            "no unit of systemd carries it (cgroupfs driver): a reload does not touch it",
        )
    if driver is Driver.UNKNOWN:
        return everything(
            ReloadRisk.UNKNOWN, "its cgroup was not read, or does not show which unit carries it"
        )
    if isinstance(scope, Refusal):
        return everything(ReloadRisk.UNKNOWN, f"the device list of {unit} is not known ({scope})")
    policy, allow = scope.value.policy, scope.value.allow
    if policy == "auto" and not allow:
        return everything(
            ReloadRisk.NO,
            "privileged: DevicePolicy=auto with an empty list allows everything"
            if is_all
            else "DevicePolicy=auto with an empty list: systemd restricts nothing",
        )
    risk = {d: _risk_of(d, _granted(of, policy, allow)) for d in devices}
    may = dict(verdict.answers) if verdict else {}
    at_risk = [d for d in devices if risk[d] is ReloadRisk.YES]
    lacking = [of.nodes.get(d, d.path) for d in at_risk if may.get(d) is not CurrentAccess.DENIED]
    if not lacking:
        return risk, f"DeviceAllow= of its scope (DevicePolicy={policy}) names all it may open"
    return risk, f"DevicePolicy={policy}, and DeviceAllow= of its scope lacks {', '.join(lacking)}"


def _granted(of: View, policy: str, allow: tuple[tuple[str, str], ...]) -> Granted:
    """What a device list grants; many containers have the same list."""
    granted = of.grants.get((policy, allow))
    if granted is None:
        granted = of.grants[policy, allow] = device_list.grants(
            policy,
            allow,
            of.snapshot.hardware.majors.value_or({}),
            {path: (d.kind, d.major, d.minor) for d, path in of.nodes.items()},
        )
    return granted


def _risk_of(device: Device, granted: Granted) -> ReloadRisk:
    rights = device_list.rights_of(granted, (device.kind, device.major, device.minor))
    return ReloadRisk.NO if {"r", "w"} <= rights else ReloadRisk.YES


def _explained(
    snapshot: Snapshot, holder: GpuContainer, seen: dict[Device, Sighting]
) -> GpuContainer:
    """With the observed cause of a loss, and the cure for good of a loss or a risk. Nothing that
    was not seen."""
    lost = holder.denied
    named = lost or tuple(d for d in holder.at_risk if d.access is CurrentAccess.ALLOWED)
    if not named:
        return holder
    is_left_out = all(Entitlement.SPEC in d.claims for d in named)
    given = LEFT_OUT if is_left_out else BEHIND
    has_unit = holder.driver is not Driver.CGROUPFS  # else no reload touches it
    cure = CURE_LEFT_OUT if is_left_out else CURE_BEHIND
    holder = replace(holder, cure=cure if has_unit else CURE_GIVEN)
    if holder.at_risk:
        holder = replace(holder, risk_why=f"{holder.risk_why}: {given}")
    return _with_loss(snapshot, holder, seen, given) if lost else holder


def _with_loss(
    snapshot: Snapshot, holder: GpuContainer, seen: dict[Device, Sighting], given: str
) -> GpuContainer:
    """The observed cause of a loss. `given`: how the container came to its devices."""
    has_unit = holder.driver is not Driver.CGROUPFS
    sightings = [seen[d.device] for d in holder.denied if d.device in seen]
    sighting = next((s for s in sightings if s.denied_at), None)
    if sighting is None:
        return replace(
            holder,
            loss=LossCause.NEVER_HAD,
            loss_why="this agent never saw it allowed: lost before the agent started, or never "
            "given",
            cure=f"start the pod anew; for good: {holder.cure}",
        )
    if has_unit and sighting.allowed_at - SLACK_S < sighting.reload_at <= sighting.denied_at:
        by = _asked_by(snapshot, sighting.reload_at)
        asked = f", asked for by {by}" if by else ""
        when = at(snapshot, sighting.reload_at)
        why = f"systemd loaded its units anew at {when}{asked}; {given}"
        return replace(holder, loss=LossCause.RELOAD, loss_why=why)
    return replace(holder, loss=LossCause.UPDATE, loss_why=_updated(snapshot, sighting, has_unit))


def _updated(snapshot: Snapshot, sighting: Sighting, has_unit: bool) -> str:
    between = f"{at(snapshot, sighting.allowed_at)} and {at(snapshot, sighting.denied_at)}"
    by = (
        "and no reload was seen: a container update (cpu-manager, resize) or systemctl set-property"
    )
    if not has_unit:
        by = (
            "and no unit of systemd carries it, which a reload could touch: a container update "
            "(cpu-manager, resize), or whoever wrote its cgroup"
        )
    return f"its device programs were replaced between {between}, {by}"


def _asked_by(snapshot: Snapshot, reload_at: float) -> str:
    rows = (
        snapshot.workloads.access.value.asked_by
        if isinstance(snapshot.workloads.access, Seen)
        else ()
    )
    return next((who for when, who in rows if when == reload_at), "")


def at(snapshot: Snapshot, boottime: float) -> str:
    """An instant as people write it, UTC: the same in every look."""
    seconds = round(boottime + snapshot.clock.realtime - snapshot.clock.boottime)
    try:
        return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return f"{boottime:.0f} s after the boot"


def plugin_access(of: View, container_id: str) -> Seen[Access] | None:
    """What the standing verdict says of a device plugin's own access; None where it says
    nothing."""
    process = of.processes.get(container_id)
    verdict = containers.valid_verdict(of, process) if process else None
    device = next(iter(containers.control(of.snapshot, of.nodes)), None)
    now = (
        dict(verdict.answers).get(device, CurrentAccess.UNKNOWN)
        if verdict and device
        else CurrentAccess.UNKNOWN
    )
    if verdict is None or now is CurrentAccess.UNKNOWN:
        return None
    return Seen(Access("/dev/nvidiactl", now is CurrentAccess.ALLOWED, verdict.how), verdict.at)
