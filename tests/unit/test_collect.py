"""The questions of a snapshot, and the results of their answers. The host is a dictionary."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from operator import attrgetter
from typing import Any

import pytest

from agent.core.collect import collect, watched_units
from agent.core.common.layouts import (
    KUBELET_UNITS,
    control_plane_files,
    pod_resources_sockets,
    runtime_sockets,
)
from agent.core.common.paths import NODE_OBJECT, PCI, RUN, SOC_FAMILY, STATE
from agent.core.common.watched import watched_folders
from agent.core.diagnose import diagnose
from agent.core.plugin.candidates import NOT_READ
from agent.core.plugin.collect import plugins
from agent.core.plugin.findings import fault
from agent.model.access import AccessState, Allocation, Process
from agent.model.finding import Scope
from agent.model.gpu import GpuState
from agent.model.kernel import KernelLine
from agent.model.mark import Mark
from agent.model.reading import Reading, Refusal, Seen, Why, unreachable
from agent.model.runtime import (
    Access,
    ContainerDetail,
    ContainerState,
    PluginLogState,
    Runtime,
    SocketOwner,
)
from agent.model.settings import Settings
from agent.model.snapshot import (
    Clock,
    DeviceNode,
    Devices,
    Entry,
    Manager,
    PciFunction,
    ProbeState,
    Snapshot,
    Unit,
)

from .access_snapshots import CTL, GPU0, ID, access_scene, verdict
from .snapshots import (
    DEFAULTS,
    DENIED,
    FAILED_LOG,
    GPUS,
    MISSING,
    NOW,
    TIMED_OUT,
    UUIDS,
    changed,
    container,
    detail,
    entry,
    report,
    sandbox,
    seen,
    unit,
)

RUNTIMES, POD_RESOURCES = list(runtime_sockets(DEFAULTS)), list(pod_resources_sockets(DEFAULTS))

GPU, DISK = "0000:07:00.0", "0000:00:1f.2"
VERSION = b"NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5\n"
MACHINE = "0123456789abcdef"
Files = dict[str, Any]


class DictHost:
    """Files and folders by path: bytes, names or a refusal. Every question is kept."""

    def __init__(self, files: Files, **answers: Any) -> None:
        self.files, self.answers = files, answers
        self.asked: list[str] = []

    async def clock(self) -> Clock:
        return Clock(NOW, NOW, 1.7e9)

    async def machine(self) -> str:
        self.asked.append("machine")
        return MACHINE

    async def file(self, path: str, limit: int = 65536) -> Reading[bytes]:
        self.asked.append(path)
        found = self.files.get(path, MISSING)
        return Seen(found[:limit], NOW) if isinstance(found, bytes) else found

    async def folder(self, path: str, match: str = "*") -> Reading[tuple[Entry, ...]]:
        self.asked.append(f"{path}/{match}")
        found = self.files.get(f"{path}/{match}", MISSING)
        if isinstance(found, Refusal):
            return found
        return Seen(tuple(e if isinstance(e, Entry) else Entry(e, "dir") for e in found), NOW)

    async def units(self, names: Sequence[str]) -> Reading[tuple[Unit, ...]]:
        self.asked.append(f"units {' '.join(names)}")
        return self.answers.get("units", seen(()))

    async def manager(self) -> Reading[Manager]:
        return self.answers.get("manager", seen(Manager("252", 1.0)))

    async def probe(self) -> Reading[ProbeState]:
        return self.answers.get("probe", seen(ProbeState()))

    async def allocatable(self, socket: str) -> Reading[tuple[Devices, ...]]:
        self.asked.append(f"allocatable {socket}")
        found = self.answers.get("allocatable", MISSING)
        return found.get(socket, MISSING) if isinstance(found, dict) else found

    async def tail(self, path: str, limit: int = 65536) -> Reading[bytes]:
        self.asked.append(f"tail {path}")
        found = self.files.get(path, MISSING)
        return Seen(found[-limit:], NOW) if isinstance(found, bytes) else found

    async def document(self, path: str, limit: int = 1 << 20) -> Reading[bytes]:
        return await self.file(path, limit)

    async def absent(self, paths: Sequence[str]) -> Reading[tuple[str, ...]]:
        self.asked.append(f"absent {' '.join(paths)}")
        return seen(tuple(p for p in paths if p not in self.files))

    async def runtime(self, socket: str) -> Reading[Runtime]:
        self.asked.append(f"runtime {socket}")
        return self.answers.get("runtime", {}).get(socket, MISSING)

    async def container(self, socket: str, container_id: str) -> Reading[ContainerDetail]:
        self.asked.append(f"container {socket} {container_id}")
        return self.answers.get("container", {}).get(container_id, MISSING)

    async def access(self, pid: int, path: str) -> Reading[Access]:
        self.asked.append(f"access {pid} {path}")
        return self.answers.get("access", MISSING)

    async def listener(self, path: str) -> Reading[int]:
        self.asked.append(f"listener {path}")
        return self.answers.get("listener", {}).get(path, MISSING)

    async def allocations(self, socket: str) -> Reading[tuple[Allocation, ...]]:
        return self.answers.get("allocations", MISSING)

    async def processes(
        self, socket: str, container_ids: Sequence[str]
    ) -> Reading[tuple[Process, ...]]:
        return self.answers.get("processes", Refusal(Why.NOT_ASKED))

    async def access_state(self) -> Reading[AccessState]:
        return self.answers.get("access_state", Refusal(Why.NOT_ASKED))

    async def kernel_log(self) -> Reading[tuple[KernelLine, ...]]:
        self.asked.append("kernel_log")
        return self.answers.get("kernel_log", seen(()))

    async def trouble(self) -> tuple[str, ...]:
        return self.answers.get("trouble", ())


def node(**changes: Any) -> Files:
    """A node with one GPU and its driver."""
    files: Files = {
        f"{PCI}/*": [DISK, GPU],
        f"{PCI}/{DISK}/vendor": b"0x8086\n",
        f"{PCI}/{GPU}/vendor": b"0x10de\n",
        f"{PCI}/{GPU}/class": b"0x030200\n",
        f"{PCI}/{GPU}/driver": [Entry("driver", "link", target="../../../bus/pci/drivers/nvidia")],
        f"{PCI}/{GPU}/driver_override": b"(null)\n",
        "/proc/driver/nvidia/version": VERSION,
        "/sys/module/nvidia/initstate": b"live\n",
        "/proc/driver/nvidia/gpus/*": [GPU],
        "/proc/devices": b"Character devices:\n195 nvidia\n509 nvidia-caps\n\nBlock devices:\n",
        "/dev/nvidia*": [
            Entry("nvidia-caps", "dir"),
            Entry("nvidia0", "char", 195, 0),
            Entry("nvidia-x", "file"),
        ],
        "/dev/nvidia-caps/*": [Entry("nvidia-cap1", "char", 509, 1), Entry("junk", "file")],
        "/dev/char/*": [Entry("195:0", "link", target="../nvidia0"), Entry("1:3", "char", 1, 3)],
        "/proc/sys/kernel/osrelease": b"6.1.0-18-amd64\n",
    }
    return {**files, **changes}


def without_driver(**changes: Any) -> Files:
    files = node(**changes)
    gone = ("/proc/driver/", "/sys/module/nvidia/")
    return {k: v for k, v in files.items() if not k.startswith(gone)}


def looked(files: Files, settings: Settings = DEFAULTS, **answers: Any) -> Snapshot:
    return asyncio.run(collect(DictHost(files, **answers), settings))


def value(reading: Reading[Any]) -> Any:
    assert isinstance(reading, Seen), reading
    return reading.value


def test_a_node_with_one_gpu() -> None:
    snapshot = looked(node())
    assert value(snapshot.hardware.pci) == (PciFunction(GPU, 0x030200, "nvidia", ""),)
    assert value(snapshot.hardware.driver_version) == "550.54.15"
    assert value(snapshot.hardware.module_state) == "live"
    assert value(snapshot.hardware.proc_gpus) == (GPU,)
    assert value(snapshot.hardware.majors) == {"nvidia": 195, "nvidia-caps": 509}
    assert value(snapshot.hardware.nodes) == (
        DeviceNode("/dev/nvidia0", 195, 0),
        DeviceNode("/dev/nvidia-caps/nvidia-cap1", 509, 1),
    )
    assert value(snapshot.hardware.char_links) == {"195:0": "../nvidia0"}
    assert (snapshot.hardware.is_container, snapshot.kubelet.control_plane) == (False, False)


def test_with_a_loaded_driver_module_files_are_not_read() -> None:
    host = DictHost(node())
    asyncio.run(collect(host, DEFAULTS))
    assert not [q for q in host.asked if "/lib/modules" in q or "dkms" in q]
    assert "machine" not in host.asked, (
        "nothing was learned: there is nothing to compare the machine with"
    )


def test_the_exact_questions_of_a_node_without_gpus() -> None:
    host = DictHost({f"{PCI}/*": []})
    asyncio.run(collect(host, DEFAULTS))
    assert host.asked == [
        f"{PCI}/*",
        SOC_FAMILY,
        "/proc/driver/nvidia/version",
        "/sys/module/nvidia/initstate",
        "/run/systemd/container",
        "/.dockerenv",
        "/run/.containerenv",
        "/proc/sys/kernel/osrelease",
        "/var/lib/dkms/nvidia*",
        "/proc/devices",
        "/dev/nvidia*",
        "/dev/nvidia-caps/*",
        "/dev/char/*",
        f"{RUN}/released",
        f"{RUN}/paused",
        f"{RUN}/waiting",
        f"{RUN}/launched",
        f"{RUN}/*",
        f"{STATE}/learned.json",
        "/proc/sys/kernel/random/boot_id",
        f"units {' '.join(watched_units(DEFAULTS))}",
        *control_plane_files(DEFAULTS),
        "/var/lib/kubelet/device-plugins/*",
        NODE_OBJECT,
        *(f"allocatable {path}" for path in POD_RESOURCES),
        f"tail {STATE}/ledger.jsonl",
    ]


@pytest.mark.parametrize(
    ("part", "answer", "pci"),
    [
        (f"{PCI}/*", DENIED, Why.NOT_PERMITTED),
        (f"{PCI}/*", MISSING, Why.MISSING),
        (f"{PCI}/{GPU}/vendor", DENIED, Why.NOT_PERMITTED),
        (f"{PCI}/{DISK}/vendor", TIMED_OUT, Why.TIMED_OUT),  # it could have been a GPU
        (f"{PCI}/{GPU}/vendor", b"junk", Why.FAILED),
        (f"{PCI}/{GPU}/class", DENIED, Why.NOT_PERMITTED),
        (f"{PCI}/{GPU}/class", b"\xff\xff", Why.FAILED),
        (f"{PCI}/{GPU}/driver", DENIED, Why.NOT_PERMITTED),
    ],
)
def test_a_set_of_gpus_with_a_hole_is_not_a_set(part: str, answer: Any, pci: Why) -> None:
    found = looked(node(**{part: answer})).hardware.pci
    assert isinstance(found, Refusal)
    assert found.why is pci


def test_a_pci_function_that_disappears_before_its_vendor_is_read_is_ignored() -> None:
    assert value(looked(node(**{f"{PCI}/{GPU}/vendor": MISSING})).hardware.pci) == ()


@pytest.mark.parametrize("part", ["class", "driver"])
def test_a_pci_function_that_disappears_during_a_read_does_not_hide_the_bus(part: str) -> None:
    snapshot = looked(node(**{f"{PCI}/{GPU}/{part}": MISSING}), allocatable=seen(()))
    assert diagnose(snapshot, DEFAULTS).scope_because != "this host has no PCI bus"
    assert (
        diagnose(
            looked(
                node(
                    **{
                        f"{PCI}/*": [DISK, GPU, "0000:0f:00.0"],
                        f"{PCI}/0000:0f:00.0/vendor": b"0x10de",
                        f"{PCI}/{GPU}/{part}": MISSING,
                        f"{PCI}/0000:0f:00.0/class": b"0x030200",
                        f"{PCI}/0000:0f:00.0/driver": [],
                    }
                )
            ),
            DEFAULTS,
        ).scope
        is not Scope.NONE
    )


@pytest.mark.parametrize(
    ("driver", "override", "found"),
    [
        ([], b"(null)\n", ("", "")),
        ([], b"vfio-pci\n", ("", "vfio-pci")),
        ([], MISSING, ("", "")),
        ([], DENIED, ("", "")),
        ([Entry("driver", "link", target="/sys/bus/pci/drivers/vfio-pci")], b"", ("vfio-pci", "")),
    ],
)
def test_the_driver_of_a_gpu(driver: list[Entry], override: Any, found: tuple[str, str]) -> None:
    snapshot = looked(
        node(**{f"{PCI}/{GPU}/driver": driver, f"{PCI}/{GPU}/driver_override": override})
    )
    (gpu,) = value(snapshot.hardware.pci)
    assert (gpu.driver, gpu.driver_override) == found


def test_an_unknown_name_on_the_bus_is_kept_unchanged() -> None:
    files = node(
        **{
            f"{PCI}/*": ["odd"],
            f"{PCI}/odd/vendor": b"0x10de",
            f"{PCI}/odd/class": b"0x030000",
            f"{PCI}/odd/driver": [],
        }
    )
    assert value(looked(files).hardware.pci) == (PciFunction("odd", 0x030000, ""),)


@pytest.mark.parametrize("mark", ["/run/systemd/container", "/.dockerenv", "/run/.containerenv"])
def test_a_node_that_is_a_container(mark: str) -> None:
    assert looked(node(**{mark: b""})).hardware.is_container


@pytest.mark.parametrize(
    ("changes", "installed"),
    [
        (
            {"/lib/modules/6.1.0-18-amd64/modules.dep": b"updates/dkms/nvidia.ko: a.ko\n"},
            "updates/dkms/nvidia.ko",
        ),
        ({"/lib/modules/6.1.0-18-amd64/modules.dep": b"kernel/fs/ext4.ko:\n"}, Why.MISSING),
        ({}, Why.MISSING),
        ({"/lib/modules/6.1.0-18-amd64/modules.dep": DENIED}, Why.NOT_PERMITTED),
        ({"/proc/sys/kernel/osrelease": DENIED}, Why.NOT_PERMITTED),
    ],
)
def test_is_a_module_installed(changes: Files, installed: Any) -> None:
    found = looked(without_driver(**changes)).hardware.module_installed
    assert (found.value if isinstance(found, Seen) else found.why) == installed


@pytest.mark.parametrize(
    ("changes", "building"),
    [
        ({}, Why.MISSING),
        ({"/var/lib/dkms/nvidia*": DENIED}, Why.NOT_PERMITTED),
        ({"/var/lib/dkms/nvidia*": []}, Why.MISSING),
        ({"/var/lib/dkms/nvidia*": ["nvidia"]}, Why.MISSING),  # its folder went meanwhile
        ({"/var/lib/dkms/nvidia*": ["nvidia"], "/var/lib/dkms/nvidia/*": ["550.54"]}, Why.MISSING),
        (
            {
                "/var/lib/dkms/nvidia*": ["nvidia"],
                "/var/lib/dkms/nvidia/*": ["550.54"],
                "/var/lib/dkms/nvidia/550.54/build": [],
            },
            Why.MISSING,
        ),
        (
            {
                "/var/lib/dkms/nvidia*": ["nvidia"],
                "/var/lib/dkms/nvidia/*": ["550.54"],
                "/var/lib/dkms/nvidia/550.54/build": ["build"],
            },
            "nvidia 550.54",
        ),
    ],
)
def test_is_a_module_being_built(changes: Files, building: Any) -> None:
    found = looked(without_driver(**changes)).hardware.driver_building
    assert (found.value if isinstance(found, Seen) else found.why) == building


def test_a_dkms_module_that_was_not_built_is_reported() -> None:
    kept = {
        "/var/lib/dkms/nvidia*": ["nvidia"],
        "/var/lib/dkms/nvidia/*": [
            Entry("550.54", "dir"),
            Entry("kernel-6.1.0-18-amd64-x86_64", "link"),
        ],
    }
    found = looked(without_driver(**kept))
    assert isinstance(found.hardware.driver_building, Refusal)
    assert (
        found.hardware.driver_building.detail == "dkms has nvidia 550.54, and does not build it now"
    )
    assert "; dkms has nvidia 550.54" in diagnose(found, DEFAULTS).scope_because


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("/proc/driver/nvidia/version", "hardware.driver_version"),
        ("/sys/module/nvidia/initstate", "hardware.module_state"),
        ("/proc/driver/nvidia/gpus/*", "hardware.proc_gpus"),
        ("/proc/devices", "hardware.majors"),
        ("/dev/nvidia*", "hardware.nodes"),
        ("/dev/char/*", "hardware.char_links"),
        (f"{RUN}/released", "boot.released"),
        (f"{STATE}/learned.json", "boot.learned"),
        ("/var/lib/kubelet/device-plugins/*", "kubelet.plugin_sockets"),
    ],
)
@pytest.mark.parametrize("refusal", [DENIED, TIMED_OUT, MISSING], ids=lambda r: r.why.value)
def test_a_refusal_is_passed_on_unchanged(path: str, part: str, refusal: Refusal) -> None:
    found = attrgetter(part)(looked(node(**{path: refusal})))
    assert isinstance(found, Refusal)
    assert found.why is refusal.why


def test_a_file_with_other_content_is_not_a_missing_file() -> None:
    found = looked(node(**{"/proc/driver/nvidia/version": b"hello\n"})).hardware.driver_version
    assert found == Refusal(Why.FAILED, "/proc/driver/nvidia/version holds something else: 'hello'")


def test_marks() -> None:
    snapshot = looked(
        node(
            **{
                f"{RUN}/released": b'{"reason": "open", "at": 3}',
                f"{RUN}/paused": b"",
                f"{RUN}/waiting": b'{"reason": "started", "at": 2.5}',
            }
        )
    )
    assert (
        value(snapshot.boot.released),
        value(snapshot.boot.paused),
        value(snapshot.boot.waiting),
    ) == (
        Mark("open", 3.0),
        Mark("set by hand", 0.0),
        Mark("started", 2.5),
    )


@pytest.mark.parametrize("path", control_plane_files(DEFAULTS))
def test_a_control_plane_of_static_pods(path: str) -> None:
    assert looked(node(**{path: b"apiVersion: v1"})).kubelet.control_plane


@pytest.mark.parametrize(
    ("stored", "learned"),
    [
        (b'{"machine": "%s", "bus_ids": ["0000:07:00.0"]}' % MACHINE.encode(), (GPU,)),
        (b'{"machine": "another", "bus_ids": ["0000:07:00.0"]}', Why.MISSING),
        (b'{"machine": "%s", "bus_ids": "x"}' % MACHINE.encode(), Why.MISSING),
        (b"{}", Why.MISSING),
        (b"torn", Why.FAILED),
    ],
)
def test_the_gpu_record_of_another_machine_is_ignored(stored: bytes, learned: Any) -> None:
    found = looked(node(**{f"{STATE}/learned.json": stored})).boot.learned
    assert (found.value if isinstance(found, Seen) else found.why) == learned


CONTAINERD, K3S = "/run/containerd/containerd.sock", "/run/k3s/containerd/containerd.sock"
CRIO, DOCKERSHIM = "/run/crio/crio.sock", "/run/dockershim.sock"
PODS, EMPTY = seen(Runtime((sandbox("any", labels={}),), ())), seen(Runtime((), ()))
CHECKPOINT = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"


def with_plugin(*containers: Any, **answers: Any) -> DictHost:
    """A node whose runtime lists these containers, each with its status and log."""
    files = node(**{"/var/log/p.log": FAILED_LOG})
    return DictHost(
        files,
        **{
            "runtime": {CONTAINERD: seen(Runtime((sandbox(),), containers))},
            "container": {c.id: seen(detail(c)) for c in containers},
            "access": seen(Access("/dev/nvidiactl", True, "cgroup-bpf")),
            **answers,
        },
    )


@pytest.mark.parametrize(
    ("answers", "settings", "asked", "used"),
    [
        ({CONTAINERD: PODS}, Settings(), [CONTAINERD], CONTAINERD),
        ({CRIO: PODS}, Settings(), [CONTAINERD, DOCKERSHIM, CRIO], CRIO),
        (
            {CONTAINERD: EMPTY, CRIO: PODS},
            Settings(),
            [CONTAINERD, DOCKERSHIM, CRIO],
            CRIO,
        ),  # Docker's own, beside it
        ({CONTAINERD: EMPTY}, Settings(), RUNTIMES, CONTAINERD),  # before the kubelet's first pod
        (
            {CONTAINERD: EMPTY, CRIO: TIMED_OUT},
            Settings(),
            [CONTAINERD, DOCKERSHIM, CRIO],
            CONTAINERD,
        ),
        ({CONTAINERD: TIMED_OUT, K3S: PODS}, Settings(), [CONTAINERD], CONTAINERD),  # it is there
        ({CONTAINERD: DENIED}, Settings(), [CONTAINERD], CONTAINERD),
        ({CONTAINERD: seen(Runtime((), ()))}, Settings(runtime_socket=K3S), [K3S], K3S),
        ({}, Settings(), RUNTIMES, CONTAINERD),
    ],
)
def test_the_first_existing_runtime_is_queried(
    answers: Any, settings: Settings, asked: list[str], used: str
) -> None:
    host = DictHost(node(), runtime=answers)
    snapshot = asyncio.run(collect(host, settings))
    assert [q for q in host.asked if q.startswith("runtime")] == [
        f"runtime {socket}" for socket in asked
    ]
    assert (snapshot.plugin.runtime_socket, snapshot.plugin.runtime) == (
        used,
        answers.get(used, MISSING),
    )
    assert snapshot.plugin.plugins == ()


@pytest.mark.parametrize(
    ("kubelet", "first"),
    [
        ("k3s-agent.service", K3S),
        ("k0sworker.service", "/run/k0s/containerd.sock"),
        ("microshift.service", CRIO),
        ("kubelet.service", CONTAINERD),
    ],
)
def test_the_running_kubelets_own_runtime_comes_first(kubelet: str, first: str) -> None:
    host = DictHost(node(), units=seen((unit(kubelet),)), runtime={CONTAINERD: PODS, first: PODS})
    assert asyncio.run(collect(host, DEFAULTS)).plugin.runtime_socket == first


KUBELETS = "/var/lib/kubelet/pod-resources/kubelet.sock"
K0S = "/var/lib/k0s/kubelet/pod-resources/kubelet.sock"
LISTED = seen((Devices("nvidia.com/gpu", UUIDS),))


@pytest.mark.parametrize(
    ("kubelet", "answers", "settings", "asked", "found"),
    [
        ("kubelet.service", {KUBELETS: LISTED}, DEFAULTS, [KUBELETS], LISTED),
        (
            "kubelet.service",
            {K0S: LISTED},
            DEFAULTS,
            POD_RESOURCES[:3],
            LISTED,
        ),  # its --root-dir was set
        (
            "k0sworker.service",
            {KUBELETS: LISTED, K0S: LISTED},
            DEFAULTS,
            [K0S],
            LISTED,
        ),  # an earlier kubeadm's remains
        (
            "kubelet.service",
            {KUBELETS: TIMED_OUT, K0S: LISTED},
            DEFAULTS,
            [KUBELETS],
            TIMED_OUT,
        ),  # it is there
        ("k0sworker.service", {}, DEFAULTS, [K0S, KUBELETS, POD_RESOURCES[1]], MISSING),
        ("kubelet.service", {K0S: LISTED}, Settings(pod_resources_socket="/x"), ["/x"], MISSING),
    ],
)
def test_pod_resources_follow_the_kubelets_root(
    kubelet: str, answers: Any, settings: Settings, asked: list[str], found: Any
) -> None:
    host = DictHost(node(), units=seen((unit(kubelet),)), allocatable=answers)
    assert asyncio.run(collect(host, settings)).kubelet.allocatable == found
    assert [q for q in host.asked if q.startswith("allocatable")] == [
        f"allocatable {path}" for path in asked
    ]


APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
STATIC = {"kubernetes.io/config.source": "file"}
YAML = b"""apiVersion: v1
kind: Pod
metadata:
  name: nvidia-device-plugin
spec:
  restartPolicy: Never
  containers:
    - name: nvidia-device-plugin-ctr
"""
JSON = b'{"metadata": {"name": "nvidia-device-plugin"}, "spec": {"restartPolicy": "Never"}}'
MANIFESTS = "/etc/kubernetes/manifests"


@pytest.mark.parametrize(
    ("annotations", "files", "policy"),
    [
        (STATIC, {"plugin.yaml": YAML}, "Never"),
        (STATIC, {"plugin.yaml": YAML.replace(b"Never", b"'OnFailure'")}, "OnFailure"),
        (STATIC, {"plugin.yaml": YAML.replace(b"  restartPolicy: Never\n", b"")}, ""),
        (STATIC, {"plugin.json": JSON}, "Never"),
        (STATIC, {"plugin.json": JSON.replace(b'"name"', b'"nam"')}, ""),
        (STATIC, {"plugin.json": b'{"metadata": [], "spec": 7}'}, ""),
        (
            STATIC,
            {
                "a.yaml": YAML.replace(b"device-plugin-ctr", b"c").replace(
                    b"nvidia-device-plugin", b"nvidia"
                ),
                "b.yaml": YAML.replace(b"Never", b"Always"),
            },
            "Always",
        ),  # the longest name is the pod's
        (STATIC, {"other.yaml": YAML.replace(b"nvidia", b"intel")}, ""),
        (STATIC, {"plugin.manifest": YAML}, "Never"),
        (STATIC, {".plugin.yaml": YAML}, ""),  # the kubelet reads all but
        (
            STATIC,
            {"a.yaml": YAML.replace(b"Never", b"Always"), "a.yaml.bak": YAML},
            "Never",
        ),  # hidden ones
        (STATIC, {"a.yaml": YAML, "b.yaml": YAML.replace(b"Never", b"Always")}, "Never"),
        (STATIC, {"plugin.yaml": DENIED}, NOT_READ),
        (
            STATIC,
            {"plugin.yaml": DENIED, "other.yaml": YAML.replace(b"nvidia", b"intel")},
            NOT_READ,
        ),
        (
            STATIC,
            {"plugin.yaml": YAML.replace(b"Never", b"Always"), "other.yaml": DENIED},
            "Always",
        ),
        (STATIC, {"plugin.yaml": YAML + b"#" * 65536}, NOT_READ),
        (STATIC, {f"{n}.yaml": YAML.replace(b"nvidia", b"intel") for n in range(33)}, NOT_READ),
        (STATIC, {"plugin.yaml": b"\xff\xfe"}, ""),
        (STATIC, {}, ""),
        ({APPLIED: '{"spec": {"restartPolicy": "Never"}}'}, {"plugin.yaml": YAML}, "Never"),
        ({APPLIED: '{"spec": []}'}, {}, ""),
        ({APPLIED: "torn"}, {}, ""),
        ({"kubernetes.io/config.source": "api"}, {"plugin.yaml": YAML}, ""),
    ],
)
def test_whether_a_removed_container_would_come_back(
    annotations: dict[str, str], files: dict[str, Any], policy: str
) -> None:
    host = with_plugin(container())
    host.answers["runtime"] = {
        CONTAINERD: seen(Runtime((sandbox(annotations=annotations),), (container(),)))
    }
    host.files[f"{MANIFESTS}/*"] = [Entry(name, "file") for name in files]
    host.files |= {f"{MANIFESTS}/{name}": text for name, text in files.items()}
    (found,) = asyncio.run(collect(host, DEFAULTS)).plugin.plugins
    assert found.restart_policy == policy


@pytest.mark.parametrize(("allowed", "policy"), [((GPU0, CTL), ""), ((GPU0,), "Never")])
def test_a_plugin_that_lost_access_is_collected_even_if_all_is_listed(
    allowed: Any, policy: str
) -> None:
    of, box = container(ID), sandbox(annotations={APPLIED: '{"spec": {"restartPolicy": "Never"}}'})
    whole = changed(
        access_scene(verdicts=(verdict(allowed),)), runtime=seen(Runtime((box,), (of,)))
    )
    (found,) = asyncio.run(plugins(with_plugin(of), DEFAULTS, whole)).plugins
    assert value(found.access).allowed is (CTL in allowed)
    assert found.restart_policy == policy


BOX = "0123456789abcdef" * 4
OUTER = "f" * 64


@pytest.mark.parametrize(
    ("cgroup", "box", "service"),
    [
        (
            f"0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podce.slice/cri-containerd-{BOX}.scope",
            BOX,
            "",
        ),
        (f"0::/kubepods/burstable/pod11111111-2222-3333-4444-555555555555/{BOX}", BOX, ""),
        (f"0::/kubepods.slice/kubepods-pod1.slice/crio-{BOX}.scope", BOX, ""),
        (f"0::/docker/{OUTER}/kubepods.slice/cri-containerd-{BOX}.scope", BOX, ""),
        (f"5:devices:/kubepods.slice/docker-{BOX}.scope\n0::/", BOX, ""),
        (
            "0::/system.slice/nvidia-k8s-device-plugin.service",
            "",
            "nvidia-k8s-device-plugin.service",
        ),
        (f"0::/system.slice/k3s-agent.service/kubepods/pod1/{BOX}", BOX, "k3s-agent.service"),
        ("0::/user.slice/user-0.slice/session-3.scope", "", ""),
        ("", "", ""),
    ],
)
def test_the_listener_of_a_plugins_socket(cgroup: str, box: str, service: str) -> None:
    folder = "/var/lib/kubelet/device-plugins"
    names = ("kubelet.sock", "nvidia-gpu.sock", "rdma.sock")
    host = with_plugin(container(), listener={f"{folder}/nvidia-gpu.sock": seen(77)})
    host.files[f"{folder}/*"] = [Entry(name, "socket") for name in names] + [
        Entry("nvidia-x.sock", "file")
    ]
    host.files["/proc/77/cgroup"] = cgroup.encode()
    assert asyncio.run(collect(host, DEFAULTS)).plugin.socket_owners == (
        SocketOwner("nvidia-gpu.sock", 77, box, service),
    )
    assert [q for q in host.asked if q.startswith("listener")] == [
        f"listener {folder}/nvidia-gpu.sock"
    ]


def test_no_listener_is_searched_while_all_gpus_are_listed() -> None:
    folder = "/var/lib/kubelet/device-plugins"
    host = with_plugin(container(), allocatable=LISTED, probe=seen(ProbeState(report(gpus=GPUS))))
    host.files[f"{folder}/*"] = [Entry("nvidia-gpu.sock", "socket")]
    asyncio.run(collect(host, DEFAULTS))
    assert not [q for q in host.asked if q.startswith("listener") or q == f"{MANIFESTS}/*"]


def test_a_socket_without_a_listener_has_no_owner() -> None:
    host = with_plugin(container())
    host.files["/var/lib/kubelet/device-plugins/*"] = [
        Entry(f"nvidia-{n}.sock", "socket") for n in range(40)
    ]
    assert asyncio.run(collect(host, DEFAULTS)).plugin.socket_owners == ()
    assert len([q for q in host.asked if q.startswith("listener")]) <= 4


def test_a_plugin_is_collected_completely() -> None:
    host = with_plugin(container(), container("work", "pod-2", name="main", image="cuda"))
    (found,) = asyncio.run(collect(host, DEFAULTS)).plugin.plugins
    assert (found.container.id, found.sandbox) == ("c1", sandbox())
    assert value(found.log).says is PluginLogState.INIT_FAILED
    assert value(found.access).allowed
    assert [q for q in host.asked if q.startswith(("container ", "tail /var/log", "access "))] == [
        f"container {CONTAINERD} c1",
        "tail /var/log/p.log",
        "access 4711 /dev/nvidiactl",
    ]


@pytest.mark.parametrize(
    ("answers", "of", "log", "access"),
    [
        ({"container": {"c1": TIMED_OUT}}, container(), Why.NOT_ASKED, Why.NOT_ASKED),
        (
            {"container": {"c1": seen(detail(container(), log_path="/gone"))}},
            container(),
            Why.MISSING,
            None,
        ),
        ({"container": {"c1": seen(detail(container(), pid=0))}}, container(), None, Why.NOT_ASKED),
        ({}, container(state=ContainerState.EXITED), None, Why.NOT_ASKED),
        ({"access": DENIED}, container(), None, Why.NOT_PERMITTED),
    ],
)
def test_parts_of_a_plugin_that_cannot_be_read(
    answers: dict[str, Any], of: Any, log: Why | None, access: Why | None
) -> None:
    (found,) = asyncio.run(collect(with_plugin(of, **answers), DEFAULTS)).plugin.plugins
    assert [r.why if isinstance(r, Refusal) else None for r in (found.log, found.access)] == [
        log,
        access,
    ]


@pytest.mark.parametrize(
    ("ids", "gpus", "asked"),
    [
        (
            UUIDS,
            GPUS,
            False,
        ),  # all listed: nobody doubts its access, and the question costs a program's start
        (UUIDS[:1], GPUS, True),
        ((), GPUS, True),
        ((), (), True),  # NVML showed none: nothing can be compared
    ],
)
def test_the_plugins_own_access_is_checked_only_when_in_doubt(
    ids: Any, gpus: Any, asked: bool
) -> None:
    host = with_plugin(
        container(),
        allocatable=seen((Devices("nvidia.com/gpu", ids),)),
        probe=seen(ProbeState(report(gpus=gpus))),
    )
    asyncio.run(collect(host, DEFAULTS))
    assert ("access 4711 /dev/nvidiactl" in host.asked) is asked


def test_only_a_bounded_number_of_plugins_is_read() -> None:
    swarm = [container(f"c{n}", labels={"io.kubernetes.pod.uid": str(n)}) for n in range(40)]
    host = with_plugin(*swarm)
    assert 1 < len(asyncio.run(collect(host, DEFAULTS)).plugin.plugins) <= 4
    assert len([q for q in host.asked if q.startswith("container")]) <= 4


TENANTS = (
    "/var/lib/kubelet/pods/7f/etc-hosts",
    "/var/lib/kubelet/pods/7f/volumes/kubernetes.io~empty-dir/device-plugins",
)
REAL = (TENANTS[0], "/var/lib/kubelet/device-plugins")


def pods_alike(**mounts: tuple[str, ...]) -> DictHost:
    """Pods with the plugin's label, image and name, the oldest first, and what is mounted in
    each."""
    boxes = [
        sandbox(f"pod-{name}", name=name, namespace=f"of-{name}", uid=name, created_at=60.0 + n)
        for n, name in enumerate(mounts)
    ]
    alike = [
        container(name, f"pod-{name}", labels={"io.kubernetes.pod.uid": name}) for name in mounts
    ]
    return with_plugin(
        *alike,
        runtime={CONTAINERD: seen(Runtime(tuple(boxes), tuple(alike)))},
        container={c.id: seen(detail(c, mounts=mounts[c.id])) for c in alike},
    )


def test_a_pod_that_imitates_the_plugin_is_no_candidate() -> None:
    """Whoever may create a pod chooses its labels, image and names; the kubelet's folder is not
    theirs to mount."""
    snapshot = asyncio.run(collect(pods_alike(real=REAL, tenant=TENANTS), DEFAULTS))
    assert [s.container.id for s in snapshot.plugin.plugins] == ["real"]
    assert snapshot.plugin.not_plugins == ("of-tenant/tenant nvidia-device-plugin-ctr",)
    alone = asyncio.run(collect(pods_alike(tenant=TENANTS), DEFAULTS))
    assert alone.plugin.plugins == ()
    found = fault(alone, DEFAULTS, short=True)
    assert found is not None and found.reason == "NoPlugin"
    assert "of-tenant/tenant nvidia-device-plugin-ctr looks like it" in found.because


def test_a_flood_of_such_pods_does_not_hide_the_plugin() -> None:
    host = pods_alike(real=REAL, **{f"t{n}": TENANTS for n in range(100)})
    assert "real" in [s.container.id for s in asyncio.run(collect(host, DEFAULTS)).plugin.plugins]
    assert len([q for q in host.asked if q.startswith("container")]) <= 20


def test_without_mounts_from_the_runtime_no_candidate_is_rejected() -> None:
    assert len(asyncio.run(collect(pods_alike(one=(), other=()), DEFAULTS)).plugin.plugins) == 2


def test_without_nvidia_functions_no_plugin_is_searched() -> None:
    host = with_plugin(container())
    host.files[f"{PCI}/*"] = [DISK]
    snapshot = asyncio.run(collect(host, DEFAULTS))
    assert not [q for q in host.asked if q.startswith(("runtime", "container", "access"))]
    assert (snapshot.plugin.plugins, snapshot.plugin.runtime) == ((), Refusal(Why.NOT_ASKED))


@pytest.mark.parametrize(
    ("stored", "entries"),
    [
        (MISSING, 0),
        (b"", 0),
        (json.dumps(asdict(entry())).encode() + b"\n", 1),
        (json.dumps(asdict(entry())).encode() + b'\n{"at": 1', 1),
        (b"junk\n", Why.FAILED),
        (DENIED, Why.NOT_PERMITTED),
    ],
)
def test_no_ledger_yet_is_an_empty_one_and_a_broken_one_is_none(stored: Any, entries: Any) -> None:
    found = looked(node(**{f"{STATE}/ledger.jsonl": stored})).plugin.ledger
    assert (len(found.value) if isinstance(found, Seen) else found.why) == entries


@pytest.mark.parametrize(
    ("stored", "found"),
    [
        (
            b'{"Data": {"PodDeviceEntries": null, "RegisteredDevices": {"nvidia.com/gpu": '
            b'["GPU-a", "GPU-b"]}}, '
            b'"Checksum": 1}',
            {"nvidia.com/gpu": 2},
        ),
        (b'{"Data": {"PodDeviceEntries": null, "RegisteredDevices": {}}, "Checksum": 1}', {}),
        (b'{"Data": {"RegisteredDevices": null}}', {}),
        (b'{"Data": {"RegisteredDevices": []}}', {}),
        (b'{"Data": {}}', {}),
        (
            b'{"Data": {"RegisteredDevices": {"a": null, "b": "x", "c": {"0": []}}}}',
            {"a": 0, "b": 0, "c": 0},
        ),
        (b'{"Data": {"RegisteredDevices": ["x"]}}', Why.FAILED),
        (b'{"Data": []}', Why.FAILED),
        (b"{}", Why.FAILED),
        (b"", Why.FAILED),
        (b'{"Data": {"RegisteredDevi', Why.FAILED),
        (MISSING, Why.MISSING),
    ],
)
def test_the_checkpoint_in_all_formats(stored: Any, found: Any) -> None:
    said = looked(node(**{CHECKPOINT: stored})).kubelet.checkpoint
    assert (said.value if isinstance(said, Seen) else said.why) == found


def test_the_boot() -> None:
    assert looked(node(**{"/proc/sys/kernel/random/boot_id": b"6f1c\n"})).boot.boot_id == "6f1c"
    assert looked(node()).boot.boot_id == ""


def test_the_plugins_own_unit_is_read() -> None:
    assert watched_units(Settings(plugin_unit="dp.service"))[-1] == "dp.service"
    assert "" not in watched_units(DEFAULTS)


@pytest.mark.parametrize(
    ("unit_setting", "kubelets"),
    [("", KUBELET_UNITS), ("none", ()), ("my.service", ("my.service",))],
)
def test_the_watched_units(unit_setting: str, kubelets: tuple[str, ...]) -> None:
    names = watched_units(Settings(kubelet_unit=unit_setting))
    assert set(kubelets) == {*names} & {*KUBELET_UNITS, "my.service"}
    assert "nvidia-persistenced.service" in names and "containerd.service" in names
    assert ("kubelet.service" in names) is (unit_setting == "")


def test_the_folders_that_are_watched() -> None:
    folders = watched_folders(
        Settings(pod_resources_socket="/data/pod-resources/k.sock", device_plugins_dir="/dp")
    )
    assert folders["/data/pod-resources"] == folders["/dp"] == ()
    assert folders["/dev"] == ("nvidia",) and folders["/dev/nvidia-caps"] == ()
    assert "released" in folders[RUN]


CAPABILITIES = "/proc/driver/nvidia/capabilities"
PARTS: Files = {
    f"{CAPABILITIES}/gpu*": ["gpu0", "gpu1"],
    f"{CAPABILITIES}/gpu0/mig/gi*": ["gi1", "gi2"],
    f"{CAPABILITIES}/gpu0/mig/gi1/ci*": ["ci0", "ci1"],
    f"{CAPABILITIES}/gpu1/mig/gi*": [],
}


@pytest.mark.parametrize(
    ("mig", "files", "found"),
    [
        (True, PARTS, ("gpu0/gi1/ci0", "gpu0/gi1/ci1", "gpu0/gi2/")),
        (False, PARTS, ("gpu0/gi1/ci0", "gpu0/gi1/ci1", "gpu0/gi2/")),
        (None, PARTS, "not-asked"),
        (True, {}, "missing"),
        (True, {f"{CAPABILITIES}/gpu*": ["gpu0"]}, ()),
        (True, {f"{CAPABILITIES}/gpu*": DENIED}, "not-permitted"),
    ],
)
def test_mig_instances_by_the_drivers_own_folders(
    mig: bool | None, files: Files, found: Any
) -> None:
    gpus = tuple(replace(g, state=GpuState(mig=mig)) for g in GPUS)
    said = looked(node(**files), probe=seen(ProbeState(report(gpus=gpus)))).hardware.mig_instances
    assert (said.value if isinstance(said, Seen) else said.why.value) == found


def test_settings_select_the_paths_that_are_read() -> None:
    host = DictHost(node())
    asyncio.run(collect(host, Settings(pod_resources_socket="/a/b.sock", device_plugins_dir="/dp")))
    assert {"allocatable /a/b.sock", "/dp/*"} <= set(host.asked)


def test_answers_that_are_no_files_reach_the_scene() -> None:
    answers = {
        "units": seen((unit("kubelet.service"),)),
        "probe": seen(ProbeState(report())),
        "trouble": ("lost",),
    }
    snapshot = looked(node(), **answers)
    assert (snapshot.boot.units, snapshot.hardware.probe, snapshot.trouble) == tuple(
        answers.values()
    )


@pytest.mark.parametrize(
    ("why", "telling"),
    [
        (Why.MISSING, True),
        (Why.FAILED, True),
        (Why.TIMED_OUT, True),
        (Why.NOT_ASKED, False),
        (Why.NOT_RECORDED, False),
        (Why.NOT_PERMITTED, False),
    ],
)
def test_some_refusals_are_facts_about_the_node(why: Why, telling: bool) -> None:
    assert Refusal(why).is_telling is telling
    assert Refusal(why).is_missing is (why is Why.MISSING)
    assert (str(Refusal(why)), str(Refusal(why, "so"))) == (why.value, f"{why.value}: so")


def test_a_match_that_forgets_a_member_ends_loudly() -> None:
    with pytest.raises(AssertionError, match="not a member"):
        unreachable("something new")  # type: ignore[arg-type]


DRA_IMAGE = "nvcr.io/nvidia/k8s-dra-driver-gpu:v25.8.0"
DRA_POD = {"name": "nvidia-dra-driver-gpu-kubelet-plugin-x7k2p", "labels": {}}


@pytest.mark.parametrize(
    ("root", "socket", "state", "found"),
    [
        ("/var/lib/kubelet", "dra.sock", ContainerState.RUNNING, "gpus"),
        ("/var/lib/k0s/kubelet", "plugin.sock", ContainerState.RUNNING, "gpus"),
        (
            "/var/lib/kubelet",
            "dra.sock",
            ContainerState.EXITED,
            "",
        ),  # a dead one leaves its socket behind
        ("/var/lib/kubelet", "", ContainerState.RUNNING, ""),
    ],
)
def test_without_a_plugin_a_dra_driver_is_searched(
    root: str, socket: str, state: ContainerState, found: str
) -> None:
    driver = container(name="gpus", image=DRA_IMAGE, state=state)
    host = with_plugin(container())
    host.answers["runtime"] = {CONTAINERD: seen(Runtime((sandbox(**DRA_POD),), (driver,)))}
    host.files[f"{root}/plugins/gpu.nvidia.com/*"] = [Entry(socket, "socket")] if socket else []
    snapshot = asyncio.run(collect(host, DEFAULTS))
    assert snapshot.plugin.plugins == ()
    assert (
        snapshot.plugin.dra_driver.value if isinstance(snapshot.plugin.dra_driver, Seen) else ""
    ) == found


def test_a_tegra_is_collected_with_its_driver() -> None:
    host = DictHost({f"{PCI}/*": [], SOC_FAMILY: b"Tegra\n"})
    asyncio.run(collect(host, DEFAULTS))
    assert host.asked[1:3] == [SOC_FAMILY, "/sys/module/nvgpu/*"]
    assert any(asked.startswith("runtime") for asked in host.asked)
