"""What is followed: the units whose restarts matter, and the folders to be woken by."""

from __future__ import annotations

from ...model.settings import Settings
from ..paths import RUN

# Units that carry a kubelet: kubeadm and most clouds; k3s, rke2, microk8s and k0s run it inside their own.
KUBELET_UNITS = (
    "kubelet.service",
    "k3s-agent.service",
    "k3s.service",
    "rke2-agent.service",
    "rke2-server.service",
    "snap.microk8s.daemon-kubelite.service",
    "k0sworker.service",
    "k0scontroller.service",
)
RUNTIME_UNITS = ("containerd.service", "crio.service", "docker.service")
DRIVER_UNITS = ("nvidia-persistenced.service", "nvidia-fabricmanager.service")


CDI_UNIT = "nvidia-cdi-refresh.service"
"""Writes the CDI spec again (nvidia-container-toolkit 1.18, deployments/systemd)."""


def watched_units(settings: Settings) -> tuple[str, ...]:
    """The units whose state and InvocationID matter."""
    return DRIVER_UNITS + RUNTIME_UNITS + (CDI_UNIT,) + settings.pause_while + kubelet_units(settings) \
        + tuple(filter(None, (settings.plugin_unit,)))


def kubelet_units(settings: Settings) -> tuple[str, ...]:
    if settings.kubelet_unit == "none":
        return ()
    if settings.kubelet_unit:
        return (settings.kubelet_unit,)
    return KUBELET_UNITS


def watched_folders(settings: Settings) -> dict[str, tuple[str, ...]]:
    """Folders to be woken by, each with the name prefixes that matter there (none: every name).

    The driver makes no uevent for /dev/nvidia*, so /dev is watched; the kubelet's folders come and go.
    """
    pod_resources = settings.pod_resources_socket.rsplit("/", 1)[0]
    return {
        "/dev": ("nvidia",),
        "/dev/char": ("195:",),
        "/proc/driver": ("nvidia",),
        settings.device_plugins_dir: (),
        pod_resources: (),
        "/etc/cdi": (),
        "/run/cdi": (),
        RUN: ("released", "paused", "waiting"),
    }
