"""GPU containers on a machine with every controller of cgroup v2: reloads under load, and limits
that are reached."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gate
from boots import SLOW_S
from here import Here

PROBE = "python3 -I -S /usr/share/gpu-gate/gpu_gate/host/access/access_program.py"
NAMES = ("first", "second")
CHECKS = 1000
FILL = "busybox dd if=/dev/zero of=/dev/shm/fill bs=1M count=16"
LOAD = "while :; do systemd-run --quiet --wait --collect true; sleep 0.2; done"
"""Units come and go: with two of these the one emulated processor is busy with them most of the
time."""


def pod(node: Here, name: str, devices: str) -> dict[str, Any]:
    """A pod of the stand-in kubelet with one GPU; returns its container's row in /status, once the
    agent has checked it."""
    node.put(f"/etc/kubernetes/manifests/{name}.yaml", gate.pod_text(name, 1, devices))
    gate.until(lambda: row(node, name).get("how"), lambda: gate.status(node).get("access"), SLOW_S)
    return row(node, name)


def row(node: Here, name: str) -> dict[str, Any]:
    return next(
        (row for row in gate.status(node).get("access", ()) if row["container"] == name), {}
    )


def reloads_under_load(node: Here) -> dict[str, Any]:
    """Reloads while units start and stop: no container loses a GPU, nothing restarts, and the gate
    is open afterwards."""
    rows = [pod(node, name, "/dev/nvidiactl,/dev/nvidia-uvm,/dev/nvidia[0-9]*") for name in NAMES]
    assert [one["now"] for one in rows] == ["allowed"] * 2, rows
    gate.wait_ready(node, SLOW_S)
    before = gate.kubelet_start(node), gate.agent_pid(node), gate.plugins(node)
    for number in range(2):
        node.run(["systemd-run", "--quiet", f"--unit=load-{number}", "sh", "-c", LOAD])
    for number in range(4):
        node.systemctl("daemon-reexec" if number == 2 else "daemon-reload", timeout=SLOW_S)
    node.run("systemctl stop 'load-*'")
    gate.wait_ready(node, SLOW_S)
    gate.until(
        lambda: node.run("gpu-gate access", check=False).returncode == 0,
        lambda: node.run("gpu-gate access", check=False).stdout,
        SLOW_S,
    )
    assert (gate.kubelet_start(node), gate.agent_pid(node), gate.plugins(node)) == before
    assert gate.allocatable(node) == 8
    return {"access": node.run("gpu-gate access").stdout.splitlines()}


def containers_at_their_limits(node: Here) -> dict[str, Any]:
    """Memory and pids of the checked cgroup are at their limit: the checks have no effect on it."""
    rows = [row(node, name) for name in NAMES]
    cgroups = [Path(f"/sys/fs/cgroup{one['cgroup']}") for one in rows]
    for one, cgroup in zip(rows, cgroups, strict=True):
        node.run(f"ctr -n k8s.io task exec --exec-id fill {one['id']} {FILL}")
        _limit(cgroup, "pids")
        refused = node.run(f"echo $$ >{cgroup}/cgroup.procs; true & wait", check=False).stderr
        assert "annot fork" in refused, refused
        # After that: a shell that joins wants memory of the cgroup, and would meet the OOM killer.
        _limit(cgroup, "memory")
    before = [_state(cgroup) for cgroup in cgroups]
    words = " ".join(f"--pid {one['pid']} /dev/nvidiactl c:1:3" for one in rows)
    found = []
    for _ in range(4):
        lines = node.run(
            f"{PROBE} {f'{words} ' * (CHECKS // 4 // len(rows))}", timeout=SLOW_S
        ).stdout.splitlines()
        found += [answer["access"] for line in lines for answer in json.loads(line)["answers"]]
    assert found == ["allowed"] * CHECKS * 2, sorted(set(found))
    after = [_state(cgroup) for cgroup in cgroups]
    assert after == before, (before, after)
    limits = [int((cgroup / "memory.max").read_text()) for cgroup in cgroups]
    used = [int((cgroup / "memory.current").read_text()) for cgroup in cgroups]
    assert all(limit - now < 1 << 20 < limit for limit, now in zip(limits, used, strict=True)), (
        limits,
        used,
    )
    return {"checks": CHECKS, "limits": limits, "used": used, "state": before[0]}


def _limit(cgroup: Path, kind: str) -> None:
    """No more than it uses now."""
    (cgroup / f"{kind}.max").write_text((cgroup / f"{kind}.current").read_text())


def _state(cgroup: Path) -> dict[str, str]:
    """What moves if anything of a check is counted there: at its limit, one more page shows in
    memory.events."""
    names = "memory.max memory.events pids.max pids.current pids.events cgroup.procs cgroup.events".split()
    return {name: (cgroup / name).read_text().strip() for name in names}


SCENARIOS = {"load": [reloads_under_load, containers_at_their_limits]}
