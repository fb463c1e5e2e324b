"""Small scenes to start from: a healthy node with two GPUs, and what a test wants changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from agent.core.rules import diagnose
from agent.model.finding import Diagnosis, Finding
from agent.model.reading import Refusal, Seen, Why
from agent.model.scene import (
    Clock,
    DeviceNode,
    Devices,
    Gpu,
    Manager,
    NvmlError,
    PciFunction,
    ProbeEnd,
    ProbeReport,
    ProbeState,
    Scene,
    Unit,
)
from agent.model.settings import Settings

T = TypeVar("T")
NOW = 1000.0
BUSES = ("0000:07:00.0", "0000:0f:00.0")
UUIDS = tuple(f"GPU-{n:08x}-0000-4000-8000-000000000000" for n in range(2))
GPUS = tuple(Gpu(uuid, bus, n, "NVIDIA H100") for n, (uuid, bus) in enumerate(zip(UUIDS, BUSES, strict=True)))
MAJORS = {"nvidia": 195, "nvidia-modeset": 195, "nvidiactl": 195, "nvidia-uvm": 511}
NODES = (
    DeviceNode("/dev/nvidia0", 195, 0), DeviceNode("/dev/nvidia1", 195, 1), DeviceNode("/dev/nvidiactl", 195, 255),
    DeviceNode("/dev/nvidia-uvm", 511, 0), DeviceNode("/dev/nvidia-uvm-tools", 511, 1),
)
LINKS = {f"{n.major}:{n.minor}": "../" + n.path.removeprefix("/dev/") for n in NODES}
MISSING = Refusal(Why.MISSING, "No such file or directory")
DENIED = Refusal(Why.NOT_PERMITTED, "Permission denied")
TIMED_OUT = Refusal(Why.TIMED_OUT, "1.2 s")
FAILED = Refusal(Why.FAILED, "Input/output error")
DEFAULTS = Settings()


def seen(value: T, at: float = NOW) -> Seen[T]:
    return Seen(value, at)


def function(bus: str, driver: str = "nvidia", class_code: int = 0x030200, override: str = "") -> PciFunction:
    return PciFunction(bus, class_code, driver, override)


def unit(name: str, active: str = "active", load: str = "loaded", since: float | None = 10.0,
         file_state: str = "enabled") -> Unit:
    return Unit(name, load, active, "", "", since, file_state)


def report(number: int = 1, started_at: float = NOW - 2, **changes: Any) -> ProbeReport:
    return replace(ProbeReport(number, started_at, started_at + 1, ProbeEnd.ANSWERED, GPUS,
                               driver_version="550.54.15"), **changes)


def probed(**changes: Any) -> Seen[ProbeState]:
    return seen(ProbeState(report(**changes)))


def failing(code: int, call: str = "nvmlInit", index: int = -1, bus: str = "", **changes: Any) -> Seen[ProbeState]:
    """A probe that got one error: of NVML as a whole where no index is given."""
    end = ProbeEnd.ERROR if index < 0 else ProbeEnd.ANSWERED
    gpus = () if index < 0 else tuple(g for n, g in enumerate(GPUS) if n != index)
    return probed(**{"end": end, "gpus": gpus, "errors": (NvmlError(code, call, index, bus),), **changes})


def scene(**changes: Any) -> Scene:
    """A healthy node with two GPUs, both registered; with these parts changed."""
    healthy = Scene(
        clock=Clock(NOW, NOW - 5, 1.7e9),
        pci=seen(tuple(function(bus) for bus in BUSES)),
        driver_version=seen("550.54.15"),
        module_state=seen("live"),
        proc_gpus=seen(BUSES),
        majors=seen(MAJORS),
        nodes=seen(NODES),
        char_links=seen(LINKS),
        probe=probed(),
        manager=seen(Manager("252", 20.0)),
        units=seen((unit("nvidia-persistenced.service"), unit("kubelet.service", since=50.0))),
        released=MISSING, paused=MISSING, waiting=MISSING, learned=MISSING,
        plugin_sockets=seen(()),
        allocatable=seen((Devices("nvidia.com/gpu", UUIDS),)),
    )
    return replace(healthy, **changes)


NO_DRIVER: dict[str, Any] = {
    "driver_version": MISSING, "module_state": MISSING, "module_installed": MISSING, "driver_building": MISSING,
    "proc_gpus": MISSING, "majors": seen({}), "nodes": seen(()), "probe": seen(ProbeState()),
}
"""What differs where no module is loaded."""


def diagnosed(settings: Settings = DEFAULTS, **changes: Any) -> Diagnosis:
    return diagnose(scene(**changes), settings)


def finding(diagnosis: Diagnosis, condition: str) -> Finding:
    found = [f for f in diagnosis.findings if f.condition == condition]
    assert len(found) == 1, f"{condition}: {found}"
    return found[0]
