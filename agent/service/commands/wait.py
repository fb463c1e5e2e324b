"""`gpu-gate wait`: delay the kubelet until the gate releases it. It always ends with success.

systemd (252 and 257) repeats a failed wait unit at every later start of the kubelet, so the exit
status is always 0: released, not applicable, or at the deadline. The wait polls the mark that the
agent leaves under /run, so an agent that crashes, restarts or hangs adds no delay. Only the
standard library, no D-Bus, no gRPC.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

from ...core.common.layouts import control_plane_files
from ...core.common.paths import PCI, SOC_FAMILY
from ...core.gate.deadline import hold_limit_s
from ...host.marks import read_mark, write_mark, write_released
from ...model.errors import ActionFailed
from ...model.mark import Mark
from ...model.settings import Settings
from ...transport.clock import boottime

POLL_S = 0.02
NVIDIA_VENDOR = "0x10de"
GPU_CLASSES = ("0x0300", "0x0302")


def run(settings: Settings) -> int:
    """Return 0 once the kubelet may start."""
    released = read_mark("released")
    if released is None and not settings.expected_gpus and has_no_gpu():
        released = _release("no NVIDIA GPU on the PCI bus")
    if released is None:
        released = _wait(settings)
    _log(f"the kubelet may start: {released.reason}")
    return 0


def _wait(settings: Settings) -> Mark:
    began = _first_wait_at()
    plane = any(os.path.exists(path) for path in control_plane_files(settings))
    deadline = began + hold_limit_s(settings, plane)
    _log(
        f"waiting for the GPUs, {max(0.0, deadline - boottime()):.0f} s at most; to release "
        "the kubelet now: "
        "systemctl stop gpu-gate.target"
    )
    while True:
        released = read_mark("released")
        if released is not None:
            return released
        # One second after the agent's own deadline: its reason is better and should come first.
        if boottime() >= deadline + 1.0:
            return _release(f"the deadline is over; {_agent_state()}")
        time.sleep(POLL_S)


def _first_wait_at() -> float:
    """When this boot began to wait, boottime: a restarted wait keeps the first deadline."""
    earlier = read_mark("waiting")
    if earlier is not None and 0.0 < earlier.at <= boottime():
        return earlier.at
    _leave(write_mark, "/", "waiting", "the wait unit was started")
    return boottime()


def _agent_state() -> str:
    from .. import ask  # imported here: a wait that ends at once does not need sockets

    try:
        _, why = ask.get("/readyz", within_s=0.5)
        return f"the agent reports: {why.decode('utf-8', 'replace').strip()[:160]}"
    except ask.NoAgent as exc:
        return str(exc)


def has_no_gpu() -> bool:
    """True only if sysfs could be read and shows none."""
    try:
        if _line(SOC_FAMILY).lower().startswith("tegra"):  # its GPU is a part of the SoC
            return False
    except FileNotFoundError:
        pass
    except OSError:
        return False
    try:
        names = os.listdir(PCI)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    for name in names:
        try:
            if _line(f"{PCI}/{name}/vendor") == NVIDIA_VENDOR and _line(
                f"{PCI}/{name}/class"
            ).startswith(GPU_CLASSES):
                return False
        except FileNotFoundError:
            continue
        except OSError:
            return False
    return True


def _line(path: str) -> str:
    with open(path, encoding="ascii", errors="replace") as file:
        return file.readline().strip()


def _release(reason: str) -> Mark:
    _leave(write_released, reason)
    return Mark(reason, boottime())


def _leave(write: Callable[..., None], *arguments: str) -> None:
    """Write a mark, best effort: without it the kubelet's next start waits once more."""
    try:
        write(*arguments)
    except ActionFailed as failed:
        _log(failed.sentence)


def _log(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
