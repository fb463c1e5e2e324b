"""Additive actions on a real node: missing links and nodes are created, with nvidia-modprobe, for a
loaded module only."""

from __future__ import annotations

import time
from collections.abc import Iterator

import gate
import pytest
from nspawn import Node

CALLS = "/run/simgpu/modprobe.calls"
MODPROBE = "/usr/bin/nvidia-modprobe"


@pytest.fixture(scope="module")
def module_node(make_module_node) -> Node:
    node = make_module_node(boot=False)
    gate.prepare(node, "plug --gpus 8\n", gate.QUICK)
    return node.boot()


@pytest.fixture
def node(module_node: Node) -> Iterator[Node]:
    gate.wait_ready(module_node)
    kubelet, plugins = gate.kubelet_start(module_node), gate.plugins(module_node)
    module_node.run(f"rm -f {CALLS}")
    yield module_node
    gate.wait_ready(module_node)
    assert gate.kubelet_start(module_node) == kubelet
    assert gate.plugins(module_node) == plugins


def calls(node: Node) -> list[str]:
    """The calls of nvidia-modprobe."""
    said = node.run(f"cat {CALLS}", check=False).stdout
    return [line.split(" ", 1)[1] for line in said.splitlines()]


def links(node: Node) -> list[str]:
    return sorted(
        node.run("find /dev/char -lname '../nvidia*' -printf '%f %l\n'").stdout.splitlines()
    )


def test_missing_links_are_created(node: Node) -> None:
    before = links(node)
    assert len(before) >= 9
    node.run("simgpu nodes unlink")
    gate.until(lambda: links(node) == before, lambda: links(node), gate.BEFORE_A_HEARTBEAT_S)
    assert calls(node) == []
    node.run("rm /dev/char/195:3")
    gate.until(lambda: links(node) == before, lambda: links(node), gate.BEFORE_A_HEARTBEAT_S)


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("nvidiactl", "-c 255"),
        ("nvidia3", "-c 3"),
        ("nvidia-uvm", "-u -c 0"),
    ],
)
def test_nvidia_modprobe_creates_missing_nodes(node: Node, name: str, asked: str) -> None:
    number = node.run(["stat", "-c", "%t:%T", f"/dev/{name}"]).stdout
    node.run(["rm", f"/dev/{name}"])
    node.wait_for(["test", "-c", f"/dev/{name}"], gate.BEFORE_A_HEARTBEAT_S)
    assert node.run(["stat", "-c", "%t:%T", f"/dev/{name}"]).stdout == number
    assert calls(node) == [asked]
    gate.wait_ready(node)


def test_a_node_with_another_major_is_not_accepted(node: Node) -> None:
    node.run("rm /dev/nvidia3; mknod /dev/nvidia3 c 1 3")
    gate.wait_why(node, "/dev/nvidia3", gate.BEFORE_A_HEARTBEAT_S)
    node.run("rm /dev/nvidia3; simgpu nodes make")


def test_without_nvidia_modprobe_one_log_line_and_no_busy_loop(node: Node) -> None:
    node.run(f"mv {MODPROBE} /usr/bin/away; rm /dev/nvidia5")
    try:
        gate.wait_why(node, "missing: /dev/nvidia5", gate.BEFORE_A_HEARTBEAT_S)
        gate.until(
            lambda: "action failed: nvidia-modprobe" in gate.agent_log(node),
            lambda: gate.agent_log(node),
        )
        first = gate.status(node)["cycle"]["number"]
        began = time.monotonic()
        time.sleep(6)
        spun = gate.status(node)["cycle"]["number"] - first
        assert spun <= 2 + (time.monotonic() - began), "cycles without an end"
        lines = [line for line in gate.agent_log(node).splitlines() if "action failed" in line]
        assert len(lines) == 1, "said once, not at every look"
    finally:
        node.run(f"mv /usr/bin/away {MODPROBE}; simgpu nodes make")


def test_without_a_module_nvidia_modprobe_is_never_called(node: Node) -> None:
    node.run(f"simgpu driver unload; rm -f {CALLS}")
    gate.wait_phase(node, "WAITING")
    cycle = gate.status(node)["cycle"]["number"]
    node.systemctl("reload", "gpu-gate.service")
    gate.until(lambda: gate.status(node)["cycle"]["number"] > cycle, "no cycle")
    assert gate.readyz(node)[0] == 503
    assert calls(node) == []
    assert not node.exists("/dev/nvidiactl")
    node.run("simgpu driver load")


def test_make_nodes_no_creates_nothing(node: Node) -> None:
    gate.configure(node, gate.QUICK + "[Driver]\nMakeNodes=no\n")
    node.systemctl("reload", "gpu-gate.service")
    gate.until(lambda: "MakeNodes=no" in gate.agent_log(node), "not read")
    node.run("rm /dev/char/195:3 /dev/nvidia6")
    gate.wait_why(node, "missing: /dev/nvidia6", gate.BEFORE_A_HEARTBEAT_S)
    assert calls(node) == []
    assert not node.exists("/dev/char/195:3")
    gate.configure(node, gate.QUICK)
    node.systemctl("reload", "gpu-gate.service")
    node.wait_for("test -c /dev/nvidia6 && test -L /dev/char/195:3")
