"""Device access of a case's container: its process, the access program's answers, its scope's
list."""

from __future__ import annotations

from collections.abc import Sequence

from agent.core.access.containers import UNUSED_DEVICE
from agent.model.access import CurrentAccess, Device, Process, ScopeDevices, Verdict

from .node import BOOTTIME, NODES

GIVEN_TO_ALL = (Device("c", 195, 255), Device("c", 511, 0))
"""/dev/nvidiactl and /dev/nvidia-uvm."""


def governed(
    container_id: str,
    pid: int,
    allowed: Sequence[Device],
    named: Sequence[Device],
    cgroupfs: bool,
    is_read: bool,
    started: float = 0.99,
) -> tuple[Process, Verdict, ScopeDevices]:
    """`allowed` now, and `named` in its scope's list: until the next reload, and after it.
    `started`: boottime."""
    ticks = str(round(started * 100))
    unit = f"cri-containerd-{container_id}.scope"
    path = (
        f"/kubepods/besteffort/pod1/{container_id}"
        if cgroupfs
        else f"/kubepods.slice/pod1.slice/{unit}"
    )
    rules = "programs 7,9" if is_read else ""
    process = Process(
        container_id,
        pid,
        ticks,
        path,
        None,
        rules,
        True,
        0.0,
        "" if is_read else "BPF_PROG_QUERY: Operation not permitted",
    )
    asked = sorted({*(Device("c", *number) for number in NODES.values()), UNUSED_DEVICE})
    now = {
        device: CurrentAccess.ALLOWED if device in allowed else CurrentAccess.DENIED
        for device in asked
    }
    verdict = Verdict(
        container_id,
        pid,
        ticks,
        rules,
        BOOTTIME - 3,
        "scratch",
        False,
        tuple((d, now[d] if is_read else CurrentAccess.UNKNOWN) for d in asked),
        detail="" if is_read else "its device programs could not be read",
    )
    listed = (("/dev/char/1:3", "rwm"), ("char-*", "m"), *((d.path, "rw") for d in named))
    return process, verdict, ScopeDevices(unit, rules, BOOTTIME - 3, "strict", listed)
