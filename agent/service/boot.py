"""What the first agent of a boot does before it loads the rest of itself: that is half a second of
a processor, on a machine that boots everything else on the same few.

A host without NVIDIA GPUs lets everything else start first, for nothing there waits for the agent:
the wait unit has answered by then (`gpu-gate wait`), and a GPU that comes meanwhile is found by the
first look. Where the driver holds GPUs already, NVML is asked at once, since the kubelet waits for
the third answer.
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
    """False at once, but in the first agent of a boot of a host that shows no GPU and expects none:
    there True after QUIET_S, or at SIGHUP. systemd is told that it is up: this is what it does, and
    the boot goes on."""
    if settings.expected_gpus or _is_no_boot() or not has_no_gpu():
        return False
    from ..transport.sd_notify import (
        Notify,  # where NVML is asked, nothing that it does not need stands before it
    )

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})  # before systemd may send one
    systemd = Notify()
    systemd.status(f"no NVIDIA GPU on the PCI bus; looks again within {QUIET_S:g} s")
    systemd.ready()
    systemd.close()
    signal.sigtimedwait({signal.SIGHUP}, QUIET_S)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
    return True


def first_probe(settings: Settings) -> Started | None:
    """The first probe of a boot, where any look would ask for one; None where only a look can tell,
    and in a later agent of the boot. Whoever is given it judges it as one of its own."""
    if _is_no_boot() or not _is_plain(settings) or leftovers():
        return None
    return start(settings.driver_root, DRIVER_VERSION, holds=True)


def _is_no_boot() -> bool:
    """An agent has looked in this boot, or a person or the package's installation has released the
    kubelet: they ask it next."""
    released = read_mark("released")
    return os.path.exists(f"{RUN}/{FIRST}look") or (released is not None and not released.at)


def _is_plain(settings: Settings) -> bool:
    """A loaded driver holds GPUs; none is set apart, nobody has paused, nothing that a probe
    disturbs is installed, and this is no container, which sees GPUs that it was not given."""
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
