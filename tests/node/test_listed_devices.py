"""What the kubelet should list, on a node: MIG devices by strategy, a plugin that is limited on
purpose, replicas under another name, and MIG devices that are recreated while a plugin runs.
Plugin, kubelet and NVML are stand-ins."""

from __future__ import annotations

import gate
import pytest
import repair
from nspawn import Node
from test_hold import again


@pytest.fixture(scope="module")
def node(make_module_node) -> Node:
    return gate.ready(make_module_node, repair.SLOW_PLUGIN, gpus=2)


def in_mig(node: Node, *names: str) -> None:
    """GPU 0 is cut in these; the first is of three slices."""
    lines = ["simgpu nvml reset mig=on gpu=0"]
    lines += [
        f"simgpu nvml mig-device=0 uuid=MIG-{name} gi={n} profile={'1g.10gb' if n else '3g.40gb'}"
        for n, name in enumerate(names)
    ]
    node.run("; ".join(lines))


def lists(node: Node, words: str) -> None:
    gate.until(
        lambda: words in repair.finding(node, "PluginRegistered").get("because", ""),
        lambda: repair.finding(node, "PluginRegistered"),
    )
    gate.wait_ready(node)
    assert repair.actions(node) == []


def test_mig_mixed_and_then_recreated_under_a_limited_plugin(node: Node) -> None:
    in_mig(node, "a", "b", "c")
    repair.replace_plugin(node, repair.manifest(node, MIG_STRATEGY="mixed"))
    lists(
        node,
        "1 of 1 GPUs as nvidia.com/gpu; 2 of 2 MIG devices as nvidia.com/mig-1g.10gb; "
        "1 of 1 MIG devices as nvidia.com/mig-3g.40gb",
    )
    limited = repair.replace_plugin(
        node, repair.manifest(node, MIG_STRATEGY="mixed", NVIDIA_VISIBLE_DEVICES="0")
    )
    lists(node, "nvidia.com/mig-3g.40gb (the plugin was given 1 of 2 GPUs: 0)")
    in_mig(node, "d", "e", "f")
    again(node)
    gate.until(
        lambda: [e["what"] for e in repair.actions(node)] == ["hup"] and repair.outcomes(node),
        lambda: (gate.gate(node), repair.finding(node, "PluginRegistered"), repair.entries(node)),
    )
    gate.wait_ready(node)
    assert repair.actions(node)[0]["cause"].startswith("PluginListsGone ")
    assert repair.plugin(node) == limited and repair.outcomes(node) == [
        "the kubelet lists every GPU"
    ]
    repair.without_agent(node)


def test_replicas_under_another_name(node: Node) -> None:
    in_mig(node, "d")
    uuid = node.run("sed -n 's/^gpu 1 uuid=\\([^ ]*\\).*/\\1/p' /run/simgpu/nvml").stdout.strip()
    repair.replace_plugin(
        node, repair.manifest(node, REPLICAS="4", RENAME="yes", NVIDIA_VISIBLE_DEVICES=uuid)
    )
    repair.with_agent(node, "RegisterWithinSec=60s\n")
    lists(
        node,
        "1 of 1 GPUs as nvidia.com/gpu.shared, 4 times each (the plugin was given 1 of 2 "
        f"GPUs: {uuid})",
    )
