"""The agent's reports on device access of real containers: who holds GPUs, after a reload, and
after losses."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import gate
import pytest
import repair
import tree
from nspawn import Node
from test_access import PROGRAM

SETTINGS = gate.QUICK + "[Agent]\nHeartbeatSec=3s\n"


@pytest.fixture(scope="module", params=tree.SUITES)
def node(request, make_module_node) -> Node:
    node = make_module_node(request.param, boot=False)
    gate.prepare(node, "plug --gpus 8\n", SETTINGS)
    node.put("/opt/probe/program.py", PROGRAM)
    node.boot()
    gate.wait_ready(node)
    node.run(
        "sed 's,^  name: gpu-a,&\\n  annotations: {sim/devices: \"/dev/nvidia*\"},' "
        "/opt/gpu-gate-sim/manifests/gpu-pod.yaml >/etc/kubernetes/manifests/gpu-pod.yaml"
    )
    return node


def rows(node: Node) -> dict[str, dict[str, Any]]:
    """The output of gpu-gate access, by container name."""
    said = node.run("gpu-gate access --json", check=False).stdout
    return {row["container"]: row for row in json.loads(said)["containers"]} if said else {}


def wait_row(node: Node, name: str, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Wait until the row of this container is as wanted; return it. It may be missing for a moment,
    or be checked again."""

    def found() -> dict[str, Any]:
        row = rows(node).get(name, {})
        return row if row and holds(row) else {}

    return dict(gate.until(found, lambda: f"{name}, but {rows(node)}"))


def wait_now(node: Node, name: str, now: str) -> dict[str, Any]:
    return wait_row(node, name, lambda row: bool(row["now"] == now))


def deny(node: Node, cgroup: str) -> None:
    """One more program, which denies /dev/nvidiactl, as an update by a runtime does: no reload, no
    signal."""
    node.run(["python3", "/opt/probe/program.py", f"/sys/fs/cgroup{cgroup}", "deny", "195", "255"])


def test_access_from_the_start_of_a_container_to_its_losses(node: Node) -> None:
    pod = wait_now(node, "main", "allowed")
    assert (pod["namespace"], len(pod["gpus"])) == ("default", 2)
    assert (pod["cgroup_driver"], pod["how"]) == ("systemd", "scratch")
    assert pod["unit"] == f"cri-containerd-{pod['id']}.scope" and not pod["opens_everything"]
    assert {device["path"] for device in pod["devices"]} >= {"/dev/nvidiactl"}
    assert all(
        "allocated" in device["given"]
        for device in pod["devices"]
        if device["path"] == "/dev/nvidiactl"
    )
    plugin = wait_now(node, gate.PLUGIN, "allowed")
    assert plugin["is_plugin"]
    wait_row(node, "main", lambda row: row["after_reload"] == "allowed")
    table = node.run("gpu-gate access")
    assert table.returncode == 0 and "default/gpu-a" in table.stdout

    node.systemctl("daemon-reload")
    # Two heartbeats later the verdict is the same one, only older; and a loss is not that reload's
    # any more.
    older = wait_row(node, "main", lambda row: (row["age_s"] or 0) > 7)
    assert older["now"] == "allowed" and gate.readyz(node)[0] == 200

    deny(node, pod["cgroup"])
    lost = wait_now(node, "main", "denied")
    assert (lost["loss"], lost["after_reload"]) == (
        "update",
        "denied",
    ) and "/dev/nvidiactl" in lost["why"]
    assert node.run("gpu-gate access", check=False).returncode == 1
    assert repair.finding(node, "WorkloadAccess")["reason"] == "AccessDenied"
    assert gate.readyz(node)[0] == 200, "a workload's loss is said, and closes nothing"
    assert "may not open /dev/nvidiactl" in gate.agent_log(node)

    assert gate.allocatable(node) == 8, "the kubelet lists everything"
    deny(node, plugin["cgroup"])
    gate.until(lambda: gate.readyz(node)[0] == 503, "the node is not ready at once")
    repair.wait_repaired(node, ["rebuild"])
    wait_row(node, gate.PLUGIN, lambda row: row["id"] != plugin["id"])
    assert "Traceback" not in gate.agent_log(node)
