"""What the first agent of a boot does before it imports the rest of itself, which takes half a
second of processor time while the machine boots.

On a host without NVIDIA GPUs nothing waits for the agent, so it lets everything else start first:
`gpu-gate wait` has ended by then, and the first snapshot finds a GPU that appears meanwhile. Where
the driver has GPUs already, the agent starts an NVML probe at once, because the kubelet waits for
the third equal answer.
"""

from __future__ import annotations

import os
import signal

from ..core.common.paths import (
    CONTAINER_MARKS,
    DRIVER_GPUS,
    DRIVER_VERSION,
    FIRST,
    MODULE_STATE,
    RUN,
)
from ..host.marks import read_mark
from ..host.probes.program import Started, leftovers, start
from ..model.settings import Settings
from .commands.wait import has_no_gpu

QUIET_S = 5.0
"""As long as systemd lets Type=idle wait for the rest of a boot."""
UNIT_FOLDERS = (
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
)


def keep_quiet(settings: Settings) -> bool:
    """Wait QUIET_S, or until SIGHUP, in the first agent of a boot on a host without GPUs.

    Reports READY to systemd first, so that the boot goes on. Returns False at once on any other
    host, and where the configuration expects GPUs; else True.
    """
    if settings.expected_gpus or _is_no_boot() or not has_no_gpu():
        return False
    from ..transport.sd_notify import Notify  # here: a first probe must not wait for it

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})  # before systemd may send one
    systemd = Notify()
    systemd.status(f"no NVIDIA GPU on the PCI bus; checking again within {QUIET_S:g} s")
    systemd.ready()
    systemd.close()
    signal.sigtimedwait({signal.SIGHUP}, QUIET_S)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
    return True


def first_probe(settings: Settings) -> Started | None:
    """Start the first probe of a boot. The caller takes it over as its own.

    Returns None in a later agent of the boot, and where only a snapshot can show whether a probe
    is allowed.
    """
    if _is_no_boot() or not _is_plain(settings) or leftovers():
        return None
    return start(settings.driver_root, DRIVER_VERSION, holds=True)


def _is_no_boot() -> bool:
    """True if an agent has run in this boot, or if a person or the package's installation has
    released the kubelet."""
    released = read_mark("released")
    return os.path.exists(f"{RUN}/{FIRST}look") or (released is not None and not released.at)


def _is_plain(settings: Settings) -> bool:
    """True if the loaded driver has GPUs and a probe is certainly allowed: no GPU is excluded,
    gpu-gate is not paused, no unit of PauseWhile= is installed, and this is not a container, which
    sees GPUs that are not its own."""
    if settings.exclude_gpus or settings.expected_gpus == ("0",):
        return False
    in_the_way = (
        *CONTAINER_MARKS,
        f"{RUN}/paused",
        *(f"{folder}/{unit}" for folder in UNIT_FOLDERS for unit in settings.pause_while),
    )
    if any(os.path.lexists(path) for path in in_the_way):
        return False
    try:
        with open(MODULE_STATE, encoding="ascii", errors="replace") as file:
            is_live = file.read(16).strip() == "live"
        return is_live and os.path.exists(DRIVER_VERSION) and bool(os.listdir(DRIVER_GPUS))
    except OSError:
        return False
