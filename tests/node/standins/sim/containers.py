"""From a pod's manifest to the messages that a kubelet sends to the container runtime."""

from __future__ import annotations

import datetime
import glob
import secrets
from pathlib import Path

from sim.manifests import Pod
from sim.wire import cri
from sim.wire import plugin_api as plugin

DEVICES_ANNOTATION = "sim/devices"
"""Comma-separated device nodes for every container of the pod; a name with a wildcard may match
nothing, a plain one that is missing makes the container fail to be created, as it would."""

NODE, CONTAINER = 2, 1  # namespace modes


class MountFailed(Exception):
    """A volume cannot be mounted (yet)."""


def pod_labels(pod: Pod) -> dict[str, str]:
    return {
        "io.kubernetes.pod.name": pod.name,
        "io.kubernetes.pod.namespace": pod.namespace,
        "io.kubernetes.pod.uid": pod.uid,
    }


def is_privileged(container: dict) -> bool:
    return bool((container.get("securityContext") or {}).get("privileged"))


def sandbox_config(pod: Pod, attempt: int, log_root: Path, cgroup_driver: str):
    config = cri.PodSandboxConfig()
    config.metadata.name, config.metadata.uid, config.metadata.namespace = (
        pod.name,
        pod.uid,
        pod.namespace,
    )
    config.metadata.attempt = attempt
    config.log_directory = str(log_root / f"{pod.namespace}_{pod.name}_{pod.uid}")
    config.dns_config.servers.append("127.0.0.53")  # else containerd wants the host's resolv.conf
    config.labels.update({**pod.labels, **pod_labels(pod)})
    config.annotations.update(pod.annotations)
    config.annotations["kubernetes.io/config.hash"] = pod.uid
    config.annotations["kubernetes.io/config.seen"] = datetime.datetime.now(
        tz=datetime.timezone.utc
    ).isoformat()
    config.annotations["kubernetes.io/config.source"] = "file"
    if cgroup_driver == "systemd":
        config.linux.cgroup_parent = f"kubepods-besteffort-pod{pod.uid}.slice"
    else:
        config.linux.cgroup_parent = f"/kubepods/besteffort/pod{pod.uid}"
    security = config.linux.security_context
    security.namespace_options.network = NODE
    security.namespace_options.pid = NODE if pod.spec.get("hostPID") else CONTAINER
    security.privileged = any(map(is_privileged, pod.containers))
    return config


def _host_path(pod: Pod, volume: dict, kubelet_dir: Path) -> Path:
    if "emptyDir" in volume:
        path = kubelet_dir / "pods" / pod.uid / "volumes/kubernetes.io~empty-dir" / volume["name"]
        path.mkdir(parents=True, exist_ok=True)
        return path
    path, kind = Path(volume["hostPath"]["path"]), volume["hostPath"].get("type", "")
    if kind == "DirectoryOrCreate":
        path.mkdir(parents=True, exist_ok=True)
    if kind and not path.exists():
        raise MountFailed(f"hostPath type check failed: {path} is not a {kind.lower()}")
    return path


def _add_mounts(config, pod: Pod, container: dict, kubelet_dir: Path) -> None:
    volumes = {v["name"]: v for v in pod.spec.get("volumes") or []}
    for mount in container.get("volumeMounts") or []:
        host = _host_path(pod, volumes[mount["name"]], kubelet_dir)
        if mount.get("subPath"):
            host /= mount["subPath"]
        config.mounts.add(
            container_path=mount["mountPath"],
            host_path=str(host),
            readonly=bool(mount.get("readOnly")),
        )
    own = kubelet_dir / "pods" / pod.uid / "containers" / container["name"] / secrets.token_hex(4)
    own.parent.mkdir(parents=True, exist_ok=True)
    own.touch()
    config.mounts.add(container_path="/dev/termination-log", host_path=str(own))


def _add_devices(config, pod: Pod, entries) -> None:
    for pattern in filter(None, pod.annotations.get(DEVICES_ANNOTATION, "").split(",")):
        found = sorted(glob.glob(pattern)) if glob.has_magic(pattern) else [pattern]
        for path in found:
            config.devices.add(container_path=path, host_path=path, permissions="rwm")
    for entry in entries:
        given = plugin.ContainerAllocateResponse.FromString(entry.response)
        for key, value in given.envs.items():
            config.envs.add(key=key, value=value)
        for device in given.devices:
            config.devices.add(
                container_path=device.container_path,
                host_path=device.host_path,
                permissions=device.permissions,
            )
        for mount in given.mounts:
            config.mounts.add(
                container_path=mount.container_path,
                host_path=mount.host_path,
                readonly=mount.read_only,
            )
        for device in given.cdi_devices:
            config.CDI_devices.add(name=device.name)


def container_config(
    pod: Pod, container: dict, attempt: int, image_id: str, entries, kubelet_dir: Path
):
    """Raises MountFailed."""
    config = cri.ContainerConfig(
        command=container.get("command") or [], args=container.get("args") or []
    )
    config.working_dir = container.get("workingDir", "")
    config.metadata.name, config.metadata.attempt = container["name"], attempt
    config.image.image = image_id
    for one in container.get("env") or []:
        config.envs.add(key=one["name"], value=str(one.get("value", "")))
    config.labels.update({**pod_labels(pod), "io.kubernetes.container.name": container["name"]})
    config.annotations.update(
        {
            "io.kubernetes.container.hash": pod.uid[:8],
            "io.kubernetes.container.restartCount": str(attempt),
            "io.kubernetes.container.terminationMessagePath": "/dev/termination-log",
            "io.kubernetes.container.terminationMessagePolicy": "File",
            "io.kubernetes.pod.terminationGracePeriod": str(pod.grace_s),
        }
    )
    config.log_path = f"{container['name']}/{attempt}.log"
    _add_mounts(config, pod, container, kubelet_dir)
    _add_devices(config, pod, entries)
    config.linux.resources.cpu_period, config.linux.resources.cpu_shares = 100000, 2
    security = config.linux.security_context
    security.privileged = is_privileged(container)
    security.namespace_options.network = NODE
    security.namespace_options.pid = NODE if pod.spec.get("hostPID") else CONTAINER
    security.seccomp.profile_type = 1
    wanted = (container.get("securityContext") or {}).get("capabilities") or {}
    security.capabilities.add_capabilities.extend(wanted.get("add") or [])
    security.capabilities.drop_capabilities.extend(wanted.get("drop") or [])
    return config
