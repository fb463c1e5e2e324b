"""Signals arrive, get lost and mislead: the agent's process and the kubelet stay the same, and the
state is correct again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gate
import pytest
import tree
from nspawn import Node

DBUS = ("dbus.socket", "dbus.service")


@pytest.fixture(scope="module", params=tree.SUITES)
def module_node(request: pytest.FixtureRequest, make_module_node) -> Node:
    node = make_module_node(request.param, boot=False)
    gate.prepare(node, "plug --gpus 8\n", gate.QUICK)
    return node.boot()


@pytest.fixture
def node(module_node: Node) -> Iterator[Node]:
    """Open and ready, and so it must be again at the end, with the same agent."""
    gate.wait_ready(module_node)
    pid = gate.agent_pid(module_node)
    yield module_node
    gate.wait_ready(module_node)
    assert gate.agent_pid(module_node) == pid
    gate.until(
        lambda: not gate.status(module_node)["trouble"], lambda: gate.status(module_node)["trouble"]
    )


DISTURBANCES = {
    "daemon-reload, 20 times": "for i in $(seq 20); do systemctl daemon-reload; done",
    "daemon-reexec": "systemctl daemon-reexec",
    "dbus": "systemctl restart dbus.service",
    "persistenced": "systemctl restart nvidia-persistenced.service",
    "journald": "systemctl restart systemd-journald.service",
    "udevd": "systemctl restart systemd-udevd.service",
    "a SIGHUP": "systemctl reload gpu-gate.service",
}


@pytest.mark.parametrize("command", DISTURBANCES.values(), ids=DISTURBANCES.keys())
def test_agent_and_kubelet_are_unaffected(node: Node, command: str) -> None:
    before, cycle = gate.kubelet_start(node), gate.status(node)["cycle"]["number"]
    wait = node.show("gpu-gate-wait.service", "InvocationID")
    plugin = gate.plugins(node)
    node.run(command)
    if "journald" not in command and "udevd" not in command:
        gate.until(lambda: gate.status(node)["cycle"]["number"] > cycle, "the agent was not woken")
    gate.wait_ready(node)
    assert gate.kubelet_start(node) == before
    assert node.show("gpu-gate-wait.service", "InvocationID") == wait
    assert gate.plugins(node) == plugin


def test_a_reload_causes_a_new_probe(node: Node) -> None:
    number = gate.status(node)["probe"]["last"]["number"]
    node.systemctl("daemon-reload")
    gate.until(
        lambda: gate.status(node)["probe"]["last"]["number"] > number, lambda: gate.status(node)
    )


def test_a_missing_bus_is_reported_and_polling_continues(node: Node) -> None:
    before = gate.kubelet_start(node)
    node.systemctl("stop", *DBUS)
    try:

        def heard() -> dict[str, Any]:
            now = gate.status(node)
            return now if any("bus" in line.lower() for line in now.get("trouble", ())) else {}

        now = gate.until(heard, lambda: gate.status(node).get("trouble"))
        persistence = next(f for f in now["findings"] if f["condition"] == "PersistenceActive")
        assert persistence["verdict"] == "unknown", "what cannot be read is not what it was"
        node.run("simgpu nvml show=7; gpu-gate pause; gpu-gate resume")
    finally:
        node.systemctl("start", *DBUS)
        node.run("simgpu nvml ok")
    gate.until(lambda: not gate.status(node)["trouble"], lambda: gate.status(node)["trouble"])
    assert gate.kubelet_start(node) == before
    assert "event source is back" in gate.agent_log(node)


def test_a_kubelet_restart_is_not_gated_again(node: Node) -> None:
    before, waited = gate.kubelet_start(node), node.show("gpu-gate-wait.service", "InvocationID")
    target = node.show("gpu-gate.target", "ActiveEnterTimestampMonotonic")
    node.run("simgpu nvml init=999")
    try:
        node.systemctl("restart", "kubelet.service", timeout=60)
        assert gate.kubelet_start(node) != before
    finally:
        node.run("simgpu nvml ok")
    assert node.show("gpu-gate-wait.service", "InvocationID") == waited
    assert node.show("gpu-gate.target", "ActiveEnterTimestampMonotonic") == target
    gate.until(lambda: "registrations" in gate.kubelet_state(node), "no state")
    if gate.allocatable(node) != 8:
        gate.plugin_hup(
            node
        )  # it asked NVML while that failed: the incident, which nobody mends yet
    gate.wait_ready(node)
    assert gate.kubelet_state(node)["registrations"] >= 1


def test_a_killed_kubelet_restarts_and_its_plugin_registers(node: Node) -> None:
    before, attempts = gate.kubelet_start(node), gate.plugins(node)
    node.systemctl("kill", "--signal=KILL", "kubelet.service")
    gate.until(lambda: not node.is_active("kubelet.service"), "it lives")
    node.systemctl(
        "restart", "kubelet.service"
    )  # on 252 a mere start would wait for RestartSec= as well
    gate.until(lambda: gate.allocatable(node) == 8, lambda: gate.kubelet_state(node))
    gate.wait_ready(node)
    assert gate.kubelet_start(node) != before
    assert gate.plugins(node) == attempts
