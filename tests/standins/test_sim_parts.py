"""The small parts of the stand-ins, without a program around them."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sim import checkpoint, containers, manifests, nvmlscript, uevent
from sim.hardware import DECOYS, Layout
from sim.podresources import RateLimit
from sim.pods import Backoff
from sim.wire import cri, plugin_api
from sim_programs import STANDINS


def uuid(i: int) -> str:
    return f"GPU-be4c{i:04x}-fa4e-4e11-9000-{i:012x}"


GIVEN = plugin_api.ContainerAllocateResponse(
    envs={"NVIDIA_VISIBLE_DEVICES": f"{uuid(2)},{uuid(1)}"}
)


@pytest.mark.parametrize(
    ("entries", "order", "expected"),
    [
        ([], [], 3467439661),
        ([], [7, 0, 1, 2, 3, 4, 5, 6], 1683461268),
        ([], [2, 4, 5, 6, 7, 0, 1], 3049103895),
        (["7c0a8b53d12a98f562a9189032253e1f"], [3, 4, 5, 6, 7, 0, 1, 2], 3662030886),
        (["7c0a8b53d12a98f562a9189032253e1f"], [2, 3, 4, 5, 6, 7, 0, 1], 1256975030),
    ],
)
def test_checksums_of_captured_files(tmp_path, entries, order, expected):
    """The numbers are a real kubelet's."""
    made = [
        checkpoint.Entry(u, "main", "nvidia.com/gpu", (uuid(2), uuid(1)), GIVEN.SerializeToString())
        for u in entries
    ]
    checkpoint.write(tmp_path, made, {"nvidia.com/gpu": [uuid(i) for i in order]} if order else {})
    assert json.loads((tmp_path / checkpoint.NAME).read_text())["Checksum"] == expected
    assert checkpoint.read(tmp_path)[0] == made


def test_backoff():
    backoff, now = Backoff(factor=0.1), time.time()
    assert backoff.remaining("a", now) == (0.0, 0.0)
    backoff.next("a", now)
    assert backoff.remaining("a", now)[0] == pytest.approx(1.0, abs=0.2)
    backoff.next("a", now)
    assert backoff.remaining("a", now)[1] == 2.0
    for _ in range(9):
        backoff.next("a", now)
    assert backoff.remaining("a", now)[1] == 30.0
    assert backoff.remaining("a", now + 100)[0] == 0.0


def test_rate_limit_bucket():
    limit = RateLimit(per_s=100.0, burst=10)
    assert sum(limit.takes_one() for _ in range(20)) in (10, 11)
    time.sleep(0.05)
    assert limit.takes_one()


def test_manifest_to_messages(tmp_path):
    path = STANDINS / "manifests/nvidia-device-plugin.yaml"
    pod = manifests.parse(path.read_text(), path, "node-1")
    assert pod.name == "nvidia-device-plugin-node-1" and re.fullmatch("[0-9a-f]{32}", pod.uid)
    assert manifests.parse(path.read_text() + "\n# changed\n", path, "node-1").uid == pod.uid
    assert (
        manifests.parse(path.read_text().replace("false", "true", 1), path, "node-1").uid != pod.uid
    )
    sandbox = containers.sandbox_config(pod, 0, Path("/var/log/pods"), "systemd")
    assert sandbox.linux.cgroup_parent == f"kubepods-besteffort-pod{pod.uid}.slice"
    assert sandbox.annotations["kubernetes.io/config.source"] == "file"
    pod.spec["volumes"][1]["hostPath"]["path"] = str(tmp_path / "made")
    config = containers.container_config(pod, pod.containers[0], 2, "sha256:x", [], tmp_path)
    assert config.labels["io.kubernetes.container.name"] == "nvidia-device-plugin-ctr"
    assert config.log_path == "nvidia-device-plugin-ctr/2.log" and (tmp_path / "made").is_dir()
    assert {e.key: e.value for e in config.envs}["FAIL_ON_INIT_ERROR"] == "false"
    again = cri.ContainerConfig.FromString(config.SerializeToString())
    assert again.mounts[0].container_path == "/var/lib/kubelet/device-plugins"


def test_devices_of_an_allocation(tmp_path):
    path = STANDINS / "manifests/gpu-pod.yaml"
    pod = manifests.parse(path.read_text(), path, "n")
    assert pod.asked(pod.containers[0]) == {"nvidia.com/gpu": 2}
    given = plugin_api.ContainerAllocateResponse(envs={"A": "b"})
    given.devices.add(container_path="/dev/nvidia0", host_path="/dev/nvidia0", permissions="rw")
    entry = checkpoint.Entry(
        pod.uid, "main", "nvidia.com/gpu", (uuid(0),), given.SerializeToString()
    )
    config = containers.container_config(pod, pod.containers[0], 0, "x", [entry], tmp_path)
    assert config.devices[0].permissions == "rw" and config.envs[0].key == "A"


def test_a_manifest_without_a_pod_is_reported(tmp_path):
    (tmp_path / "a.yaml").write_text("kind: Pod\nspec: {}")
    (tmp_path / "b.yaml").write_text("{")
    (tmp_path / ".c.yaml").write_text("nonsense")
    said = []
    assert manifests.read_all(tmp_path, "n", lambda path, exc: said.append(path.name)) == []
    assert said == ["a.yaml", "b.yaml"]


def simgpu(root: Path, *words: str) -> None:
    subprocess.run([sys.executable, STANDINS / "simgpu.py", "--root", root, *words], check=True)


def test_node_as_a_folder(tmp_path):
    simgpu(tmp_path, "plug", "--gpus", "4", "--without", "nvidia-uvm*")
    devices = tmp_path / "sys/bus/pci/devices"
    gpus = [
        d
        for d in devices.iterdir()
        if (d / "vendor").read_text() == "0x10de\n" and (d / "class").read_text() == "0x030200\n"
    ]
    assert len(gpus) == 4 and len(list(devices.iterdir())) == 4 + len(DECOYS)
    assert {os.path.basename(os.readlink(g / "driver")) for g in gpus} == {"nvidia"}
    version = (tmp_path / "proc/driver/nvidia/version").read_text()
    assert version.startswith("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  ")
    assert (
        "GPU UUID: \tGPU-be4c0003"
        in (tmp_path / "proc/driver/nvidia/gpus/0000:4e:00.0/information").read_text()
    )
    assert "195 nvidiactl" in (tmp_path / "proc/devices").read_text()
    assert (tmp_path / "sys/module/nvidia/initstate").read_text() == "live\n"
    assert not (tmp_path / "dev/nvidia-uvm").exists() and os.path.lexists(
        tmp_path / "dev/char/195:3"
    )
    if os.geteuid() == 0 and stat.S_ISCHR((tmp_path / "dev/nvidia3").stat().st_mode):
        assert os.minor((tmp_path / "dev/nvidia3").stat().st_rdev) == 3


def test_driver_is_loaded_and_unloaded(tmp_path):
    simgpu(tmp_path, "plug", "--no-driver")
    assert (
        not (tmp_path / "proc/driver/nvidia").exists() and not (tmp_path / "dev/nvidiactl").exists()
    )
    assert not (tmp_path / "sys/bus/pci/devices/0000:07:00.0/driver").is_symlink()
    simgpu(tmp_path, "driver", "load")
    assert (tmp_path / "proc/driver/nvidia/version").exists() and (
        tmp_path / "dev/nvidia7"
    ).exists()
    assert "loaded yes" in (tmp_path / "run/simgpu/nvml").read_text()
    simgpu(tmp_path, "driver", "unload")
    assert (
        not (tmp_path / "proc/driver/nvidia").exists() and not (tmp_path / "dev/nvidia7").exists()
    )
    assert "nvidia" not in (tmp_path / "proc/devices").read_text()


def test_gpus_bound_to_another_driver_and_removed(tmp_path):
    simgpu(tmp_path, "plug", "--bound", "vfio-pci")
    assert os.readlink(tmp_path / "sys/bus/pci/devices/0000:07:00.0/driver").endswith("/vfio-pci")
    assert not (tmp_path / "proc/driver/nvidia").exists()
    simgpu(tmp_path, "plug")
    simgpu(tmp_path, "bind", "2", "vfio-pci")
    simgpu(tmp_path, "lose", "3", "--gone")
    assert len(list((tmp_path / "proc/driver/nvidia/gpus").iterdir())) == 6
    assert not (tmp_path / "sys/bus/pci/devices/0000:4e:00.0").exists()
    simgpu(tmp_path, "find", "3")
    assert (tmp_path / "sys/bus/pci/devices/0000:4e:00.0").exists()
    simgpu(tmp_path, "unplug")
    assert not (tmp_path / "dev/nvidia0").exists()


def test_nodes_and_links(tmp_path):
    simgpu(tmp_path, "plug", "--no-nodes")
    assert not (tmp_path / "dev/nvidiactl").exists()
    simgpu(tmp_path, "nodes", "make", "nvidiactl", "nvidia[0-9]", "--no-links")
    assert (tmp_path / "dev/nvidia7").exists() and not os.path.lexists(tmp_path / "dev/char/195:7")
    simgpu(tmp_path, "nodes", "link", "nvidia7")
    assert os.readlink(tmp_path / "dev/char/195:7") == "../nvidia7"
    simgpu(tmp_path, "nodes", "unlink")
    assert not os.path.lexists(tmp_path / "dev/char/195:7") and (tmp_path / "dev/nvidia7").exists()
    simgpu(tmp_path, "nodes", "remove", "nvidia7")
    assert not (tmp_path / "dev/nvidia7").exists()


def test_configuration_file(tmp_path):
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/simgpu.conf").write_text(
        "# comment\nplug --gpus 2\n\npersistenced: nvml init=999 for=6\n"
    )
    simgpu(tmp_path, "boot")
    assert "init" not in (tmp_path / "run/simgpu/nvml").read_text()
    simgpu(tmp_path, "started", "persistenced")
    assert "init error=999 until=" in (tmp_path / "run/simgpu/nvml").read_text()


def test_script_statements():
    assert nvmlscript.statement(["hang=handle", "gpu=3", "deaf"]) == "hang handle gpu=3 deaf"
    assert nvmlscript.statement(["init=999", "until=12"]) == "init error=999 until=12"
    assert nvmlscript.statement(["shuffle"]) == "shuffle"
    with pytest.raises(ValueError, match="nothing that the library can do"):
        nvmlscript.statement(["dance=2"])


def test_hardware_keeps_faults(tmp_path):
    path = tmp_path / "nvml"
    nvmlscript.change(path, ["show=7"])
    nvmlscript.set_hardware(path, ["driver 1"])
    assert path.read_text() == "driver 1\nshow 7\n"
    nvmlscript.change(path, ["ok"])
    assert path.read_text() == "driver 1\n"
    assert Layout(tmp_path, tmp_path).gpus == []


def test_uevent_message_as_libudev_reads_it():
    pyudev = pytest.importorskip("pyudev")
    if os.geteuid() != 0:
        pytest.skip("only root may speak for udev")
    monitor = pyudev.Monitor.from_netlink(pyudev.Context(), "udev")
    monitor.filter_by("drivers")
    monitor.start()
    try:
        uevent.send("change", "module", "/module/nvidia")
        uevent.send("add", "drivers", "/bus/pci/drivers/nvidia")
    except OSError as exc:
        pytest.skip(f"no netlink here: {exc}")
    device = monitor.poll(timeout=1)
    if device is None:
        pytest.skip("this network namespace carries no uevents")
    assert (device.action, device.subsystem) == ("add", "drivers")
