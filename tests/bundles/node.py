"""The node around a captured state: eight healthy GPUs, as a Host finds them; the capture overrides
it."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from agent.model.access import AccessState, Allocation, Process
from agent.model.kernel import KernelLine
from agent.model.reading import Reading, Refusal, Seen, Why
from agent.model.runtime import Access, ContainerDetail, Runtime
from agent.model.snapshot import (
    Clock,
    Devices,
    Entry,
    Gpu,
    Manager,
    NvmlError,
    ProbeEnd,
    ProbeReport,
    ProbeState,
    Unit,
)

BOOTTIME = 10_000.0
UUIDS = tuple(f"GPU-be4c{n:04x}-fa4e-4e11-9000-{n:012x}" for n in range(8))
"""As the stand-in library of the captures numbers its GPUs."""
BUSES = (
    "0000:07:00.0",
    "0000:0f:00.0",
    "0000:47:00.0",
    "0000:4e:00.0",
    "0000:87:00.0",
    "0000:90:00.0",
    "0000:b7:00.0",
    "0000:bd:00.0",
)
DRIVER = "550.54.15"
UNKNOWN_ERROR = 999
VERSION_FILE = (
    f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {DRIVER}  Tue Mar  5 22:23:56 UTC 2024\n"
)
DEVICES_FILE = (
    "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n511 "
    "nvidia-uvm\n\nBlock devices:\n  8 sd\n"
)
NODES = {
    **{f"nvidia{n}": (195, n) for n in range(8)},
    "nvidiactl": (195, 255),
    "nvidia-uvm": (511, 0),
    "nvidia-uvm-tools": (511, 1),
}


def missing(path: str) -> Refusal:
    return Refusal(Why.MISSING, f"No such file or directory: {path}")


def not_recorded(what: str) -> Refusal:
    return Refusal(Why.NOT_RECORDED, f"{what} was not captured")


class CapturedNode:
    """A Host. `files` and `folders` are what is there; what is under `unknown` and not in them is
    not recorded."""

    def __init__(self, realtime: float) -> None:
        self.now = Clock(BOOTTIME, BOOTTIME - 5, realtime)
        self.files: dict[str, bytes] = {}
        self.folders: dict[str, tuple[Entry, ...]] = {}
        self.unknown = ["/var/lib/kubelet", "/var/log"]
        self.active: dict[str, Unit] = {}
        self.probed: Reading[ProbeState] = not_recorded("NVML")
        self.listed: Reading[tuple[Devices, ...]] = not_recorded("pod-resources")
        self.runtimes: dict[str, Reading[Runtime]] = {}
        self.details: dict[str, ContainerDetail] = {}
        self.may_open: bool | None = None
        "the plugin's own access to its devices; None: not checked"
        _furnish(self)

    def boottime_of(self, realtime: float) -> float:
        return realtime - self.now.realtime + self.now.boottime

    def unit(
        self, name: str, active: bool = True, since: float = 10.0, invocation: str = "0" * 32
    ) -> None:
        state, sub = ("active", "running") if active else ("inactive", "dead")
        self.active[name] = Unit(
            name,
            "loaded",
            state,
            sub,
            invocation if active else "",
            since if active else None,
            "enabled",
        )

    def nvml(self, code: int = 0) -> None:
        """NVML shows all eight, or its init fails."""
        gpus = (
            ()
            if code
            else tuple(
                Gpu(u, b, n, "NVIDIA H100")
                for n, (u, b) in enumerate(zip(UUIDS, BUSES, strict=True))
            )
        )
        end = ProbeEnd.ERROR if code else ProbeEnd.ANSWERED
        errors = (NvmlError(code, "nvmlInit"),) if code else ()
        self.probed = Seen(
            ProbeState(
                ProbeReport(
                    7,
                    BOOTTIME - 1,
                    BOOTTIME - 0.5,
                    end,
                    gpus,
                    errors,
                    driver_version="" if code else DRIVER,
                )
            ),
            BOOTTIME,
        )

    async def clock(self) -> Clock:
        return self.now

    async def machine(self) -> str:
        return "captured"

    async def file(self, path: str, limit: int = 65536) -> Reading[bytes]:
        if path in self.files:
            return Seen(self.files[path][:limit], BOOTTIME)
        return self._none(path)

    async def tail(self, path: str, limit: int = 65536) -> Reading[bytes]:
        whole = await self.file(path, 1 << 30)
        return Seen(whole.value[-limit:], whole.at) if isinstance(whole, Seen) else whole

    async def folder(self, path: str, match: str = "*") -> Reading[tuple[Entry, ...]]:
        if path not in self.folders:
            return self._none(path)
        return Seen(tuple(e for e in self.folders[path] if fnmatchcase(e.name, match)), BOOTTIME)

    async def document(self, path: str, limit: int = 1 << 20) -> Reading[bytes]:
        return self._none(path)

    async def absent(self, paths: Sequence[str]) -> Reading[tuple[str, ...]]:
        return Refusal(Why.NOT_RECORDED, "what is not there")

    def _none(self, path: str) -> Refusal:
        parent, _, _ = path.rpartition("/")
        if parent in self.folders or not any(path.startswith(f"{u}/") for u in self.unknown):
            return missing(path)
        return not_recorded(path)

    async def units(self, names: Sequence[str]) -> Reading[tuple[Unit, ...]]:
        absent = ("not-found", "inactive", "dead", "", None)
        return Seen(tuple(self.active.get(n) or Unit(n, *absent) for n in names), BOOTTIME)

    async def manager(self) -> Reading[Manager]:
        return Seen(Manager("252", 5.0), BOOTTIME)

    async def probe(self) -> Reading[ProbeState]:
        return self.probed

    async def allocatable(self, socket: str) -> Reading[tuple[Devices, ...]]:
        return self.listed

    async def runtime(self, socket: str) -> Reading[Runtime]:
        return self.runtimes.get(socket) or missing(socket)

    async def container(self, socket: str, container_id: str) -> Reading[ContainerDetail]:
        found = self.details.get(container_id)
        return (
            Seen(found, BOOTTIME) if found else not_recorded(f"crictl inspect {container_id[:12]}")
        )

    async def access(self, pid: int, path: str) -> Reading[Access]:
        if self.may_open is None:
            return not_recorded(f"whether {pid} may open {path}")
        return Seen(Access(path, self.may_open, "as the test wants it"), BOOTTIME)

    async def listener(self, path: str) -> Reading[int]:
        return not_recorded(f"who listens on {path}")

    async def allocations(self, socket: str) -> Reading[tuple[Allocation, ...]]:
        return not_recorded("pod-resources List")

    async def processes(
        self, socket: str, container_ids: Sequence[str]
    ) -> Reading[tuple[Process, ...]]:
        return not_recorded("processes of containers")

    async def access_state(self) -> Reading[AccessState]:
        return not_recorded("device access of containers")

    async def kernel_log(self) -> Reading[tuple[KernelLine, ...]]:
        return not_recorded("kernel_log")

    async def trouble(self) -> tuple[str, ...]:
        return ()


def _furnish(node: CapturedNode) -> None:
    pci, proc = "/sys/bus/pci/devices", "/proc/driver/nvidia"
    node.folders[pci] = tuple(Entry(b, "link") for b in BUSES)
    node.folders[f"{proc}/gpus"] = tuple(Entry(b, "dir") for b in BUSES)
    for n, bus in enumerate(BUSES):
        node.files |= {
            f"{pci}/{bus}/vendor": b"0x10de\n",
            f"{pci}/{bus}/class": b"0x030200\n",
            f"{proc}/gpus/{bus}/information": f"Model: NVIDIA H100\nDevice Minor: \t {n}\n".encode(),
        }
        node.folders[f"{pci}/{bus}"] = (
            Entry("driver", "link", target="../../../bus/pci/drivers/nvidia"),
        )
    node.files |= {
        f"{proc}/version": VERSION_FILE.encode(),
        "/sys/module/nvidia/initstate": b"live\n",
        "/proc/devices": DEVICES_FILE.encode(),
        "/proc/sys/kernel/random/boot_id": b"6e3f0f2a-0000-4000-8000-000000000000\n",
    }
    node.folders["/dev"] = tuple(
        Entry(name, "char", *numbers, 0o666) for name, numbers in NODES.items()
    )
    node.folders["/dev/char"] = tuple(
        Entry(f"{a}:{b}", "link", target=f"../{n}") for n, (a, b) in NODES.items()
    )
    node.unit("nvidia-persistenced.service")
    node.unit("containerd.service")
