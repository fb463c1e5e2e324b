"""Holding still on a node: pauses, causes that no probe need be made for, each with its way out,
and a driver that is loaded again under a plugin that came too early."""

from __future__ import annotations

import gate
import pytest
import repair
from nspawn import Node
from test_verbs import gpu_gate

MIG = """[Service]
Type=oneshot
ExecStart=sleep infinity
"""


@pytest.fixture(scope="module")
def node(make_module_node) -> Node:
    node = make_module_node(boot=False)
    gate.prepare(node, "plug --gpus 8\n", repair.SLOW_PLUGIN)
    node.put("/etc/systemd/system/nvidia-mig-manager.service", MIG)
    node.boot()
    gate.wait_ready(node)
    return node


def probes(node: Node) -> int:
    return int(gate.status(node)["probe"]["last"]["number"])


def again(node: Node) -> None:
    """After a repair by hand the operator need not wait for the next probe."""
    assert gpu_gate(node, "pause")[0] == gpu_gate(node, "resume")[0] == 0


def test_a_pause_is_shown_everywhere_and_ends_by_itself(node: Node) -> None:
    before = probes(node)
    assert gpu_gate(node, "pause", "--for", "30min", "--why", "a new driver")[0] == 0
    gate.wait_why(node, "paused: a new driver")
    assert gate.readyz(node)[1].endswith("; paused: a new driver")
    assert "paused: a new driver" in gpu_gate(node, "status")[1]
    assert "paused: a new driver for" in " ".join(gpu_gate(node, "doctor")[1].split())
    assert 1000.0 < gate.gate(node)["paused_for_s"] <= 1800.0
    node.run("simgpu nvml init=999; systemctl daemon-reload")
    assert gpu_gate(node, "pause", "--for", "3s", "--why", "a new driver")[0] == 0
    gate.until(lambda: gate.gate(node).get("paused") == "", lambda: gate.gate(node))
    gate.wait_why(node, "NVML_ERROR_UNKNOWN (999)")
    assert probes(node) > before
    node.run("simgpu nvml ok")
    gate.wait_ready(node)
    said = gate.agent_log(node)
    assert "\npaused: a new driver\n" in said and "\nno longer paused\n" in said


def test_no_probe_during_a_mig_change(node: Node) -> None:
    node.systemctl("start", "--no-block", "nvidia-mig-manager.service")
    gate.wait_why(node, "paused while nvidia-mig-manager.service is starting")
    before = probes(node)
    node.systemctl("daemon-reload")
    gate.wait_phase(node, "REVALIDATING")
    repair.wait_cycles(node)
    assert probes(node) == before
    node.systemctl("stop", "nvidia-mig-manager.service")
    gate.wait_ready(node)
    assert probes(node) > before


def test_a_lost_gpu_is_reported_and_an_old_log_line_has_no_effect(node: Node) -> None:
    node.run(
        f"simgpu lose 3; simgpu kmsg 'NVRM: Xid (PCI:{gate.BUS_IDS[3][:-2]}): 79, GPU has "
        "fallen off the bus.'"
    )
    why = gate.wait_phase(node, "BLOCKED")["why"]
    assert (
        gate.BUS_IDS[3] in why and "NVML_ERROR_GPU_IS_LOST (15)" in why and "reboot the node" in why
    )
    node.run("simgpu find 3")
    again(node)
    gate.wait_phase(node, "OPEN")
    assert repair.finding(node, "KernelLogQuiet")["reason"] == "KernelReports"


def test_no_probe_of_a_silent_gsp_and_a_new_plugin_for_a_late_driver(node: Node) -> None:
    repair.registered_plugin(node)
    gate.wait_ready(node)
    before, number = probes(node), len(repair.actions(node))
    node.run(
        f"simgpu kmsg 'NVRM: Xid (PCI:{gate.BUS_IDS[5][:-2]}): 119, Timeout after 6s of waiting'"
    )
    why = repair.wait_blocked(node, "GspTimeout", number)
    assert gate.BUS_IDS[5] in why and "nvidia-smi --gpu-reset" in why
    assert probes(node) == before
    node.run("simgpu driver unload")
    gate.wait_phase(node, "WAITING")
    early = repair.replace_plugin(node, repair.manifest(node))
    repair.wait_log(node, early["id"], "Failed to initialize NVML")
    node.run("simgpu driver load")
    gate.wait_ready(node)
    (action,) = repair.actions(node)[number:]
    assert (action["what"], action["target"], action["cause"].split()[0]) == (
        "rebuild",
        early["id"],
        "PluginOlderThanDriver",
    )


def test_a_module_that_the_kernel_refuses_releases_the_kubelet(node: Node) -> None:
    node.run(
        "at=/lib/modules/$(uname -r); mkdir -p $at; echo 'updates/dkms/nvidia.ko:' >$at/modules.dep"
    )
    gate.start_over(
        node,
        sim="simgpu driver unload; simgpu kmsg 'Loading of unsigned module is rejected'",
        settings=repair.QUICK,
    )
    gate.until(lambda: gate.released(node).get("reason", ""), lambda: gate.status(node))
    gate.wait_gate(node, phase="BLOCKED", reason="ModuleRejected")
    assert "Secure Boot" in gate.released(node)["reason"]
    node.run("simgpu driver load")
    gate.wait_ready(node)
