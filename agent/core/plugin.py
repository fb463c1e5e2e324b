"""Which container is this node's device plugin? Its newest attempt, its pod, its version."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

from ..model.reading import Seen
from ..model.runtime import Container, ContainerState, PluginLog, PluginSight, Runtime, Sandbox
from ..model.scene import Devices
from ..model.settings import Settings

# CRI endpoints by distribution: kubeadm and most clouds; k3s and rke2; CRI-O; microk8s; k0s.
SOCKETS = (
    "/run/containerd/containerd.sock",
    "/run/k3s/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/var/snap/microk8s/common/run/containerd.sock",
    "/run/k0s/containerd.sock",
)
# Labels of pods that carry NVIDIA's plugin and its kin (docs/plugins.md): on the sandbox, not on the container.
POD_LABELS = (
    ("app.kubernetes.io/name", "nvidia-device-plugin"),
    ("app", "nvidia-device-plugin"),
    ("app", "nvidia-device-plugin-daemonset"),
    ("name", "nvidia-device-plugin-ds"),
    ("component", "nvidia-device-plugin"),
    ("k8s-app", "nvidia-gpu-device-plugin"),
)
NEVER = (
    "*-sidecar", "*-init", "config-manager*", "toolkit-validation", "mps-control-daemon*", "gpu-feature-discovery*",
)
"""Containers that share the plugin's pod, image or labels (Helm chart, GPU Operator) and are not it."""
IN_PLACE = ((0, 13), (1, 0))
"""SIGHUP starts the plugin's work afresh in place from v0.13; an older one that failed ends with status 2. What
counts from 1.0 is 1.0.0-beta, which is older still, or another vendor's plugin."""
_TAG = re.compile(r":v?(\d+)\.(\d+)(?:\.\d+)?(?:[-+_].*)?$")
_PLAIN = re.compile(r"v?(\d+)\.(\d+)(?:\.\d+)?(?:[-+_].*)?$")


def candidates(runtime: Runtime, settings: Settings) -> tuple[tuple[Container, Sandbox | None], ...]:
    """Every container that looks like the plugin: of each pod's container the newest one, pods that are gone left
    out. More than one means that two plugins want one resource, and nobody but a person may choose."""
    sandboxes = {s.id: s for s in runtime.sandboxes}
    newest: dict[tuple[str, str], tuple[Container, Sandbox | None]] = {}
    for container in runtime.containers:
        sandbox = sandboxes.get(container.sandbox_id)
        if sandbox is not None and not sandbox.is_ready:
            continue
        if not (_is_named(container, settings) or _is_labelled(container, sandbox)):
            continue
        uid = container.labels.get("io.kubernetes.pod.uid") or (sandbox.uid if sandbox else container.sandbox_id)
        key = (uid, container.name)
        known = newest.get(key)
        if known is None or _rank(container) > _rank(known[0]):
            newest[key] = (container, sandbox)
    named = {uid for (uid, _), (container, _) in newest.items() if _is_named(container, settings)}
    running = {uid for (uid, _), (container, _) in newest.items() if container.state is ContainerState.RUNNING}
    # A label speaks for a whole pod: what is not named there is the plugin's company, or a container that has ended.
    return tuple(sorted((
        pair for (uid, _), pair in newest.items() if _is_named(pair[0], settings)
        or (uid not in named and (uid not in running or pair[0].state is ContainerState.RUNNING))
    ), key=lambda pair: pair[0].id))


def _rank(container: Container) -> tuple[bool, float, int]:
    return container.state is ContainerState.RUNNING, container.created_at, container.attempt


def _is_named(container: Container, settings: Settings) -> bool:
    """Its own name or its image says that it is a plugin."""
    return not _is_company(container) and (
        any(fnmatchcase(container.name, p) for p in settings.plugin_containers)
        or any(fnmatchcase(container.image, p) for p in settings.plugin_images))


def _is_labelled(container: Container, sandbox: Sandbox | None) -> bool:
    labels = sandbox.labels if sandbox else {}
    return not _is_company(container) and any(labels.get(key) == value for key, value in POD_LABELS)


def _is_company(container: Container) -> bool:
    return any(fnmatchcase(container.name, p) for p in NEVER)


def pod_name(sight: PluginSight) -> str:
    labels = sight.container.labels
    namespace = sight.sandbox.namespace if sight.sandbox else labels.get("io.kubernetes.pod.namespace", "?")
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
    known = version(sight)
    return known is not None and IN_PLACE[0] <= known < IN_PLACE[1]


def log_of(sight: PluginSight) -> PluginLog | None:
    return sight.log.value if isinstance(sight.log, Seen) else None


def started_at(sight: PluginSight) -> float:
    """Realtime, seconds."""
    if isinstance(sight.detail, Seen) and sight.detail.value.started_at > 0:
        return sight.detail.value.started_at
    return sight.container.created_at


def physical(device_id: str) -> str:
    """The GPU behind a device id: replicas are "GPU-…::3" (NVIDIA), "nvidia0/vgpu1" (GKE)."""
    return device_id.partition("::")[0].partition("/")[0]


def listed_gpus(allocatable: tuple[Devices, ...], settings: Settings) -> set[str]:
    """The GPUs behind the ids the kubelet lists for this plugin's resources."""
    return {physical(i) for d in allocatable if any(fnmatchcase(d.resource, p) for p in settings.resources)
            for i in d.ids}
