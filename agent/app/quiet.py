"""A host without NVIDIA GPUs boots: the agent lets everything else start first, for nothing there waits for it.

Its start is half a second of a processor, on a small machine that boots everything else on one or two of them. The
wait unit has answered for it by then (`gpu-gate wait`), and a GPU that comes meanwhile is found by the first look.
"""

from __future__ import annotations

import os
import signal

from ..core.paths import FIRST, RUN
from ..model.settings import Settings
from ..wire.sd import Notify
from .wait import has_no_gpu, read_mark

QUIET_S = 5.0
"""As long as systemd lets Type=idle wait for the rest of a boot."""


def keep_quiet(settings: Settings) -> None:
    """Return at once, but in the first agent of a boot of a host that shows no GPU and expects none: there after
    QUIET_S, or at SIGHUP. systemd is told that it is up: this is what it does, and the boot goes on."""
    if settings.expected_gpus or _is_no_boot() or not has_no_gpu():
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})  # before systemd may send one
    systemd = Notify()
    systemd.status(f"no NVIDIA GPU on the PCI bus; looks again within {QUIET_S:g} s")
    systemd.ready()
    systemd.close()
    signal.sigtimedwait({signal.SIGHUP}, QUIET_S)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})


def _is_no_boot() -> bool:
    """An agent has looked in this boot, or a person or the package's installation has released the kubelet: they
    ask it next."""
    released = read_mark("released")
    return os.path.exists(f"{RUN}/{FIRST}look") or (released is not None and not released.at)
