"""Which container is this node's device plugin? Its newest attempt, its pod, its version."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import replace

from ...model.reading import Reading, Seen
from ...model.runtime import (
    Container,
    ContainerDetail,
    ContainerState,
    PluginLog,
    PluginSight,
    Runtime,
    Sandbox,
    SocketOwner,
)
from ...model.settings import Settings
from ...model.snapshot import Snapshot, Unit
from .kinds import (
    COMPANY_PODS,
    KINDS,
    PLUGIN_UNITS,
    PREFERRED,
    Kind,
    is_company,
    kind_of,
    kind_of_pod,
    matches,
    overlap,
)

_TAG = re.compile(r":v?(\d+)\.(\d+)(?:\.\d+)?(?:[-+_][^:@]*(?:@\w+:\w+)?)?$")
_PLAIN = re.compile(r"v?(\d+)\.(\d+)(?:\.\d+)?(?:[-+_].*)?$")
_PLAIN_ID = re.compile(r"\w[\w.-]*", re.A)
ENDS_FOR_GOOD = ("Never", "OnFailure")
"""restartPolicy of pods whose container a stop ends for good: NVIDIA's plugin exits with 0 on
SIGTERM."""
PLAIN_ENDS = ("", "Error", "Completed")
"""Reasons of a container's end that add nothing to its exit status (CRI:
ContainerStatus.reason)."""
NOT_READ = "?"
"""In the place of a restartPolicy: somebody wrote one, perhaps, and it could not be read."""
USER_HZ = 100
"""Ticks a second of /proc/PID/stat: what a program is told, whatever the kernel counts in (proc(5);
linux include/uapi/asm-generic/param.h)."""
Pair = tuple[Container, Sandbox | None]


def candidates(
    runtime: Runtime, settings: Settings, unable: Collection[str] = ()
) -> tuple[Pair, ...]:
    """Every container that looks like the plugin of the guarded resources: of each pod's container
    the newest one, pods that are gone left out. More than one means that two want one resource, and
    only a person may choose. `unable`: ids of those that are known not to reach the kubelet
    (`can_register`)."""
    newest = _newest(runtime, settings, unable)
    named = {uid for (uid, _), pair in newest.items() if _is_named(*pair, settings)}
    running = {uid for (uid, _), pair in newest.items() if _is_running(pair)}

    def counts(uid: str, pair: Pair) -> bool:
        """A label speaks for a whole pod: what is not named there is the plugin's company, or a
        container that has ended."""
        if _is_named(*pair, settings):
            return True
        return uid not in named and (uid not in running or _is_running(pair))

    found = [pair for (uid, _), pair in newest.items() if counts(uid, pair)]
    return tuple(sorted(_of_one_resource(found, settings), key=lambda pair: pair[0].id))


def _newest(
    runtime: Runtime, settings: Settings, unable: Collection[str]
) -> dict[tuple[str, str], Pair]:
    """The newest attempt of each candidate, by (pod's uid, container's name)."""
    sandboxes = {s.id: s for s in runtime.sandboxes}
    newest: dict[tuple[str, str], Pair] = {}
    for container in runtime.containers:
        sandbox = sandboxes.get(container.sandbox_id)
        is_gone = sandbox is not None and not sandbox.is_ready
        if is_gone or container.id in unable or not _is_candidate(container, sandbox, settings):
            continue
        # By the pod, not by the sandbox: more than one READY sandbox may carry one uid (rke2
        # #4775).
        own = sandbox.uid if sandbox else container.sandbox_id
        key = (container.labels.get("io.kubernetes.pod.uid") or own, container.name)
        known = newest.get(key)
        if known is None or _rank(container) > _rank(known[0]):
            newest[key] = (container, sandbox)
    return newest


def _is_running(pair: Pair) -> bool:
    return pair[0].state is ContainerState.RUNNING


def _of_one_resource(found: list[Pair], settings: Settings) -> list[Pair]:
    """Plugins of other resources are no rivals: a vendor's own resources are theirs."""
    wanted = settings.resources or PREFERRED
    mine = [pair for pair in found if overlap(_resources(*pair), wanted)]
    if mine or not found:
        return mine
    # None says that it offers these; it may have been told to rename its own. Without a wish, the
    # table's order.
    first = min(found, key=lambda pair: _place(kind_of(*pair)))
    return (
        found
        if settings.resources
        else [p for p in found if overlap(_resources(*p), _resources(*first))]
    )


def _resources(container: Container, sandbox: Sandbox | None) -> tuple[str, ...]:
    kind = kind_of(container, sandbox)
    return kind.resources if kind else PREFERRED


def _place(kind: Kind | None) -> int:
    return KINDS.index(kind) if kind else -1


def _rank(container: Container) -> tuple[bool, float, int]:
    return container.state is ContainerState.RUNNING, container.created_at, container.attempt


def _is_candidate(container: Container, sandbox: Sandbox | None, settings: Settings) -> bool:
    """The owner's word is the only one where there is one; else the table's: labels, image,
    name."""
    if settings.plugin_containers or settings.plugin_images:
        return _is_named(container, sandbox, settings)
    kind = kind_of(container, sandbox)
    return kind is not None and not is_company(container, kind)


def _is_named(container: Container, sandbox: Sandbox | None, settings: Settings) -> bool:
    """Its own name or its image says that it is a plugin."""
    if settings.plugin_containers or settings.plugin_images:
        return matches(container.name, settings.plugin_containers) or (
            matches(container.image, settings.plugin_images) and not is_company(container, None)
        )
    kind = kind_of(container, sandbox)
    return (
        kind is not None
        and not is_company(container, kind)
        and (matches(container.name, kind.containers) or matches(container.image, kind.images))
    )


def oldest(pairs: Iterable[Pair], count: int) -> tuple[Pair, ...]:
    """The pods that were there first: whoever comes to look like the plugin comes later."""
    found = sorted(
        pairs, key=lambda pair: (pair[1].created_at if pair[1] else pair[0].created_at, pair[0].id)
    )
    return tuple(sorted(found[:count], key=lambda pair: pair[0].id))


def can_register(detail: ContainerDetail, folder: str) -> bool:
    """False where it was not given the kubelet's `folder`, or one above it, or another of that
    name: it can make no socket there, so it is no device plugin. Labels, images and names are any
    pod's to choose; a path of the host is not, but for the folders below pods/UID that the kubelet
    itself makes."""
    wanted = _parts(folder)
    given = [_parts(path) for path in detail.mounts]
    return not given or any(
        wanted[: len(path)] == path or (path[-1:] == wanted[-1:] and "pods" not in path)
        for path in given
    )


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def by_command(sights: tuple[PluginSight, ...]) -> tuple[PluginSight, ...]:
    """Of several containers in one pod, those that execute a plugin, where one is seen to."""

    def executes(sight: PluginSight) -> bool:
        kind = kind_of(sight.container, sight.sandbox)
        args = sight.detail.value.args if isinstance(sight.detail, Seen) else ()
        return bool(kind and args and args[0].rsplit("/", 1)[-1] in kind.commands)

    sure = {s.container.sandbox_id for s in sights if executes(s)}
    return tuple(s for s in sights if s.container.sandbox_id not in sure or executes(s))


def effective(settings: Settings, sights: tuple[PluginSight, ...]) -> Settings:
    """With the resources that are guarded here, where the owner left them to the plugin that is
    found."""
    if settings.resources:
        return settings
    found = _resources(sights[0].container, sights[0].sandbox) if sights else PREFERRED
    return replace(settings, resources=found)


def unit(units: Reading[tuple[Unit, ...]], settings: Settings) -> Unit | None:
    """The host's unit that is the device plugin: configured, else one of the known names that runs
    as a service.

    Only a running one: AKS installs nvidia-device-plugin.service on nodes that use a DaemonSet, and
    kops once gave that name to a oneshot that installs drivers.
    """
    known = units.value_or(())
    if settings.plugin_unit:
        return next(
            (u for u in known if u.name == settings.plugin_unit and u.load != "not-found"), None
        )
    if _is_told(settings):
        return None
    return next(
        (u for u in known if u.name in PLUGIN_UNITS and u.is_active and u.sub == "running"), None
    )


def down(units: Reading[tuple[Unit, ...]], settings: Settings) -> Unit | None:
    """A unit of the known names that should run and does not: it failed, or systemd starts it again
    and again. One that nobody starts (AKS installs it beside a DaemonSet) is inactive."""
    known = units.value if isinstance(units, Seen) and not _is_told(settings) else ()
    return next(
        (u for u in known if u.name in PLUGIN_UNITS and u.active in ("failed", "activating")), None
    )


def _is_told(settings: Settings) -> bool:
    """The owner said which it is: what merely looks like one is none."""
    return bool(settings.plugin_unit or settings.plugin_containers or settings.plugin_images)


def unmade(runtime: Runtime, settings: Settings) -> tuple[Sandbox, tuple[Container, ...]] | None:
    """The newest plugin's pod, by its labels, in which no plugin is: its image is pulled, or an
    init container comes before it; and the newest of each of its containers."""
    wanted = settings.resources or PREFERRED
    for sandbox in (
        () if _is_told(settings) else sorted(runtime.sandboxes, key=lambda s: -s.created_at)
    ):
        kind = kind_of_pod(sandbox)
        if kind is None or not sandbox.is_ready or not overlap(kind.resources, wanted):
            continue
        inside = sorted((c for c in runtime.containers if c.sandbox_id == sandbox.id), key=_rank)
        names = [sandbox.name, *(c.name for c in inside)]
        if not any(matches(name, COMPANY_PODS) for name in names) and all(
            is_company(c, kind) for c in inside
        ):
            return sandbox, tuple({c.name: c for c in inside}.values())
    return None


def is_anothers(owner: SocketOwner, sight: PluginSight) -> bool:
    """A plugin's socket is served by another container, or by a unit. The kubelet's own word stays
    what counts."""
    return bool(owner.container_id or owner.unit) and owner.container_id != sight.container.id


def is_not_of_unit(snapshot: Snapshot, owner: SocketOwner, name: str) -> bool:
    """A container of a pod or another unit serves it. One that no pod has may be the unit's own:
    docker run."""
    known = (
        snapshot.plugin.runtime.value.containers
        if isinstance(snapshot.plugin.runtime, Seen)
        else ()
    )
    if owner.container_id:
        return any(c.id == owner.container_id for c in known)
    return owner.unit not in ("", name)


def owner_name(snapshot: Snapshot, owner: SocketOwner) -> str:
    if not owner.container_id:
        return owner.unit or "a process of no container and no unit"
    known = snapshot.plugin.runtime.value_or(Runtime((), ()))
    found = next((c for c in known.containers if c.id == owner.container_id), None)
    pod = next((s for s in known.sandboxes if found and s.id == found.sandbox_id), None)
    named = f"{pod.namespace}/{pod.name} " if pod else ""
    return f"{named}{found.name + ' ' if found else 'container '}{owner.container_id[:12]}"


def short_id(container: Container) -> str:
    """As crictl takes it, in a command to be pasted. A bundle may come from anybody: what a shell
    would take for more than a name is none."""
    return container.id[:12] if _PLAIN_ID.fullmatch(container.id[:12]) else "CONTAINER"


def pod_name(sight: PluginSight) -> str:
    labels = sight.container.labels
    namespace = (
        sight.sandbox.namespace if sight.sandbox else labels.get("io.kubernetes.pod.namespace", "?")
    )
    name = sight.sandbox.name if sight.sandbox else labels.get("io.kubernetes.pod.name", "?")
    return f"{namespace}/{name}"


def version(sight: PluginSight) -> tuple[int, int] | None:
    """(major, minor) by the plugin's own word, else by its image's tag; None where neither says."""
    if isinstance(sight.log, Seen) and (found := _PLAIN.match(sight.log.value.version)):
        return int(found.group(1)), int(found.group(2))
    image = sight.detail.value.image if isinstance(sight.detail, Seen) else sight.container.image
    found = _TAG.search(image)
    return (int(found.group(1)), int(found.group(2))) if found else None


def answers_sighup(sight: PluginSight) -> bool:
    """Only where the table says that this plugin, in this version, starts afresh in place."""
    known, kind = version(sight), kind_of(sight.container, sight.sandbox)
    return (
        known is not None
        and kind is not None
        and kind.hup is not None
        and kind.hup[0] <= known < kind.hup[1]
    )


def log_of(sight: PluginSight) -> PluginLog | None:
    return sight.log.value_or(None)


def never_began(detail: ContainerDetail) -> bool:
    """It ended because its runtime could not start it: containerd's and cri-dockerd's word for
    that."""
    return detail.reason in ("StartError", "ContainerCannotRun") or detail.started_at <= 0.0


def began_at(snapshot: Snapshot, sight: PluginSight) -> float:
    """Boottime, seconds, when its container's process was made, which is when the container was: by
    the kernel's word where that was read, for no clock that is set later shifts it. Else by the
    runtime's stamp of its start."""
    known = next(
        (
            p
            for p in snapshot.workloads.processes.value_or(())
            if p.container_id == sight.container.id
        ),
        None,
    )
    if known is not None and known.started.isdecimal():
        return int(known.started) / USER_HZ
    return in_this_boot(snapshot, started_at(sight))


def in_this_boot(snapshot: Snapshot, realtime: float) -> float:
    """Boottime of a stamp that somebody else wrote; 0.0 of one from before the boot or of the
    future: the clock was set since."""
    at = realtime - (snapshot.clock.realtime - snapshot.clock.boottime)
    return at if 0.0 < at <= snapshot.clock.boottime else 0.0


def started_at(sight: PluginSight) -> float:
    """Realtime, seconds."""
    if isinstance(sight.detail, Seen) and sight.detail.value.started_at > 0:
        return sight.detail.value.started_at
    return sight.container.created_at
