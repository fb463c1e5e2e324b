"""Plugins that are broken in one way each: which repairs are made, how often, and what is only
reported."""

from __future__ import annotations

import re
from collections.abc import Iterator

import gate
import pytest
import repair
from nspawn import Node

UNIT = "nvidia-device-plugin.service"
UNIT_FILE = """[Service]
Environment=FAIL_ON_INIT_ERROR=false
ExecStart=/opt/gpu-gate-sim/plugin.py
"""
TENANT = """
apiVersion: v1
kind: Pod
metadata: {{name: tenant, namespace: default, labels: {{app: nvidia-device-plugin, name: nvidia-device-plugin-ds}}}}
spec:
  hostNetwork: true
  terminationGracePeriodSeconds: 1
  volumes: [{{name: device-plugins, emptyDir: {{}}}}]
  containers:
    - name: nvidia-device-plugin-ctr
      image: {image}
      imagePullPolicy: Never
      command: [/bin/sleep, "2147483647"]
      volumeMounts: [{{name: device-plugins, mountPath: /var/lib/kubelet/device-plugins}}]
"""


@pytest.fixture(scope="module")
def module_node(make_module_node) -> Node:
    return gate.ready(make_module_node)


@pytest.fixture
def node(module_node: Node) -> Iterator[Node]:
    """A node without an agent. No test may change a kubelet, runtime or sandbox."""
    repair.without_agent(module_node)
    yield module_node
    said = module_node.run(
        "journalctl -q -t gpu-gate | grep -c Traceback", check=False
    ).stdout.strip()
    assert said == "0"


def sandboxes(node: Node) -> str:
    return node.run("simcri pods").stdout


def test_a_failed_rebuild_is_blocked_and_not_repeated(node: Node) -> None:
    """NVML works on the host, and always fails in the plugin's container."""
    broken = repair.unregistered_plugin(
        node, repair.manifest(node, OLD="1", **repair.own_nvml(node, "init error=999"))
    )
    pods = sandboxes(node)
    repair.with_agent(node, "VerifyWithinSec=5s\n")
    why = repair.wait_blocked(node, "SameCauseAgain", 1)
    assert "did not cure it" in why and repair.EVIDENCE in why
    rebuilt = repair.plugin(node)
    assert rebuilt["id"] != broken["id"]
    assert gate.readyz(node) == (503, why)
    assert repair.outcomes(node) == ["not cured"]
    node.systemctl("restart", "gpu-gate.service")
    repair.wait_blocked(node, "SameCauseAgain", 1)
    repair.kill_agent(node)
    repair.wait_blocked(node, "SameCauseAgain", 1)
    assert repair.plugin(node) == rebuilt and sandboxes(node) == pods


def test_a_container_without_the_library(node: Node) -> None:
    broken = repair.replace_plugin(node, repair.without_library(repair.manifest(node)))
    repair.wait_log(node, broken["id"], "Incompatible strategy detected auto")
    repair.with_agent(node)
    why = repair.wait_blocked(node, "PluginLacksLibrary", 0)
    assert "lacks NVML's library" in why and "RuntimeClass" in why
    assert repair.plugin(node) == broken and repair.bundles(node) == []


def test_a_deaf_plugin_gets_one_rebuild_for_each_kubelet_restart(node: Node) -> None:
    repair.registered_plugin(node, OLD="1", DEAF="1")
    repair.with_agent(node)
    gate.wait_ready(node)
    for restart in (1, 2):
        before = repair.plugin(node)
        node.systemctl("restart", "kubelet.service")
        gate.until(
            lambda count=restart: len(repair.actions(node)) == count, lambda: gate.gate(node)
        )
        repair.wait_repaired(node, ["rebuild"] * restart)
        assert repair.plugin(node)["id"] != before["id"]
    assert all(e["cause"].startswith("PluginForgotten ") for e in repair.actions(node))
    assert len({e["cause"] for e in repair.actions(node)}) == 2, (
        "each kubelet is a cause of its own"
    )


def test_a_plugin_that_registers_again_is_not_restarted(node: Node) -> None:
    before = repair.registered_plugin(node)
    repair.with_agent(node, "RegisterWithinSec=60s\n")
    gate.wait_ready(node)
    for _ in range(2):
        node.systemctl("restart", "kubelet.service")
        gate.until(lambda: gate.allocatable(node) == 8, lambda: gate.kubelet_state(node))
        repair.wait_repaired(node, [])
    assert repair.plugin(node) == before


def test_an_old_instance_removes_the_new_registration(node: Node) -> None:
    """An old instance still runs when the new one registers, and its exit removes that
    registration: Running, "Registered", and nothing allocatable."""
    node.run(f"mv {gate.MANIFEST} /root/plugin.yaml")
    repair.wait_running(node, lambda rows: not rows)
    with node.spawn(["/opt/gpu-gate-sim/plugin.py"], env={"SOCKET_DIR": gate.SOCKETS}):
        gate.until(lambda: gate.allocatable(node) == 8, lambda: gate.kubelet_state(node))
        node.put(gate.MANIFEST, repair.manifest(node, OLD="1"))
        new = repair.plugin(node)
        repair.wait_log(node, new["id"], "Registered device plugin")
    gate.until(lambda: gate.allocatable(node) == 0, lambda: gate.kubelet_state(node))
    assert "Stopping" not in repair.log(node, new["id"]), "for all that it knows, it is registered"
    repair.with_agent(node)
    repair.wait_repaired(node, ["rebuild"])
    assert repair.actions(node)[0]["cause"].startswith("PluginForgotten ")


def test_a_crash_loop_is_left_to_the_kubelet(node: Node) -> None:
    own = repair.own_nvml(node, "init error=999")
    since = node.run("journalctl -n 0 --show-cursor -q").stdout.strip().removeprefix("-- cursor: ")
    node.put(gate.MANIFEST, repair.manifest(node, FAIL_ON_INIT_ERROR="true", **own))
    gate.until(
        lambda: "back-off" in node.journal("-u", "kubelet", "--after-cursor", since),
        lambda: gate.plugins(node),
    )
    repair.with_agent(node)
    exited = gate.until(
        lambda: (
            (found := repair.finding(node, "PluginHealthy")).get("reason") == "PluginExited"
            and found
        ),
        lambda: gate.status(node),
    )
    assert "exit status 1" in exited["because"]
    gate.until(lambda: "exit status 1" in gate.readyz(node)[1], lambda: gate.readyz(node))
    repair.wait_cycles(node)
    assert repair.actions(node) == [] and not gate.gate(node)["ready"]


def test_two_plugins_need_an_operator(node: Node) -> None:
    repair.unregistered_plugin(node)
    node.run("simgpu nvml reset init=999")
    second = node.read(gate.MANIFEST).replace("  name: nvidia-device-plugin\n", "  name: second\n")
    node.put("/etc/kubernetes/manifests/second.yaml", second)
    try:
        for row in repair.wait_running(node, lambda rows: len(rows) == 2):
            repair.wait_log(node, row["id"], "only deploy this plugin on GPU nodes")
        node.run("simgpu nvml ok")
        repair.with_agent(node)
        why = repair.wait_blocked(node, "TwoPlugins", 0)
        assert "nvidia-device-plugin-gpu-node" in why and "second-gpu-node" in why
        repair.wait_cycles(node, 2)
        assert repair.actions(node) == [] and len(repair.running(node)) == 2
    finally:
        node.run("rm /etc/kubernetes/manifests/second.yaml")
        repair.plugin(node)


def test_a_tenants_pod_that_imitates_the_plugin_has_no_effect(node: Node) -> None:
    """It has the plugin's label, image and names, and not the kubelet's folder: only the plugin is
    repaired."""
    node.run("simgpu nvml reset init=999")
    broken = repair.replace_plugin(node, repair.manifest(node, OLD="1"))
    repair.wait_log(node, broken["id"], "only deploy this plugin on GPU nodes")
    image = re.search(r"image: (\S+)", node.read(gate.MANIFEST))[1]
    node.put("/etc/kubernetes/manifests/tenant.yaml", TENANT.format(image=image))
    tenant = next(
        row
        for row in repair.wait_running(node, lambda rows: len(rows) == 2)
        if row["id"] != broken["id"]
    )
    try:
        node.run("simgpu nvml ok")
        repair.with_agent(node)
        repair.wait_repaired(node, ["rebuild"])
        assert repair.actions(node)[0]["target"] == broken["id"]
        assert tenant in repair.running(node)
        assert [p["namespace"] for p in gate.status(node)["plugins"]] == ["kube-system"]
    finally:
        node.run("rm /etc/kubernetes/manifests/tenant.yaml")
        repair.plugin(node)


def test_a_partly_registered_plugin_is_restarted_only_on_request(node: Node) -> None:
    """NVML showed 7 GPUs when the plugin started, and shows 8 now: reported, and repaired only with
    RepairPartial=yes."""
    node.run("simgpu nvml reset show=7")
    seven = repair.replace_plugin(node, repair.manifest(node, OLD="1"))
    gate.until(lambda: gate.allocatable(node) == 7, lambda: gate.kubelet_state(node))
    node.run("simgpu nvml ok")
    repair.with_agent(node)
    why = repair.wait_blocked(node, "PartlyRegistered", 0)
    assert "RepairPartial=yes" in why
    assert repair.finding(node, "PluginRegistered")["because"].startswith(
        "the kubelet lists 7 of 8 GPUs, not GPU-"
    )
    assert repair.plugin(node) == seven and gate.allocatable(node) == 7
    gate.configure(node, repair.QUICK + "RepairPartial=yes\n")
    node.systemctl("reload", "gpu-gate.service")
    repair.wait_repaired(node, ["rebuild"])


def test_sighup_to_a_plugin_that_registers_in_place(node: Node) -> None:
    """Its access to /dev/nvidiactl is verified, and v0.20.0 registers in place: the same container
    continues."""
    broken = repair.unregistered_plugin(node, repair.manifest(node))
    repair.with_agent(node)
    repair.wait_repaired(node, ["hup"])
    assert repair.plugin(node) == broken
    assert "Received SIGHUP, restarting." in repair.log(node, broken["id"])


def test_a_new_container_follows_a_failed_sighup(node: Node) -> None:
    """SIGHUP and a new container count as one repair, within a budget of one an hour."""
    own = repair.own_nvml(node, "init error=999")
    broken = repair.unregistered_plugin(node, repair.manifest(node, **own))
    # Between the failed SIGHUP and the new container is one second: the node itself watches the log.
    failed_again = (
        "/Received SIGHUP/ { hup = 1 } hup && /only deploy this plugin/ { failed = 1 } "
        "END { exit !failed }"
    )
    node.run(
        [
            "systemd-run",
            "--unit=heal-nvml",
            "sh",
            "-c",
            f"until awk '{failed_again}' {repair.log_path(node, broken['id'])}; do sleep 0.05; done; "
            "cat /run/simgpu/nvml >/run/simgpu/own",
        ]
    )
    repair.with_agent(node, "RepairsPerHour=1\n")
    repair.wait_repaired(node, ["hup", "rebuild"])
    assert repair.plugin(node)["id"] != broken["id"]


def test_repair_report_changes_nothing(node: Node) -> None:
    broken = repair.unregistered_plugin(node)
    repair.with_agent(node, "Repair=report\n")
    why = repair.wait_blocked(node, "RepairOff", 0)
    assert "would start the plugin afresh" in why and "Failed to initialize NVML" in why
    assert repair.plugin(node) == broken and repair.bundles(node) == []


def test_a_pause_postpones_a_repair(node: Node) -> None:
    repair.registered_plugin(node, OLD="1")
    repair.with_agent(node)
    gate.wait_ready(node)
    node.run("gpu-gate pause")
    broken = repair.unregistered_plugin(node)
    gate.wait_why(node, "the kubelet lists no")
    repair.wait_cycles(node)
    assert gate.gate(node)["phase"] == "OPEN"
    assert repair.actions(node) == [] and repair.plugin(node) == broken
    node.run("gpu-gate resume")
    repair.wait_repaired(node, ["rebuild"])


@pytest.mark.parametrize(
    ("label", "name", "company"),
    [
        (
            "app: nvidia-device-plugin-daemonset",
            "nvidia-device-plugin",
            "config-manager",
        ),  # GPU Operator
        ("app.kubernetes.io/component: hami-device-plugin", "device-plugin", "vgpu-monitor"),
    ],
)
def test_a_daemonset_pod_with_other_containers(
    node: Node, label: str, name: str, company: str
) -> None:
    """Found by its pod's label; other containers of its pod and image are not changed."""
    node.run("simgpu nvml reset init=999")
    node.put(gate.MANIFEST, repair.wrapped(repair.manifest(node, OLD="1"), label, name, company))
    try:
        broken = repair.wait_named(node, name, company)
        repair.wait_log(node, broken[name]["id"], "only deploy this plugin on GPU nodes")
        node.run("simgpu nvml ok")
        repair.with_agent(node)
        repair.wait_repaired(node, ["rebuild"])
        after = repair.wait_named(node, name, company)
        assert after[company] == broken[company] and after[name]["id"] != broken[name]["id"]
        assert repair.actions(node)[0]["target"] == broken[name]["id"]
    finally:
        node.put(gate.MANIFEST, repair.manifest(node))


def test_a_pod_with_restart_policy_never(node: Node) -> None:
    never = repair.manifest(node, OLD="1").replace("spec:\n", "spec:\n  restartPolicy: Never\n", 1)
    broken = repair.unregistered_plugin(node, never)
    repair.with_agent(node)
    why = repair.wait_blocked(node, "NeverStartedAgain", 0)
    assert "restartPolicy is Never" in why
    assert repair.plugin(node) == broken and repair.bundles(node) == []


def test_a_plugin_that_runs_as_a_unit(node: Node) -> None:
    """Not a container: its unit, which has a known name, is restarted, once for a cause."""
    node.put(f"/etc/systemd/system/{UNIT}", UNIT_FILE)
    node.run(
        f"rm {gate.MANIFEST}; simgpu nvml reset init=999; systemctl daemon-reload; systemctl "
        f"start {UNIT}"
    )
    try:
        gate.until(
            lambda: "No devices found" in node.journal("-u", UNIT), lambda: node.journal("-u", UNIT)
        )
        repair.wait_running(node, lambda rows: not rows)
        node.run("simgpu nvml ok")
        before = node.show(UNIT, "InvocationID")
        repair.with_agent(node)
        repair.wait_repaired(node, ["restart-unit"])
        assert node.show(UNIT, "InvocationID") != before
        (action,) = repair.actions(node)
        assert action["target"] == f"{UNIT} {before[:12]}"
    finally:
        node.run(f"systemctl stop {UNIT}; rm /etc/systemd/system/{UNIT}; systemctl daemon-reload")
