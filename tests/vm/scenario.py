"""The boots of the tests: the files over the machine's disk, and the scenarios there (inside/)."""

from __future__ import annotations

from pathlib import Path

import qemu
from disk import Disk

HERE = Path(__file__).resolve().parent
NODE = HERE.parent / "node"
UNITS = "etc/systemd/system"
CONF = "etc/gpu-gate/gpu-gate.conf.d/90-test.conf"
Files = dict[str, "str | Path"]

INSIDE: Files = {
    "opt/vm/inside": HERE / "inside",
    **{
        f"opt/vm/node/{name}.py": NODE / f"{name}.py"
        for name in ("gate", "machine", "nspawn", "remains")
    },
    f"{UNITS}/vm-live.service": HERE / "inside/vm-live.service",
    f"{UNITS}/multi-user.target.wants/vm-live.service": "-> /etc/systemd/system/vm-live.service",
    # The stand-in NVML writes down who called it, where the agent's sandbox lets it.
    f"{UNITS}/gpu-gate.service.d/records.conf": "[Service]\nReadWritePaths=-/run/simgpu\n",
}
WITHOUT: Files = {
    f"{UNITS}/{name}": "-> /dev/null"
    for name in (
        "gpu-gate.service",
        "gpu-gate-wait.service",
        "gpu-gate.target",
        "kubelet.service.d/10-gpu-gate.conf",
    )
}
"""As if the package were not installed."""
KILLED: Files = {
    # $$, which a unit writes so, is the pid of what it becomes; a start takes longer than that
    # here.
    f"{UNITS}/gpu-gate.service.d/killed.conf": "[Service]\nExecStart=\n"
    "ExecStart=/bin/sh -c 'mkdir /run/simgpu/killed && { sleep 0.5; kill -KILL $$$$; } & exec "
    "gpu-gate run'\n",
}
HEALTHY: Files = {"etc/simgpu.conf": "plug --gpus 8\n"}
INCIDENT: Files = {"etc/simgpu.conf": "plug --gpus 8\ncalls\npersistenced: nvml init=999 for=6\n"}
BROKEN: Files = {"etc/simgpu.conf": "plug --gpus 8\nnvml init=999\n"}
NO_GPU: Files = {"etc/simgpu.conf": "# none\n"}
V1 = "systemd.unified_cgroup_hierarchy=0 systemd.legacy_systemd_cgroup_controller=1"


def live(
    disk: Disk, names: str, files: Files, words: str = "", within_s: float = 900.0
) -> qemu.Boot:
    """One boot; `names` are those of inside/live.py, parted by commas."""
    return qemu.boot(disk, {**INSIDE, **files}, f"gpu-gate.live={names} {words}", within_s)
