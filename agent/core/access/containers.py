"""Who holds GPUs, what is to be asked of the access program, and what its answers mean.
docs/access.md.

A container holds a GPU where the kubelet allocated one to it, where its OCI spec's device rules
name a node of NVIDIA's, where an earlier look of this agent saw it allowed to open one, or where it
is the device plugin itself. What its own /dev shows, its environment and its mounts are no claim: a
tenant can make nodes and write variables.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from ...model.access import (
    CurrentAccess,
    Device,
    Entitlement,
    Process,
    Question,
    ScopeDevices,
    Sighting,
    Verdict,
)
from ...model.reading import Seen
from ...model.runtime import Container, ContainerState, Sandbox
from ...model.settings import Settings
from ...model.snapshot import Snapshot
from ..common.pod_resources import physical
from ..gpu.device_nodes import CONTROL_MINOR, nvidia_majors
from .device_list import Number

UNUSED_DEVICE = Device("c", 4095, 1048575)
"""The last number there is (12 bits major, 20 bits minor): whoever may open it may open
everything."""
MOST_NODES = 64
"""of the host are asked about: MIG's capability nodes may be hundreds, and count only where
somebody claims them"""
AGAIN_S = 60.0
"an answer that is unknown, or that no rules could be read for, is asked for again after so long"
CARRY_S = 45.0
"""For so long after the last look that saw the old rules their verdict is shown: a heartbeat, and a
slow answer."""
FIXED_MAJOR = 195
"""of NVIDIA's first driver, by the kernel's Documentation/admin-guide/devices.txt; uvm's and
others' are dynamic"""


Claims = dict[str, dict[Device, tuple[Entitlement, ...]]]
Pair = tuple[Container, Sandbox | None]
Granted = dict[Number, frozenset[str]]


@dataclass(frozen=True, slots=True)
class View:
    """What a scene holds about containers, found once and by name: a hundred of them are judged at
    every look."""

    snapshot: Snapshot
    running: tuple[Pair, ...]
    processes: dict[str, Process]
    nodes: dict[Device, str]
    allocated: dict[tuple[str, str, str], tuple[str, ...]]
    verdicts: dict[str, Verdict]
    sightings: dict[str, dict[Device, Sighting]]
    scopes: dict[str, ScopeDevices]
    claims: Claims
    """why which device nodes count as given, by container id; only containers that hold some are in
    it"""
    grants: dict[tuple[str, tuple[tuple[str, str], ...]], Granted] = field(default_factory=dict)
    "of device lists met so far"


def view(snapshot: Snapshot, settings: Settings) -> View:
    state = snapshot.workloads.access.value_or(None)
    sightings: dict[str, dict[Device, Sighting]] = {}
    for sighting in state.sightings if state else ():
        sightings.setdefault(sighting.container_id, {})[sighting.device] = sighting
    processes = (
        {p.container_id: p for p in snapshot.workloads.processes.value}
        if isinstance(snapshot.workloads.processes, Seen)
        else {}
    )
    found = View(
        snapshot,
        running(snapshot, processes),
        processes,
        nodes(snapshot),
        allocated(snapshot, settings),
        {v.container_id: v for v in state.verdicts} if state else {},
        sightings,
        {row.unit: row for row in state.scopes} if state else {},
        {},
    )
    return replace(found, claims=_claims(found)) if found.running else found


def narrow(snapshot: Snapshot, container_id: str) -> View:
    """Of one container only, and without claims."""
    state = snapshot.workloads.access.value_or(None)
    rows = snapshot.workloads.processes.value_or(())
    return View(
        snapshot,
        (),
        {p.container_id: p for p in rows if p.container_id == container_id},
        nodes(snapshot),
        {},
        {v.container_id: v for v in state.verdicts if v.container_id == container_id}
        if state
        else {},
        {},
        {},
        {},
    )


def running(snapshot: Snapshot, processes: dict[str, Process]) -> tuple[Pair, ...]:
    """Containers that run now. A pod that has ended, whatever the kubelet still lists of it, uses
    nothing; nor does a container whose process is gone, whatever the runtime said a while ago."""
    if not isinstance(snapshot.plugin.runtime, Seen):
        return ()
    gone = {p.container_id for p in processes.values() if p.pid and not p.started}
    sandboxes = {s.id: s for s in snapshot.plugin.runtime.value.sandboxes}
    pairs = (
        (c, sandboxes.get(c.sandbox_id))
        for c in snapshot.plugin.runtime.value.containers
        if c.state is ContainerState.RUNNING and c.id not in gone
    )
    return tuple((c, s) for c, s in pairs if s is None or s.is_ready)


def nodes(snapshot: Snapshot) -> dict[Device, str]:
    """NVIDIA's device nodes on this host, by number. Majors are read, never assumed; those of the
    capability nodes and of IMEX channels have names of NVIDIA's as well, NVSwitch's has not."""
    if not isinstance(snapshot.hardware.nodes, Seen):
        return {}
    majors = nvidia_majors(snapshot) or {
        FIXED_MAJOR
    }  # unread device nodes are no reason to check no container
    return {
        Device("c", n.major, n.minor): n.path
        for n in snapshot.hardware.nodes.value
        if n.major in majors
    }


def allocated(
    snapshot: Snapshot, settings: Settings
) -> dict[tuple[str, str, str], tuple[str, ...]]:
    """Device ids that the kubelet allocated, by (namespace, pod, container)."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for row in snapshot.workloads.allocations.value_or(()):
        if any(
            fnmatchcase(row.resource, pattern) for pattern in ("nvidia.com/*", *settings.resources)
        ):
            found.setdefault((row.namespace, row.pod, row.container), []).extend(row.ids)
    return {key: tuple(sorted(set(ids))) for key, ids in found.items()}


def key_of(container: Container, sandbox: Sandbox | None) -> tuple[str, str, str]:
    labels = container.labels
    return (
        sandbox.namespace if sandbox else labels.get("io.kubernetes.pod.namespace", ""),
        sandbox.name if sandbox else labels.get("io.kubernetes.pod.name", ""),
        container.name,
    )


def _claims(of: View) -> Claims:
    snapshot, majors = of.snapshot, nvidia_majors(of.snapshot)
    plugins = {sight.container.id for sight in snapshot.plugin.plugins}
    needed, minors = control(snapshot, of.nodes), _minors(snapshot)
    found: Claims = {}
    for container, sandbox in of.running:
        given: dict[Device, tuple[Entitlement, ...]] = {}
        ids = of.allocated.get(key_of(container, sandbox), ())
        process = of.processes.get(container.id)
        for claim, devices in (
            (Entitlement.ALLOCATED, (*needed, *_gpus(snapshot, ids, minors)) if ids else ()),
            (Entitlement.SPEC, _of_spec(process, of.nodes, majors) if process else ()),
            (Entitlement.SEEN, tuple(of.sightings.get(container.id, ()))),
            (Entitlement.PLUGIN, needed[:1] if container.id in plugins else ()),
        ):
            for device in devices:
                given[device] = (*given.get(device, ()), claim)
        if given:
            found[container.id] = dict(
                sorted(given.items(), key=lambda item: (item[0].kind, item[0].major, item[0].minor))
            )
    return found


def control(snapshot: Snapshot, known: dict[Device, str]) -> tuple[Device, ...]:
    """What everybody who was given a GPU needs besides: /dev/nvidiactl, and /dev/nvidia-uvm where
    the host has it."""
    by_path = {path: device for device, path in known.items()}
    majors = snapshot.hardware.majors.value_or({})
    first = by_path.get("/dev/nvidiactl")
    if first is None and (major := _frontend(majors)) is not None:
        first = Device("c", major, CONTROL_MINOR)
    uvm = by_path.get("/dev/nvidia-uvm")
    return tuple(device for device in (first, uvm) if device is not None)


def _frontend(majors: dict[str, int]) -> int | None:
    """Major of /dev/nvidia0 and /dev/nvidiactl: "nvidia-frontend" until driver 545, "nvidia"
    since."""
    return next(
        (majors[name] for name in ("nvidia", "nvidiactl", "nvidia-frontend") if name in majors),
        None,
    )


def _minors(snapshot: Snapshot) -> dict[str, int]:
    """Minor of the GPU behind each of the kubelet's device ids."""
    last = snapshot.hardware.probe.value.last if isinstance(snapshot.hardware.probe, Seen) else None
    minors: dict[str, int] = {}
    for gpu in last.gpus if last else ():
        minors[gpu.uuid] = minors[f"nvidia{gpu.minor}"] = (
            gpu.minor
        )  # GKE's plugin calls them by their node
        for mig in gpu.state.mig_devices or ():
            minors[mig.uuid] = minors[f"nvidia{gpu.minor}/gi{mig.gpu_instance}"] = gpu.minor
    return minors


def _gpus(snapshot: Snapshot, ids: Iterable[str], minors: dict[str, int]) -> tuple[Device, ...]:
    """The GPUs' own nodes; an id that cannot be resolved adds none."""
    major = _frontend(snapshot.hardware.majors.value_or({}))
    wanted = {minors.get(physical(i), -1) for i in ids}
    return (
        tuple(Device("c", major, minor) for minor in sorted(wanted) if minor >= 0)
        if major is not None
        else ()
    )


def _of_spec(process: Process, known: dict[Device, str], majors: set[int]) -> tuple[Device, ...]:
    """NVIDIA's nodes that its OCI spec lets it open. A spec that allows everything names none."""
    if allows_all(process):
        return ()
    found: set[Device] = set()
    for device, rights in process.spec:
        if device.kind == "c" and device.major in majors and {"r", "w"} <= set(rights):
            found |= (
                {device} if device.minor >= 0 else {d for d in known if d.major == device.major}
            )
    return tuple(sorted(found))


def allows_all(process: Process) -> bool:
    """Its OCI spec lets it open everything: privileged."""
    return any(device.major < 0 and {"r", "w"} <= set(rights) for device, rights in process.spec)


def valid_verdict(of: View, process: Process) -> Verdict | None:
    """The verdict that holds for what governs this container now.

    A program in the kernel never changes, so as long as the same ones are in force (v1: the same
    list), what they answered stands; where one reads maps, or the rules could not be read, only for
    a while.
    """
    verdict = of.verdicts.get(process.container_id)
    if verdict is None or (verdict.pid, verdict.started) != (process.pid, process.started):
        return None
    # The program may read other rules than this agent does; then nothing stands, and it is not
    # asked without end.
    if process.rules and process.rules not in (verdict.rules, verdict.asked_rules):
        return None
    is_unsure = (
        not process.rules
        or not process.is_fixed
        or process.rules != verdict.rules
        or any(now is CurrentAccess.UNKNOWN for _, now in verdict.answers)
    )
    if is_unsure and of.snapshot.clock.boottime - verdict.at > AGAIN_S:
        return None
    return verdict if process.rules in ("", verdict.rules) else _unknown(verdict)


def stale_verdict(of: View, process: Process) -> Verdict | None:
    """The last verdict, while a fresh one is asked for: for a while, and no action uses it."""
    verdict = of.verdicts.get(process.container_id)
    if verdict is None or (verdict.pid, verdict.started) != (process.pid, process.started):
        return None
    return verdict if of.snapshot.clock.boottime - process.other_until <= CARRY_S else None


def _unknown(verdict: Verdict) -> Verdict:
    answers = tuple((device, CurrentAccess.UNKNOWN) for device, _ in verdict.answers)
    return replace(
        verdict,
        answers=answers,
        all_devices=False,
        detail="what governs its devices changed while it was asked",
    )


def questions(of: View) -> tuple[Question, ...]:
    """What is to be asked now: of every container whose verdict does not stand, all nodes of
    NVIDIA's on this host, since whoever may open one without a claim holds it as well."""
    everywhere = {UNUSED_DEVICE, *sorted(of.nodes, key=lambda d: (d.major, d.minor))[:MOST_NODES]}
    found = []
    for container, _ in of.running:
        process = of.processes.get(container.id)
        if process is None or not process.pid or not process.started:
            continue
        verdict = valid_verdict(of, process)
        devices = everywhere | of.claims.get(container.id, {}).keys()
        if len(devices) > 1 and (
            verdict is None or not devices <= {device for device, _ in verdict.answers}
        ):
            asked = tuple(sorted(devices, key=lambda d: (d.kind, d.major, d.minor)))
            found.append(
                Question(
                    container.id,
                    process.pid,
                    process.started,
                    asked,
                    process.rules,
                    process.other_until,
                )
            )
    return tuple(found)


def remember(
    sightings: Iterable[Sighting], verdict: Verdict, other_until: float, reload_at: float
) -> tuple[Sighting, ...]:
    """The sightings of one container after a new verdict: what it may open is given, and since when
    it may not.

    Who may open everything was given nothing in particular.
    """
    known = {s.device: s for s in sightings if s.container_id == verdict.container_id}
    for device, now in verdict.answers:
        old = known.get(device)
        if now is CurrentAccess.ALLOWED and not verdict.all_devices and device != UNUSED_DEVICE:
            known[device] = Sighting(verdict.container_id, device, verdict.at)
        elif now is CurrentAccess.DENIED and old is not None and not old.denied_at:
            until = min(max(old.allowed_at, other_until), verdict.at)
            known[device] = replace(
                old, allowed_at=until, denied_at=verdict.at, reload_at=reload_at
            )
    return tuple(known.values())


def number(count: int) -> str:
    return f"{count} container{'' if count == 1 else 's'}"
