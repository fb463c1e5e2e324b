"""Units of the host by their names, and the folders whose changes wake the agent."""

from __future__ import annotations

from ...model.reading import Reading, Seen
from ...model.settings import Settings
from ...model.snapshot import Unit
from .layouts import KUBELET_UNITS, pod_resources_sockets
from .paths import RUN

RUNTIME_UNITS = ("containerd.service", "crio.service", "docker.service")
FABRIC_MANAGER = "nvidia-fabricmanager.service"
DRIVER_UNITS = ("nvidia-persistenced.service", FABRIC_MANAGER)


IMEX_UNIT = "nvidia-imex.service"
"""Lets GPUs of several hosts share memory over NVLink (GB200); a host's own GPUs do without."""
CDI_UNIT = "nvidia-cdi-refresh.service"
"""Writes the CDI spec again (nvidia-container-toolkit 1.18, deployments/systemd)."""


def kubelet_units(settings: Settings) -> tuple[str, ...]:
    if settings.kubelet_unit == "none":
        return ()
    if settings.kubelet_unit:
        return (settings.kubelet_unit,)
    return KUBELET_UNITS


def running_kubelet(units: Reading[tuple[Unit, ...]], settings: Settings) -> str:
    """The unit whose layout this node has; "" where none is seen to run."""
    names = kubelet_units(settings)
    found = (
        [u.name for u in units.value if u.is_active and u.name in names]
        if isinstance(units, Seen)
        else []
    )
    return min(found, key=names.index, default="")


def scope_folder(scope: str) -> str:
    """Where systemd keeps what was set of a container's scope: its drop-ins."""
    return f"/run/systemd/transient/{scope}.d"


def watched_folders(settings: Settings) -> dict[str, tuple[str, ...]]:
    """Folders to be woken by, each with the name prefixes that matter there (none: every name).

    The driver makes no uevent for /dev/nvidia*, so /dev is watched; the kubelet's folders come and
    go.
    """
    return {
        "/dev": ("nvidia",),
        "/dev/char": ("195:",),
        "/dev/nvidia-caps": (),
        "/proc/driver": ("nvidia",),
        settings.device_plugins_dir: (),
        **{socket.rsplit("/", 1)[0]: () for socket in pod_resources_sockets(settings)},
        "/etc/cdi": (),
        "/run/cdi": (),
        RUN: ("released", "paused", "waiting", "launched"),
    }
