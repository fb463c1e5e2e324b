"""Cold boots: when the kubelet starts, and why, on a node whose GPUs come late, partly, never, or
are not ours."""

from __future__ import annotations

import json
from collections.abc import Callable

import gate
import pytest
from nspawn import Node

COLD = "plug --gpus 8\ncalls\npersistenced: nvml init=999\n"


@pytest.fixture
def cold(make_node) -> Callable[..., Node]:
    """cold(simgpu lines, settings, suite): a node with the package and these GPUs, booting."""

    def booted(sim: str, settings: str = "", suite: str = "bookworm") -> Node:
        node = make_node(suite, boot=False)
        gate.prepare(node, sim, settings)
        return node.boot()

    return booted


def test_the_kubelet_starts_after_nvml_is_stable(cold, suite: str) -> None:
    """NVML says 999 for a while after persistenced: the plugin asks once, and registers 8 the first
    time."""
    node = cold(COLD, suite=suite)
    gate.wait_held(node)
    gate.until(lambda: "999" in gate.gate(node).get("why", ""), lambda: gate.gate(node))
    assert gate.is_held(node)
    assert gate.readyz(node)[0] == 503
    node.run("simgpu nvml ok")
    gate.wait_ready(node)

    kubelet, target = gate.entered(node, "kubelet.service"), gate.entered(node, "gpu-gate.target")
    inits = [
        (float(at), result) for at, _, _, call, result in gate.nvml_calls(node) if call == "init"
    ]
    before = [result for at, result in inits if at < target]
    assert before[-3:] == ["0", "0", "0"], "three good probes stand before the release"
    assert "999" in before
    assert kubelet >= target >= [at for at, _ in inits if at < target][-1]
    assert gate.released(node)["kind"] == "Open"

    assert gate.allocatable(node) == 8
    assert gate.kubelet_state(node)["registrations"] == 1
    (plugin,) = gate.plugins(node)
    assert plugin["attempt"] == 0
    assert node.wait_booted() == "running"


def test_healthy_gpus_are_probed_while_the_agent_loads(cold, suite: str) -> None:
    """The first of the three probes is begun before the first look, and counts."""
    node = cold("plug --gpus 8\ncalls\n", suite=suite)
    gate.wait_kubelet(node)
    looked = json.loads(node.read("/run/gpu-gate/first-look"))["at"]
    inits = [float(at) for at, _, _, call, _ in gate.nvml_calls(node) if call == "init"]
    assert inits[0] < looked
    assert len([at for at in inits if at < gate.entered(node, "gpu-gate.target")]) == 3
    assert gate.released(node)["kind"] == "Open"


@pytest.mark.parametrize("suite", ["trixie"])
def test_a_boot_without_gpus(cold, suite: str) -> None:
    node = cold("# none\n", suite=suite)
    gate.wait_kubelet(node)
    gate.wait_phase(node, "NOT_APPLICABLE")
    assert "no NVIDIA GPU on the PCI bus" in gate.gate(node)["why"]
    assert "no NVIDIA GPU on the PCI bus" in gate.released(node)["reason"]
    gate.until(lambda: gate.readyz(node)[0] == 200, lambda: gate.readyz(node))
    node.wait_booted()
    assert gate.readyz(node)[0] == 200, "with a kubelet that lists no GPU, as it must"
    assert not node.exists("/run/simgpu/modprobe.calls")


def test_a_boot_does_not_wait_for_an_agent_that_hangs_while_it_starts(
    make_node, suite: str
) -> None:
    """Nor does the kubelet: no unit is ordered after the agent."""
    node = make_node(suite, boot=False)
    gate.prepare(node, "# none\n")
    node.put(
        "/etc/systemd/system/gpu-gate.service.d/hangs.conf",
        "[Service]\nExecStart=\nExecStart=/bin/sleep infinity\nTimeoutStartSec=infinity\n",
    )
    node.boot(until="multi-user.target", timeout=90)
    assert node.show("gpu-gate.service", "ActiveState") == "activating"
    assert node.is_active("kubelet.service")
    assert "no NVIDIA GPU" in gate.released(node)["reason"]
    assert "multi-user.target" not in node.show("gpu-gate.service", "Before").split()


def test_the_driver_comes_later(cold) -> None:
    """Holding the kubelet would be a deadlock where a pod brings the driver: released, not ready,
    still watching."""
    node = cold("plug --gpus 8 --no-driver\n")
    gate.wait_kubelet(node)
    gate.until(lambda: gate.gate(node).get("released"), lambda: gate.gate(node))
    assert "no nvidia driver on the host yet" in gate.released(node)["reason"]
    now = gate.gate(node)
    assert (now["phase"], now["ready"]) == ("WAITING", False)
    assert "no nvidia driver on the host yet" in now["ready_why"]
    assert not node.exists("/run/simgpu/modprobe.calls"), "nvidia-modprobe would load a module"
    kubelet = gate.kubelet_start(node)

    node.run("simgpu driver load --no-nodes")
    gate.wait_phase(node, "OPEN")
    first = next(
        line
        for line in gate.agent_log(node).splitlines()
        if "WAITING" not in line and "woken by" in line
    )
    assert "woken by timer" not in first, "it was told, and did not find out by and by"
    assert "-c 255" in node.read("/run/simgpu/modprobe.calls"), "the control nodes were made"
    assert gate.kubelet_start(node) == kubelet
    assert gate.status(node)["cycle"]["number"] < 100


def test_a_masked_target_does_not_gate(cold) -> None:
    """`systemctl mask`: the next boot is not gated, although NVML never works."""
    node = cold("plug --gpus 8\nnvml init=999\n")
    gate.wait_held(node)
    node.systemctl("mask", "gpu-gate-wait.service", "gpu-gate.target")
    node.reboot(orderly=False)
    gate.wait_kubelet(node)
    gate.until(lambda: gate.gate(node).get("phase") == "PROBING", lambda: gate.status(node))
    assert not gate.gate(node)["ready"], "the agent goes on telling the truth"
    node.systemctl("unmask", "gpu-gate-wait.service", "gpu-gate.target")
    # And a drop-in alone, masked through /etc, as its head says.
    node.run(
        """
        mkdir -p /etc/systemd/system/kubelet.service.d
        ln -s /dev/null /etc/systemd/system/kubelet.service.d/10-gpu-gate.conf
        """
    )
    node.reboot(orderly=False)
    gate.wait_kubelet(node)
    assert not node.is_active("gpu-gate.target")
