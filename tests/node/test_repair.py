"""A node that missed the race is repaired: evidence is saved, one container is recreated, and 8 of
8 GPUs are listed."""

from __future__ import annotations

import json
import re

import gate
import repair
import tree
from nspawn import Node

INCIDENT = "plug --gpus 8\npersistenced: nvml init=999\n"


def test_the_incident_is_repaired(make_node, suite: str, deb) -> None:
    """Without the gate the plugin calls NVML too early; then the package is installed on the broken
    node."""
    node: Node = make_node(suite, deb=False, boot=False)
    node.put("/etc/simgpu.conf", INCIDENT)
    node.put(gate.MANIFEST, repair.manifest(node, OLD="1"))
    node.put(gate.CONF, "[Gate]\nStableIntervalSec=0.5s\n")
    node.boot()
    broken = repair.plugin(node)
    repair.wait_log(node, broken["id"], "Failed to initialize NVML")
    node.run("simgpu nvml ok")
    gate.until(
        lambda: (
            node.run(
                "gpus=$(PYTHONPATH=/opt/gpu-gate-sim python3 -c 'import pynvml as n; "
                "n.nvmlInit()')",
                check=False,
            ).returncode
            == 0
        ),
        "NVML is not well",
    )
    assert gate.allocatable(node) is None
    kubelet = gate.kubelet_start(node)

    tree.install_deb(node, deb)
    repair.wait_repaired(node, ["rebuild"])
    rebuilt = repair.plugin(node)
    assert rebuilt["id"] != broken["id"]
    assert rebuilt["sandbox"] == broken["sandbox"]
    assert rebuilt["attempt"] in (0, 1), "1 where the kubelet saw the stop before the remove"
    assert gate.kubelet_start(node) == kubelet, "nobody restarted the kubelet"

    (action,) = repair.actions(node)
    assert action["target"] == broken["id"]
    assert action["cause"].startswith("PluginInitFailed kube-system/nvidia-device-plugin-gpu-node/")
    said = gate.agent_log(node)
    assert "Failed to initialize NVML: nvml: Unknown Error." in said, "it names the broken link"
    order = [
        said.index(part)
        for part in (
            f"stopping and removing container {broken['id'][:12]}",
            f"container {broken['id'][:12]} removed",
            "outcome of action 1: the kubelet lists every GPU",
        )
    ]
    assert order == sorted(order)
    tells_the_evidence(node, action, broken["id"])


def tells_the_evidence(node: Node, action: dict, container_id: str) -> None:
    """Kept before the act, for root only, and read as the live node was."""
    (name,) = repair.bundles(node)
    folder = action["evidence"]
    assert folder == f"{repair.EVIDENCE}/{name}"
    assert node.run(f"stat -c %a {repair.EVIDENCE} {folder}").stdout.split() == ["700", "700"]
    assert node.read(f"{folder}/outcome") == "the kubelet lists every GPU\n"
    assert "kubelet" in node.read(f"{folder}/journal.txt")
    assert (
        "Failed to initialize NVML" in node.run(f"cat {folder}/tails/var/log/pods/*/*/*.log").stdout
    )
    told = node.run(f"gpu-gate doctor --json {folder}", check=False)
    assert told.returncode == 1, f"{told.stdout}{told.stderr}"
    doctor = json.loads(told.stdout)
    well = next(f for f in doctor["findings"] if f["condition"] == "PluginHealthy")
    assert (well["verdict"], well["reason"]) == ("fails", "PluginInitFailed")
    assert container_id[:12] in well["because"]
    story = " ".join(node.run(f"gpu-gate timeline {folder}").stdout.split())
    assert "The plugin logged" in story and "it logged no success since" in story
    assert re.search(r"The plugin started [0-9.]+ s after nvidia-persistenced", story), story
    registered = next(f for f in doctor["findings"] if f["condition"] == "PluginRegistered")
    assert registered["reason"] == "NotRegistered"
