"""The stand-ins on a real node: real containerd, runc, systemd scopes and device cgroups."""

from __future__ import annotations

import json
import re
import time

import pytest
from nspawn import Node

PLUGIN = "nvidia-device-plugin-ctr"


def state(node: Node) -> dict:
    return json.loads(node.run("simgpu node", check=False).stdout or "{}")


def allocatable(node: Node) -> int | None:
    return state(node).get("allocatable", {}).get("nvidia.com/gpu")


def phase(node: Node, pod: str) -> str:
    return state(node).get("pods", {}).get(f"default/{pod}-gpu-node", {}).get("phase", "")


def wait_for(condition, timeout_s: float = 90.0):
    deadline = time.monotonic() + timeout_s
    while not (answer := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)
    return answer


def containers(node: Node) -> list[dict]:
    return [json.loads(line) for line in node.run("simcri ps -a").stdout.splitlines()]


def plugin(node: Node) -> dict:
    return json.loads(node.run(["simcri", "inspect", PLUGIN]).stdout)


def plugin_log(node: Node) -> str:
    return node.run("cat /var/log/pods/*/nvidia-device-plugin-ctr/*.log", check=False).stdout


@pytest.fixture
def make(make_node):
    def made(
        conf: str = "plug --gpus 8\n",
        kubelet: str = "",
        suite: str = "bookworm",
        **manifest_env: str,
    ) -> Node:
        node = make_node(suite, deb=False, standins=True, boot=False)
        node.put("/etc/simgpu.conf", conf)
        node.put("/etc/default/kubelet", kubelet)
        path = "/etc/kubernetes/manifests/nvidia-device-plugin.yaml"
        text = node.read(path)
        for name, value in manifest_env.items():
            text = re.sub(rf"        - name: {name}\n          value: .*\n", "", text)
            text = text.replace(
                "      env:\n", f'      env:\n        - {{name: {name}, value: "{value}"}}\n'
            )
        node.put(path, text)
        return node.boot()

    return made


@pytest.mark.parametrize("suite", ["bookworm", "trixie"])
def test_a_healthy_node(make, suite):
    node = make(suite=suite)
    wait_for(lambda: allocatable(node) == 8)
    assert node.wait_booted() == "running"
    assert node.run("ls /sys/bus/pci/devices | wc -l").stdout.strip() == "14"
    assert "195 nvidiactl" in node.read("/proc/devices")
    assert node.read("/sys/module/nvidia/initstate") == "live\n"
    inspected = plugin(node)
    assert inspected["info"]["runtimeSpec"]["linux"]["cgroupsPath"].startswith(
        "kubepods-besteffort-pod"
    )
    scope = node.run(["sh", "-c", f"cat /proc/{inspected['info']['pid']}/cgroup"]).stdout
    assert f"cri-containerd-{inspected['id']}.scope" in scope
    # NVML's own view is the host's, through the same library.
    code = "import pynvml as n; n.nvmlInit(); print(n.nvmlDeviceGetCount())"
    assert (
        node.run(["python3", "-c", code], env={"PYTHONPATH": "/opt/gpu-gate-sim"}).stdout == "8\n"
    )


def test_the_incident_and_its_repair(make):
    """999 while the plugin starts; nothing heals by itself; stop and remove make the kubelet build
    it again."""
    node = make(conf="plug --gpus 8\npersistenced: nvml init=999\n")
    wait_for(lambda: "No devices found. Waiting indefinitely." in plugin_log(node))
    assert "Failed to initialize NVML: Unknown Error." in plugin_log(node)
    node.run("simgpu nvml ok")
    time.sleep(5)
    assert allocatable(node) is None
    before = plugin(node)
    assert before["state"] == "RUNNING"
    node.run(f"simcri stop -t 10 {PLUGIN}; simcri rm {before['id']}")
    wait_for(lambda: allocatable(node) == 8)
    after = plugin(node)
    assert after["id"] != before["id"]
    assert after["info"]["sandboxID"] == before["info"]["sandboxID"]


def test_sighup_re_registers_in_place(make):
    node = make(conf="plug --gpus 8\npersistenced: nvml init=999\n")
    wait_for(lambda: "No devices found. Waiting indefinitely." in plugin_log(node))
    node.run("simgpu nvml ok")
    before = plugin(node)
    node.run(f"kill -HUP {before['info']['pid']}")
    wait_for(lambda: allocatable(node) == 8)
    assert plugin(node)["id"] == before["id"]


def test_kubelet_restart_keeps_containers(make):
    node = make()
    wait_for(lambda: allocatable(node) == 8)
    before = containers(node)
    node.systemctl("restart", "kubelet")
    wait_for(lambda: state(node).get("registrations") == 1 and allocatable(node) == 8)
    time.sleep(1.5)
    assert containers(node) == before


def test_crash_loop(make):
    node = make(
        conf="plug\npersistenced: nvml init=999\n",
        kubelet="KUBELET_BACKOFF_FACTOR=0.2\n",
        FAIL_ON_INIT_ERROR="true",
    )
    wait_for(lambda: "CrashLoopBackOff" in node.journal("-u", "kubelet"))
    wait_for(lambda: plugin(node)["attempt"] >= 2)
    assert len([c for c in containers(node) if c["name"] == PLUGIN]) <= 3
    node.run("simgpu nvml ok")
    wait_for(lambda: allocatable(node) == 8)


def test_an_old_plugin_exits_on_sighup(make):
    node = make(conf="plug\npersistenced: nvml init=999\n", OLD="1")
    wait_for(lambda: "this is not a GPU node" in plugin_log(node))
    node.run("simgpu nvml ok")
    before = plugin(node)
    node.run(f"kill -HUP {before['info']['pid']}")
    wait_for(lambda: allocatable(node) == 8)
    assert plugin(node)["attempt"] == 1
    dead = json.loads(node.run(["simcri", "inspect", before["id"]]).stdout)
    assert dead["exit_code"] == 2


def test_gpu_pods(make):
    """Admitted before registration: Failed for good. After: given two GPUs, and freed when the pod
    goes."""
    node = make(conf="plug\npersistenced: nvml init=999\n")
    node.run("cp /opt/gpu-gate-sim/manifests/gpu-pod.yaml /etc/kubernetes/manifests/")
    wait_for(lambda: phase(node, "gpu-a") == "Failed")
    early = state(node)["pods"]["default/gpu-a-gpu-node"]
    assert (
        early["reason"] == "UnexpectedAdmissionError"
        and "no healthy devices present" in early["message"]
    )
    node.run("simgpu nvml ok")
    node.run(f"kill -HUP {plugin(node)['info']['pid']}")
    wait_for(lambda: allocatable(node) == 8)
    time.sleep(1.5)
    assert phase(node, "gpu-a") == "Failed"
    node.run(
        "sed 's/name: gpu-a/name: gpu-b/' /opt/gpu-gate-sim/manifests/gpu-pod.yaml "
        ">/etc/kubernetes/manifests/b.yaml"
    )
    wait_for(lambda: phase(node, "gpu-b") == "Running")
    checkpoint = json.loads(
        node.read("/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint")
    )
    assert len(checkpoint["Data"]["PodDeviceEntries"][0]["DeviceIDs"]["-1"]) == 2
    assert allocatable(node) == 8
    node.run("rm /etc/kubernetes/manifests/b.yaml")
    wait_for(lambda: not any(c["name"] == "main" for c in containers(node)))
    checkpoint = json.loads(
        node.read("/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint")
    )
    assert checkpoint["Data"]["PodDeviceEntries"] is None


def test_a_container_that_lost_its_devices_sees_999(make):
    """Debian 12's runc 1.1.5 and systemd 252: without /dev/char links a daemon-reload takes the
    devices away."""
    node = make(conf="plug --gpus 8 --no-links\n")
    wait_for(lambda: allocatable(node) == 8)
    pid = plugin(node)["info"]["pid"]
    node.systemctl("daemon-reload")

    def asked_again() -> bool:  # systemd makes the programs anew a little after its answer
        node.run(f"kill -HUP {pid}")
        return "Failed to initialize NVML: Unknown Error." in plugin_log(node)

    wait_for(asked_again)
    wait_for(lambda: allocatable(node) == 0)


def test_a_container_without_the_library(make):
    node = make()
    wait_for(lambda: allocatable(node) == 8)
    path = "/etc/kubernetes/manifests/nvidia-device-plugin.yaml"
    mounts = [
        f"{{name: nothing, mountPath: {lib}/x86_64-linux-gnu/libnvidia-ml.so.1}}"
        for lib in ("/lib", "/usr/lib")
    ]
    hidden = "".join(f"        - {mount}\n" for mount in mounts)
    text = node.read(path).replace("      volumeMounts:\n", f"      volumeMounts:\n{hidden}")
    node.put(
        path,
        text.replace(
            "  volumes:\n", "  volumes:\n    - {name: nothing, hostPath: {path: /dev/null}}\n"
        ),
    )
    wait_for(lambda: "Incompatible strategy detected auto" in plugin_log(node))
    wait_for(lambda: allocatable(node) == 0)
    assert plugin(node)["state"] == "RUNNING"


def test_driver_comes_later(make):
    node = make(conf="plug --no-driver\n")
    node.run("! test -e /proc/driver/nvidia; ! test -e /dev/nvidiactl; ! nvidia-modprobe -c 255")
    node.run("simgpu driver load --no-nodes")
    assert "NVRM version" in node.read("/proc/driver/nvidia/version")
    node.run("nvidia-modprobe -c 255 -c 0; nvidia-modprobe -c 0 -u")
    node.run("test -c /dev/nvidiactl; test -c /dev/nvidia-uvm; test -L /dev/char/195:0")
    assert len(node.read("/run/simgpu/modprobe.calls").splitlines()) == 3
    node.run("simgpu driver unload; ! test -e /proc/driver/nvidia; ! test -e /dev/nvidia0")
    node.run("simgpu unplug; ! grep -q simgpu /proc/self/mountinfo")
