"""Parts of a node disappear and return while the gate is open: each is reported within one cycle.
Repairs are disabled here, to test detection."""

from __future__ import annotations

import json
from collections.abc import Iterator

import gate
import pytest
from nspawn import Node


@pytest.fixture(scope="module")
def module_node(make_module_node) -> Node:
    node = make_module_node(boot=False)
    gate.prepare(node, "plug --gpus 8\n", gate.QUICK + "[Plugin]\nRepair=report\n")
    return node.boot()


@pytest.fixture
def node(module_node: Node) -> Iterator[Node]:
    """Open and ready, and so it must be again at the end, with the same agent."""
    gate.wait_ready(module_node)
    pid = gate.agent_pid(module_node)
    yield module_node
    gate.wait_ready(module_node)
    assert gate.agent_pid(module_node) == pid


def test_a_device_node_disappears_and_returns(node: Node) -> None:
    """Not ready within one cycle; nvidia-modprobe is removed, because the agent would repair the
    node before the test sees it."""
    node.run("mv /usr/bin/nvidia-modprobe /usr/bin/away")
    try:
        node.run("rm /dev/nvidia3")
        gate.wait_why(node, "/dev/nvidia3", gate.BEFORE_A_HEARTBEAT_S)
        code, why = gate.readyz(node)
        assert (code, "/dev/nvidia3" in why) == (503, True)
        assert "woken by inotify /dev" in gate.agent_log(node)
    finally:
        node.run("mv /usr/bin/away /usr/bin/nvidia-modprobe; simgpu nodes make")


def test_a_deaf_plugin_is_reported_and_not_restarted(node: Node) -> None:
    """A plugin that does not register again after a kubelet restart: not ready, the reason, and no
    action."""
    manifest = node.read(gate.MANIFEST)
    deaf = manifest.replace("      env:\n", '      env:\n        - {name: DEAF, value: "1"}\n')
    old = {row["id"] for row in gate.plugins(node)}
    node.put(gate.MANIFEST, deaf)
    try:
        gate.until(
            lambda: {row["id"] for row in gate.plugins(node) if row["state"] == "RUNNING"} - old,
            lambda: gate.plugins(node),
        )
        gate.wait_ready(node)
        plugins = gate.plugins(node)
        node.systemctl("restart", "kubelet.service")
        kubelet = gate.kubelet_start(node)
        mark = (
            node.run("journalctl -n 0 --show-cursor -q").stdout.strip().removeprefix("-- cursor: ")
        )
        gate.wait_why(node, "the kubelet lists no nvidia.com/*")
        code, why = gate.readyz(node)
        assert (code, "the kubelet lists no nvidia.com/*" in why) == (503, True)
        cycle = gate.status(node)["cycle"]["number"]
        gate.until(lambda: gate.status(node)["cycle"]["number"] >= cycle + 2, "two more looks")
        assert gate.plugins(node) == plugins
        assert gate.kubelet_start(node) == kubelet
        lines = node.journal("-q", "-o", "json", "-t", "gpu-gate", "--after-cursor", mark)
        acts = {json.loads(line).get("GPU_GATE_ACTION") for line in lines.splitlines()}
        assert not acts & {"SendHup", "Rebuild", "RestartUnit"}
    finally:
        node.put(gate.MANIFEST, manifest)


def test_the_plugins_folder_disappears_and_returns(node: Node) -> None:
    node.run(f"rm -rf {gate.SOCKETS}; mkdir {gate.SOCKETS}")
    gate.until(lambda: gate.status(node)["cycle"]["wakes"], "no cycle")
    cycle = gate.status(node)["cycle"]["number"]

    def heard() -> bool:
        now = gate.status(node)["cycle"]
        return bool(now["number"] > cycle and f"inotify {gate.SOCKETS}" in now["wakes"])

    def touched() -> bool:
        node.run(f"touch {gate.SOCKETS}/one; rm {gate.SOCKETS}/one")
        return heard()

    gate.until(touched, lambda: gate.status(node)["cycle"])
    node.systemctl("restart", "kubelet.service")
    # Its container still holds the folder that is gone: only a new one sees the kubelet.
    (plugin,) = [row for row in gate.plugins(node) if row["state"] == "RUNNING"]
    node.run(f"simcri stop -t 10 {gate.PLUGIN}; simcri rm {plugin['id']}")
    gate.wait_ready(node)
