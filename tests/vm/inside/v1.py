"""The same machine booted with cgroup v1, where devices.list governs a container."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gate
from boots import SLOW_S, agent_said
from here import Here
from load import pod, row

GIVEN = ("c 195:255 rw", "c 195:{minor} rw", "c 235:0 rw")
TRY = """
import ctypes, os, sys
open(sys.argv[1] + "/cgroup.procs", "w").write("0")
libc = ctypes.CDLL(None, use_errno=True)
print([ctypes.get_errno() if libc.access(path.encode(), 6) else 0 for path in sys.argv[2:]])
"""


def it_is_cgroup_v1(node: Here) -> dict[str, Any]:
    assert node.run("stat -fc %T /sys/fs/cgroup").stdout.strip() == "tmpfs"
    assert Path("/sys/fs/cgroup/devices/devices.list").exists()
    gate.wait_ready(node, SLOW_S)
    assert gate.allocatable(node) == 8
    return {
        "mounts": re.findall(r"(?m)^cgroup\S* (\S+)", node.read("/proc/mounts")),
        "agent": agent_said(node),
    }


def a_loss_is_found(node: Here) -> dict[str, Any]:
    """What the legacy hook does on v1, without runc's knowledge: devices.allow. systemd does not
    know about it and takes it away."""
    one = pod(node, "legacy", "")
    assert one["now"] == "denied" and one["how"].startswith("devices.list"), one
    lines = node.read(f"/proc/{one['pid']}/cgroup").splitlines()
    cgroup = "/sys/fs/cgroup/devices" + next(
        line.split(":", 2)[2] for line in lines if ":devices:" in line
    )
    minor = next(
        d["device"] for d in one["devices"] if d["device"] not in ("c:195:255", "c:235:0")
    ).split(":")[2]
    nodes = ("/dev/nvidiactl", f"/dev/nvidia{minor}", "/dev/nvidia-uvm")
    start = Path(f"{cgroup}/devices.list").read_text().splitlines()
    assert "c *:* m" in start, start
    assert _tried(node, cgroup, *nodes) == [1, 1, 1], "making a node is no access"

    for rule in GIVEN:
        Path(f"{cgroup}/devices.allow").write_text(rule.format(minor=minor))
    _until(node, "allowed")
    assert row(node, "legacy")["after_reload"] == "lost", row(node, "legacy")
    assert _tried(node, cgroup, *nodes) == [0, 0, 0]

    node.systemctl("daemon-reload")
    _until(node, "denied")
    lost = row(node, "legacy")
    assert lost["loss"] == "reload", lost
    assert {d["device"] for d in lost["devices"] if d["now"] == "denied"} == {
        "c:195:255",
        f"c:195:{minor}",
        "c:235:0",
    }, lost
    assert _tried(node, cgroup, *nodes) == [1, 1, 1]
    left = Path(f"{cgroup}/devices.list").read_text().splitlines()
    assert "c *:* m" in left and not any("195" in line for line in left), left
    said = node.run("gpu-gate access", check=False)
    assert said.returncode == 1
    return {"devices.list": left, "access": said.stdout.splitlines()}


def _until(node: Here, now: str) -> None:
    gate.until(lambda: row(node, "legacy").get("now") == now, lambda: row(node, "legacy"), SLOW_S)


def _tried(node: Here, cgroup: str, *paths: str) -> list[int]:
    """errno of access(2), of a process that joins the container's own cgroup."""
    return [
        int(n) for n in re.findall(r"\d+", node.run(["python3", "-c", TRY, cgroup, *paths]).stdout)
    ]


SCENARIOS = {"v1": [it_is_cgroup_v1, a_loss_is_found]}
