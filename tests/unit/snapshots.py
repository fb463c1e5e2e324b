"""Small scenes to start from: a healthy node with two GPUs, and what a test wants changed."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, TypeVar

from agent.core.diagnose import diagnose
from agent.core.plugin import log as plugin_log
from agent.model.finding import Diagnosis, Finding
from agent.model.reading import Refusal, Seen, Why
from agent.model.runtime import (
    Access,
    Container,
    ContainerDetail,
    ContainerState,
    LedgerEntry,
    PluginSight,
    Runtime,
    Sandbox,
)
from agent.model.settings import Settings
from agent.model.snapshot import (
    Boot,
    Clock,
    DeviceNode,
    Devices,
    Entry,
    Gpu,
    Hardware,
    Kubelet,
    Manager,
    NvmlError,
    PciFunction,
    Plugin,
    ProbeEnd,
    ProbeReport,
    ProbeState,
    Snapshot,
    Unit,
    Workloads,
)

T = TypeVar("T")
NOW = 1000.0
OFFSET = 1.7e9 - NOW
"""Realtime less boottime."""
BOOT_ID = "6f1c0000-0000-4000-8000-000000000000"
BUSES = ("0000:07:00.0", "0000:0f:00.0")
UUIDS = tuple(f"GPU-{n:08x}-0000-4000-8000-000000000000" for n in range(2))
GPUS = tuple(
    Gpu(uuid, bus, n, "NVIDIA H100") for n, (uuid, bus) in enumerate(zip(UUIDS, BUSES, strict=True))
)
MAJORS = {"nvidia": 195, "nvidia-modeset": 195, "nvidiactl": 195, "nvidia-uvm": 511}
NODES = (
    DeviceNode("/dev/nvidia0", 195, 0),
    DeviceNode("/dev/nvidia1", 195, 1),
    DeviceNode("/dev/nvidiactl", 195, 255),
    DeviceNode("/dev/nvidia-uvm", 511, 0),
    DeviceNode("/dev/nvidia-uvm-tools", 511, 1),
)
LINKS = {f"{n.major}:{n.minor}": "../" + n.path.removeprefix("/dev/") for n in NODES}
MISSING = Refusal(Why.MISSING, "No such file or directory")
DENIED = Refusal(Why.NOT_PERMITTED, "Permission denied")
TIMED_OUT = Refusal(Why.TIMED_OUT, "1.2 s")
FAILED = Refusal(Why.FAILED, "Input/output error")
DEFAULTS = Settings()


def seen(value: T, at: float = NOW) -> Seen[T]:
    return Seen(value, at)


def function(
    bus: str, driver: str = "nvidia", class_code: int = 0x030200, override: str = ""
) -> PciFunction:
    return PciFunction(bus, class_code, driver, override)


def unit(
    name: str,
    active: str = "active",
    load: str = "loaded",
    since: float | None = 10.0,
    file_state: str = "enabled",
    sub: str = "",
) -> Unit:
    return Unit(name, load, active, sub, "", since, file_state)


def report(number: int = 1, started_at: float = NOW - 2, **changes: Any) -> ProbeReport:
    return replace(
        ProbeReport(
            number, started_at, started_at + 1, ProbeEnd.ANSWERED, GPUS, driver_version="550.54.15"
        ),
        **changes,
    )


def probed(**changes: Any) -> Seen[ProbeState]:
    return seen(ProbeState(report(**changes)))


def failing(
    code: int, call: str = "nvmlInit", index: int = -1, bus: str = "", **changes: Any
) -> Seen[ProbeState]:
    """A probe that got one error: of NVML as a whole where no index is given."""
    end = ProbeEnd.ERROR if index < 0 else ProbeEnd.ANSWERED
    gpus = () if index < 0 else tuple(g for n, g in enumerate(GPUS) if n != index)
    return probed(
        **{"end": end, "gpus": gpus, "errors": (NvmlError(code, call, index, bus),), **changes}
    )


POD_UID = "9b2e"
WELL_LOG = (
    b"2026/11/29 12:46:15 Loading NVML\n2026/11/29 12:46:15 Registered device plugin for "
    b"'nvidia.com/gpu' "
    b"with Kubelet\n"
)
FAILED_LOG = (
    b"2026/11/29 12:46:07 Loading NVML\n2026/11/29 12:46:07 Failed to initialize NVML: nvml: "
    b"Unknown "
    b"Error.\n"
)


def sandbox(sandbox_id: str = "pod-1", **changes: Any) -> Sandbox:
    return replace(
        Sandbox(
            sandbox_id,
            "nvidia-device-plugin-node",
            "kube-system",
            POD_UID,
            0,
            True,
            OFFSET + 60,
            {"name": "nvidia-device-plugin-ds"},
            {},
        ),
        **changes,
    )


def container(container_id: str = "c1", sandbox_id: str = "pod-1", **changes: Any) -> Container:
    """The plugin's container, running since 100 s after the boot."""
    return replace(
        Container(
            container_id,
            sandbox_id,
            "nvidia-device-plugin-ctr",
            0,
            "nvcr.io/nvidia/k8s-device-plugin:v0.9.0",
            ContainerState.RUNNING,
            OFFSET + 100,
            {"io.kubernetes.pod.uid": POD_UID},
        ),
        **changes,
    )


def detail(of: Container, **changes: Any) -> ContainerDetail:
    running = ContainerDetail(
        of.id, of.state, of.created_at, 0.0, 0, "", of.image, "/var/log/p.log", 4711, (), {}
    )
    return replace(running, **changes)


def sight(
    log: bytes | Refusal = WELL_LOG,
    access: bool | None = None,
    of: Container | None = None,
    pod: Sandbox | None = None,
    **details: Any,
) -> PluginSight:
    """A plugin as a look sees it; `access`: may it open /dev/nvidiactl, None where nobody asked."""
    of = of or container()
    said = log if isinstance(log, Refusal) else seen(plugin_log.read(log))
    may = (
        Refusal(Why.NOT_ASKED)
        if access is None
        else seen(Access("/dev/nvidiactl", access, "cgroup-bpf"))
    )
    return PluginSight(of, pod or sandbox(), seen(detail(of, **details)), said, may)


def entry(number: int = 1, at: float = OFFSET + NOW - 100, **changes: Any) -> LedgerEntry:
    """A rebuild in the ledger, of this boot."""
    return replace(
        LedgerEntry(at, BOOT_ID, number, "rebuild", "c0", "some cause", f"/evidence/{number}"),
        **changes,
    )


PARTS = {
    inner.name: part
    for part, cls in (
        ("hardware", Hardware),
        ("boot", Boot),
        ("kubelet", Kubelet),
        ("plugin", Plugin),
        ("workloads", Workloads),
    )
    for inner in fields(cls)
}
"""Tests name a reading without the part of the snapshot that it belongs to."""


def changed(of: Snapshot, **changes: Any) -> Snapshot:
    """The snapshot with these readings changed: changed(snapshot, units=…, clock=…)."""
    whole = {name: value for name, value in changes.items() if name not in PARTS}
    inner: dict[str, dict[str, Any]] = {}
    for name in changes.keys() - whole.keys():
        inner.setdefault(PARTS[name], {})[name] = changes[name]
    parts = {part: replace(getattr(of, part), **values) for part, values in inner.items()}
    return replace(of, **whole, **parts)


def snapshot(**changes: Any) -> Snapshot:
    """A healthy node with two GPUs, both registered; with these parts changed."""
    healthy = changed(
        Snapshot(Clock(NOW, NOW - 5, 1.7e9), Hardware(seen(tuple(function(bus) for bus in BUSES)))),
        driver_version=seen("550.54.15"),
        module_state=seen("live"),
        proc_gpus=seen(BUSES),
        majors=seen(MAJORS),
        nodes=seen(NODES),
        char_links=seen(LINKS),
        kernel=seen(()),
        probe=probed(),
        manager=seen(Manager("252", 20.0)),
        units=seen((unit("nvidia-persistenced.service"), unit("kubelet.service", since=50.0))),
        released=MISSING,
        paused=MISSING,
        waiting=MISSING,
        learned=MISSING,
        plugin_sockets=seen((Entry("kubelet.sock", "socket"),)),
        allocatable=seen((Devices("nvidia.com/gpu", UUIDS),)),
        boot_id=BOOT_ID,
        runtime_socket="/run/containerd/containerd.sock",
        runtime=seen(Runtime((sandbox(),), (container(),))),
        plugins=(sight(),),
        checkpoint=seen({"nvidia.com/gpu": len(UUIDS)}),
        ledger=seen(()),
    )
    return changed(healthy, **changes)


NO_DRIVER: dict[str, Any] = {
    "driver_version": MISSING,
    "module_state": MISSING,
    "module_installed": MISSING,
    "driver_building": MISSING,
    "proc_gpus": MISSING,
    "majors": seen({}),
    "nodes": seen(()),
    "probe": seen(ProbeState()),
}
"""What differs where no module is loaded."""


def diagnosed(settings: Settings = DEFAULTS, **changes: Any) -> Diagnosis:
    return diagnose(snapshot(**changes), settings)


def finding(diagnosis: Diagnosis, condition: str) -> Finding:
    found = [f for f in diagnosis.findings if f.condition == condition]
    assert len(found) == 1, f"{condition}: {found}"
    return found[0]
