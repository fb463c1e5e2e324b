"""Nodes on which something else fails while the plugin is broken: the agent takes no action on
incomplete knowledge, continues to run, and makes no second repair after a kill in the middle of
one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gate
import pytest
import repair
from nspawn import Node

JOURNALCTL = "/usr/bin/journalctl"
FREEZE = f"""#!/bin/sh
case "$*" in *short-iso-precise*) systemctl kill --signal=STOP containerd.service;; esac
exec {JOURNALCTL}.real "$@"
"""
"""The last program that a repair runs before it writes the ledger; the doctor's own call comes
earlier."""
STATE = "/var/lib/gpu-gate"


@pytest.fixture(scope="module")
def module_node(make_module_node) -> Node:
    return gate.ready(make_module_node)


@pytest.fixture
def node(module_node: Node) -> Iterator[Node]:
    repair.without_agent(module_node)
    yield module_node
    assert "Traceback" not in gate.agent_log(module_node)


FAULTS = ("refuse", "garbage", "hang")


def test_a_kubelet_that_does_not_answer(node: Node) -> None:
    """Not zero GPUs but unknown: the plugin is visibly broken, and the agent takes no action."""
    broken = repair.unregistered_plugin(node)
    node.run(f"simgpu kubelet podresources={FAULTS[0]}")
    repair.with_agent(node)
    gate.wait_why(node, "the kubelet's pod-resources API gave no answer")
    for fault in FAULTS:
        node.run(f"simgpu kubelet podresources={fault}")
        cycle = gate.status(node).get("cycle", {}).get("number", 0)
        gate.until(
            lambda seen=cycle: gate.status(node).get("cycle", {}).get("number", 0) >= seen + 2,
            lambda name=fault: f"two looks at {name}: {gate.status(node)}",
        )
        found = repair.finding(node, "PluginRegistered")
        assert (found["verdict"], found["reason"]) == ("unknown", "KubeletSilent"), fault
        code, why = gate.readyz(node)
        assert (code, "pod-resources API gave no answer" in why) == (503, True), fault
        assert repair.healthz(node) == 200
    assert repair.actions(node) == [] and repair.plugin(node) == broken
    node.run("simgpu kubelet ok")
    repair.wait_repaired(node, ["rebuild"])


def test_a_stopped_runtime(node: Node) -> None:
    """Reported, without an action; once the runtime is back, the plugin is repaired."""
    broken = repair.unregistered_plugin(node)
    node.systemctl("stop", "containerd.service")
    repair.with_agent(node)
    gate.until(
        lambda: repair.finding(node, "PluginHealthy").get("reason") == "RuntimeSilent",
        lambda: gate.status(node),
    )
    gate.wait_why(node, "the kubelet lists no")

    def told() -> bool:
        code, why = gate.readyz(node)
        return code == 503 and "the container runtime" in why and "gave no answer" in why

    gate.until(told, lambda: gate.readyz(node))
    repair.wait_cycles(node, 2)
    assert repair.entries(node) == []
    node.systemctl("start", "containerd.service")
    repair.wait_repaired(node, ["rebuild"])
    assert repair.actions(node)[0]["target"] == broken["id"], "its container outlived the runtime"


def test_a_frozen_runtime(node: Node) -> None:
    """Each snapshot waits for it for one second at most."""
    repair.unregistered_plugin(node)
    with repair.stopped(node, "containerd.service"):
        repair.with_agent(node)
        gate.wait_why(node, "the kubelet lists no")
        repair.wait_cycles(node, 2)
        assert repair.finding(node, "PluginHealthy")["reason"] == "RuntimeSilent"
        assert repair.entries(node) == []
    repair.wait_repaired(node, ["rebuild"])


def test_a_runtime_restart_under_a_healthy_plugin(node: Node) -> None:
    before = repair.registered_plugin(node)
    repair.with_agent(node)
    gate.wait_ready(node)
    for _ in range(2):
        node.systemctl("restart", "containerd.service")
        repair.wait_cycles(node, 2)
    repair.wait_repaired(node, [])
    assert repair.plugin(node)["id"] == before["id"]


def read_only(node: Node) -> None:
    """The evidence finds room, the ledger's file cannot be written: /etc is read-only for the
    agent."""
    node.run(f"touch /etc/gpu-gate/ledger; ln -s /etc/gpu-gate/ledger {STATE}/ledger.jsonl")


def full(node: Node) -> None:
    node.run(f"mount -t tmpfs -o size=1m tmpfs {STATE}")


@pytest.mark.parametrize(
    ("spoil", "reason", "says"),
    [
        (
            read_only,
            "RepairRefused",
            "(Read-only file system), so no repair was begun",
        ),
        (full, "RepairRefused", "less than 32 MiB are free for evidence, so no repair was begun"),
    ],
)
def test_no_repair_without_a_ledger(node: Node, spoil, reason: str, says: str) -> None:
    broken = (
        repair.plugin(node) if gate.allocatable(node) != 8 else repair.unregistered_plugin(node)
    )
    spoil(node)
    try:
        repair.with_agent(node)
        gate.until(lambda: gate.gate(node).get("reason") == reason, lambda: gate.gate(node))
        assert says in gate.gate(node)["why"]
        assert says in gate.readyz(node)[1]
        repair.wait_cycles(node, 2)
        assert repair.plugin(node) == broken
        assert repair.bundles(node) == []
    finally:
        node.run(f"systemctl stop gpu-gate; umount {STATE} 2>/dev/null || :; rm -rf {STATE}/*")


def a_minute_later(node: Node) -> None:
    """As if the actions in the ledger were older: their back-off is over."""
    node.run(
        f"systemctl stop gpu-gate; jq -c '.at -= 100' {repair.LEDGER} >/run/aged; cat /run/aged "
        f">{repair.LEDGER}"
    )
    node.systemctl("start", "gpu-gate.service")


def frozen_at_the_act(node: Node, settings: str = "") -> None:
    """The runtime freezes when the evidence is saved: it receives the stop and does not act."""
    repair.unregistered_plugin(node)
    node.run(f"mv {JOURNALCTL} {JOURNALCTL}.real")
    node.put(JOURNALCTL, FREEZE, 0o755)
    try:
        repair.with_agent(node, settings)
        gate.until(lambda: len(repair.actions(node)) == 1, lambda: gate.gate(node))
    finally:
        node.run(f"mv {JOURNALCTL}.real {JOURNALCTL}")


def wait_repaired_now_or_later(node: Node) -> None:
    """A runtime that thaws may still stop the container; if it does not, one more repair
    follows."""

    def settled() -> dict[str, Any]:
        now = gate.gate(node)
        return (
            now if now.get("ready") or now.get("reason") in ("BudgetSpent", "RepairFailed") else {}
        )

    whats = ["rebuild"]
    if not gate.until(settled, lambda: gate.gate(node))["ready"]:
        a_minute_later(node)
        whats = ["rebuild"] * 2
    repair.wait_repaired(node, whats)


def test_agent_killed_between_the_ledger_and_the_action(node: Node) -> None:
    try:
        frozen_at_the_act(node)
        node.systemctl("kill", "--signal=KILL", "gpu-gate.service")
    finally:
        node.run("systemctl stop gpu-gate; systemctl kill --signal=CONT containerd.service")
    assert len(repair.bundles(node)) == 1 and repair.outcomes(node) == []
    node.systemctl("start", "gpu-gate.service")
    wait_repaired_now_or_later(node)


def test_a_runtime_that_does_not_stop_the_container(node: Node) -> None:
    """The outcome is recorded as soon as the action fails, and does not count: the agent retries
    it."""
    try:
        frozen_at_the_act(node, "VerifyWithinSec=40s\n")
        gate.until(lambda: repair.outcomes(node), lambda: gate.agent_log(node)[-2000:])
    finally:
        node.systemctl("kill", "--signal=CONT", "containerd.service")
    (said,) = repair.outcomes(node)
    assert said.startswith("failed: ")
    assert node.read(f"{repair.actions(node)[0]['evidence']}/outcome") == f"{said}\n"
    wait_repaired_now_or_later(node)


def test_agent_killed_between_stop_and_remove(node: Node) -> None:
    """The plugin ends slowly, and the agent is killed meanwhile: the repair is not repeated."""
    before = repair.registered_plugin(node, OLD="1", DEAF="1", LINGER_S="15")
    repair.with_agent(node)
    gate.wait_ready(node)
    node.systemctl("restart", "kubelet.service")
    repair.wait_log(node, before["id"], "shutting down")
    repair.kill_agent(node)
    assert repair.plugin(node)["id"] == before["id"] and len(repair.actions(node)) == 1
    repair.wait_repaired(node, ["rebuild"])
    assert repair.plugin(node)["id"] != before["id"]
