"""Link 8: the runtime, and of what looks like the device plugin its status, its log's tail and its
own access."""

from __future__ import annotations

import re
from dataclasses import replace

from ...model.host import Host
from ...model.reading import Reading, Refusal, Seen, Why
from ...model.runtime import (
    Access,
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
from ...model.snapshot import Plugin, Snapshot
from ..access import containers, holders
from ..common import parse
from ..common.layouts import manifest_folders, pod_resources_sockets, runtime_sockets
from ..common.watched import running_kubelet
from ..gpu.tegra import is_tegra
from . import candidates as plugin
from . import log as plugin_log
from .kinds import KINDS, kind_of, matches
from .resources import listing

PLUGINS, SOCKETS_ASKED, MANIFESTS = 4, 4, 32
"""So many are read; more than one candidate is reported, and nothing is done."""
MANIFEST_BYTES = 65536
LOOK_ALIKES = 16
"""So many containers are looked into before the rest is taken for what it looks like."""
DRA = "gpu.nvidia.com"
APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_NAME = re.compile(r"""^[ \t-]*name:\s*["']?([\w.-]+)""", re.M)
_POLICY = re.compile(r"""^[ \t]*restartPolicy:\s*["']?(\w+)""", re.M)
_ID = re.compile(r"[0-9a-f]{64}")
_UNIT = re.compile(r"/([^/\n]+\.service)")


async def runtime(host: Host, settings: Settings, snapshot: Snapshot) -> Plugin:
    """The kubelet's runtime, and what it runs."""
    socket, lists = await _runtime(
        host, runtime_sockets(settings, running_kubelet(snapshot.boot.units, settings))
    )
    return replace(snapshot.plugin, runtime_socket=socket, runtime=lists)


async def plugins(host: Host, settings: Settings, snapshot: Snapshot) -> Plugin:
    """The part about the plugin. What costs something, such as its own access, is asked only where
    the kubelet does not list what it should, or the plugin lost its access."""
    of = snapshot.plugin
    if not isinstance(of.runtime, Seen):
        return of
    pairs, details, unable = await _looked_into(host, of.runtime_socket, of.runtime.value, settings)
    sights = plugin.by_command(
        tuple([await _sight(host, snapshot, c, s, details.get(c.id)) for c, s in pairs])
    )
    of = replace(of, plugins=sights, not_plugins=_names(of.runtime.value, unable))
    listed = listing(replace(snapshot, plugin=of), plugin.effective(settings, sights))
    if listed.is_complete and not any(
        isinstance(s.access, Seen) and not s.access.value.allowed for s in sights
    ):
        return of
    if not sights:
        return replace(
            of,
            dra_driver=await _dra_driver(host, settings, snapshot),
            socket_owners=await _owners(host, settings, snapshot, sights),
        )
    folders = manifest_folders(settings, running_kubelet(snapshot.boot.units, settings))
    # A Tegra may have no /dev/nvidiactl at all.
    if not listed.is_complete and not is_tegra(snapshot.hardware):
        sights = tuple([await _with_access(host, s) for s in sights])
    sights = tuple([await _halted(host, snapshot, s) for s in sights])
    sights = tuple(
        [replace(s, restart_policy=await _restart_policy(host, s.sandbox, folders)) for s in sights]
    )
    owners = await _owners(host, settings, snapshot, sights)
    return replace(of, plugins=sights, socket_owners=owners)


async def _runtime(host: Host, sockets: tuple[str, ...]) -> tuple[str, Reading[Runtime]]:
    """The kubelet's own runtime: the first that lists a pod. Docker's containerd may answer beside
    k3s's, and has none; one that is there and does not answer may be the kubelet's, and ends the
    search."""
    first: tuple[str, Reading[Runtime]] | None = None
    empty: tuple[str, Reading[Runtime]] | None = None
    for socket in sockets:
        runtime = await host.runtime(socket)
        first = first or (socket, runtime)
        if isinstance(runtime, Refusal):
            if not runtime.is_missing:
                return empty or (socket, runtime)
        elif runtime.value.sandboxes or runtime.value.containers:
            return socket, runtime
        else:
            empty = empty or (socket, runtime)
    assert first is not None
    return empty or first


async def _looked_into(
    host: Host, socket: str, runtime: Runtime, settings: Settings
) -> tuple[tuple[plugin.Pair, ...], dict[str, Reading[ContainerDetail]], set[str]]:
    """What looks like the plugin, its status, and the ids of those that cannot be it: any pod may
    take its labels, its image and its name, and must not keep the real one from being mended."""
    details: dict[str, Reading[ContainerDetail]] = {}
    unable: set[str] = set()
    while True:
        pairs = plugin.oldest(plugin.candidates(runtime, settings, unable), PLUGINS)
        if len(details) >= LOOK_ALIKES:
            return pairs, details, unable
        for container, _ in pairs:
            if container.id not in details:
                details[container.id] = detail = await host.container(socket, container.id)
                if (
                    isinstance(detail, Refusal) and not detail.is_missing
                ):  # each more would cost a look its time
                    return pairs, details, unable
        wrong = {
            c.id
            for c, _ in pairs
            if isinstance(detail := details[c.id], Seen)
            and not plugin.can_register(detail.value, settings.device_plugins_dir)
        }
        if not wrong:
            return pairs, details, unable
        unable |= wrong


def _names(runtime: Runtime, ids: set[str]) -> tuple[str, ...]:
    pods = {s.id: f"{s.namespace}/{s.name}" for s in runtime.sandboxes}
    return tuple(
        sorted(f"{pods.get(c.sandbox_id, '?')} {c.name}" for c in runtime.containers if c.id in ids)
    )


async def _sight(
    host: Host,
    snapshot: Snapshot,
    container: Container,
    sandbox: Sandbox | None,
    known: Reading[ContainerDetail] | None,
) -> PluginSight:
    detail = known or await host.container(snapshot.plugin.runtime_socket, container.id)
    log: Reading[PluginLog] = Refusal(Why.NOT_ASKED, "the container's status was not read")
    access: Reading[Access] = Refusal(Why.NOT_ASKED, "not in doubt, or it has no process")
    if isinstance(detail, Seen):
        tail = await host.tail(detail.value.log_path)
        log = tail if isinstance(tail, Refusal) else Seen(plugin_log.read(tail.value), tail.at)
        access = (
            holders.plugin_access(containers.narrow(snapshot, container.id), container.id) or access
        )
    return PluginSight(container, sandbox, detail, log, access)


async def _with_access(host: Host, sight: PluginSight) -> PluginSight:
    if (
        isinstance(sight.access, Seen)
        or not isinstance(sight.detail, Seen)
        or sight.detail.value.pid <= 0
        or sight.container.state is not ContainerState.RUNNING
    ):
        return sight
    return replace(sight, access=await host.access(sight.detail.value.pid, "/dev/nvidiactl"))


async def _halted(host: Host, snapshot: Snapshot, sight: PluginSight) -> PluginSight:
    """Is its process kept from going on: asleep in the kernel, stopped, traced (proc(5): State,
    TracerPid), or frozen by its cgroup (cgroup-v2.rst: cgroup.events)?"""
    pid = sight.detail.value.pid if isinstance(sight.detail, Seen) else 0
    if pid <= 0 or sight.container.state is not ContainerState.RUNNING:
        return sight
    status = await host.file(f"/proc/{pid}/status")
    if isinstance(status, Refusal) and not status.is_missing:
        return replace(
            sight,
            unread=f"whether its process {pid} goes on by itself could not be read ({status})",
        )
    state, tracer = _state_and_tracer(parse.text(status.value_or(b"")))
    if tracer != "0":
        return replace(sight, halted=f"its process {pid} is traced by pid {tracer}")
    if state in ("T", "t"):
        return replace(sight, halted=f"its process {pid} was stopped by a signal (state {state})")
    if await _is_frozen(host, snapshot, sight.container.id):
        return replace(sight, halted="its container is paused (its cgroup is frozen)")
    if state == "D":
        return replace(
            sight,
            halted=f"its process {pid} sleeps in the kernel (state D), where no signal reaches it",
            in_kernel=True,
        )
    return sight


def _state_and_tracer(status: str) -> tuple[str, str]:
    """One letter, and the pid of whoever traces it; "0": none does."""
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    return fields.get("State", "")[:1], fields.get("TracerPid", "0").strip()


async def _is_frozen(host: Host, snapshot: Snapshot, container_id: str) -> bool:
    processes = snapshot.workloads.processes.value_or(())
    cgroup = next((p.cgroup_v2 for p in processes if p.container_id == container_id), None)
    if not cgroup:
        return False
    events = await host.file(f"/sys/fs/cgroup{cgroup}/cgroup.events")
    return "frozen 1" in parse.text(events.value_or(b"")).splitlines()


async def _restart_policy(host: Host, sandbox: Sandbox | None, folders: tuple[str, ...]) -> str:
    """What the pod's author wrote, as far as this node knows it: CRI does not say. A DaemonSet's is
    Always; "" where nothing speaks of it, which is Always as well; plugin.NOT_READ where it is
    written and cannot be read."""
    if sandbox is None:
        return ""
    if sandbox.annotations.get("kubernetes.io/config.source") == "file":
        return await _static_policy(host, sandbox.name, folders)
    written = parse.json_object(sandbox.annotations.get(APPLIED, "").encode()) or {}
    spec = written.get("spec")
    return str(spec.get("restartPolicy", "")) if isinstance(spec, dict) else ""


async def _static_policy(host: Host, pod: str, folders: tuple[str, ...]) -> str:
    """Of the manifest with the longest name that this pod's name begins with: the rest of it is the
    node's. Of two that say different things the one that ends for good: nothing shows which one the
    kubelet took."""
    best, policy, unread = 0, "", False
    for folder in folders:
        texts, is_whole = await _manifests(host, folder)
        unread = unread or not is_whole
        for text in texts:
            names, said = _written(text)
            length = max((len(n) for n in names if pod.startswith(f"{n}-")), default=0)
            if length > best or (length and length == best and said in plugin.ENDS_FOR_GOOD):
                best, policy = length, said
    # A manifest in a folder that no setting and no layout names counts as no manifest.
    return policy if best or not unread else plugin.NOT_READ


async def _manifests(host: Host, folder: str) -> tuple[list[bytes], bool]:
    """The manifests in a folder, and whether all of them were read."""
    names = await host.folder(folder)
    if isinstance(names, Refusal):
        return [], names.is_missing
    # As the kubelet takes them (pkg/kubelet/config/file.go): of any name (kops: .manifest), and
    # links as well.
    files = [
        e.name for e in names.value if e.kind in ("file", "link") and not e.name.startswith(".")
    ]
    read = [await host.file(f"{folder}/{name}", MANIFEST_BYTES) for name in files[:MANIFESTS]]
    texts = [r.value for r in read if isinstance(r, Seen) and len(r.value) < MANIFEST_BYTES]
    return texts, len(texts) == len(files)


def _written(manifest: bytes) -> tuple[list[str], str]:
    """(names in it, restartPolicy). YAML line by line: enough to tell a word, and no parser is
    needed for it."""
    pod = parse.json_object(manifest)
    if pod is not None:
        meta, spec = pod.get("metadata"), pod.get("spec")
        name = meta.get("name") if isinstance(meta, dict) else ""
        return [str(name)] if name else [], str(spec.get("restartPolicy", "")) if isinstance(
            spec, dict
        ) else ""
    words = manifest.decode("utf-8", "replace")
    said = _POLICY.search(words)
    return _NAME.findall(words), said.group(1) if said else ""


async def _dra_driver(host: Host, settings: Settings, snapshot: Snapshot) -> Reading[str]:
    """NVIDIA's DRA driver for GPUs (k8s-dra-driver-gpu: its folder under the kubelet's root, its
    image). A dead one leaves its socket behind, so a running container counts as well."""
    running = (
        snapshot.plugin.runtime.value.containers
        if isinstance(snapshot.plugin.runtime, Seen)
        else ()
    )
    names = [
        c.name
        for c in running
        if c.state is ContainerState.RUNNING and matches(c.image, ("*dra-driver*",))
    ]
    for socket in (
        pod_resources_sockets(settings, running_kubelet(snapshot.boot.units, settings))
        if names
        else ()
    ):
        folder = await host.folder(
            f"{socket.removesuffix('/pod-resources/kubelet.sock')}/plugins/{DRA}"
        )
        if isinstance(folder, Seen) and any(e.kind == "socket" for e in folder.value):
            return Seen(names[0], folder.at)
    return Refusal(Why.MISSING, "no DRA driver of NVIDIA's is seen")


async def _owners(
    host: Host, settings: Settings, snapshot: Snapshot, sights: tuple[PluginSight, ...]
) -> tuple[SocketOwner, ...]:
    """Who listens on the sockets that such plugins make: as the kernel shows it, not by a name in
    a list."""
    kinds = [kind for s in sights if (kind := kind_of(s.container, s.sandbox))] or KINDS
    patterns = {p for kind in kinds for p in kind.sockets}
    entries = snapshot.kubelet.plugin_sockets.value_or(())
    names = [e.name for e in entries if e.kind == "socket" and matches(e.name, patterns)]
    found = [
        await _owner(host, f"{settings.device_plugins_dir}/{name}", name)
        for name in names[:SOCKETS_ASKED]
    ]
    return tuple(owner for owner in found if owner is not None)


async def _owner(host: Host, path: str, name: str) -> SocketOwner | None:
    listener = await host.listener(path)
    pid = listener.value_or(0)
    if pid <= 0:
        return None
    cgroup = await host.file(f"/proc/{pid}/cgroup")
    if not isinstance(cgroup, Seen):
        return None
    text = parse.text(cgroup.value)
    # The innermost one: a node that is a container itself has its own id before its containers'.
    ids, units = _ID.findall(text), _UNIT.findall(text)
    return SocketOwner(name, pid, ids[-1] if ids else "", units[-1] if units else "")
