"""A snapshot: all readings of one cycle, as frozen parts. Identity of a GPU is UUID + PCI bus id,
never an index."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from .access import AccessState, Allocation, Process
from .cdi import Toolkit
from .gpu import NOTHING_SAID, GpuState
from .kernel import KernelEntry
from .mark import Mark
from .reading import NOT_ASKED, Reading
from .runtime import LedgerEntry, PluginSight, Runtime, SocketOwner


@dataclass(frozen=True, slots=True)
class Clock:
    """One instant on three clocks, in seconds. Boottime is ours; realtime only compares with
    others' stamps."""

    boottime: float
    monotonic: float
    realtime: float


@dataclass(frozen=True, slots=True)
class Entry:
    """One name in a folder, as lstat(2) sees it."""

    name: str
    kind: str
    "char, block, dir, file, link, socket, fifo"
    major: int = 0
    minor: int = 0
    mode: int = 0
    mtime: float = 0.0
    "realtime, seconds"
    target: str = ""
    "of a link, as written"


@dataclass(frozen=True, slots=True)
class PciFunction:
    """An NVIDIA function on the PCI bus."""

    bus_id: str
    "as sysfs writes it: 0000:07:00.0"
    class_code: int
    "24 bits: 0x030200 is a 3D controller"
    driver: str
    'the bound driver, "" where none is'
    driver_override: str = ""

    @property
    def is_gpu(self) -> bool:
        # 0x0300 VGA, 0x0302 3D controller; 0x0403 is the card's sound, 0x0680 an NVSwitch.
        return self.class_code >> 8 in (0x0300, 0x0302)

    @property
    def is_switch(self) -> bool:
        """An NVSwitch of the third generation or older; later ones are on no PCI bus."""
        return self.class_code >> 8 == 0x0680


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A character device node of NVIDIA's under /dev."""

    path: str
    major: int
    minor: int
    made_at: float = field(default=0.0, compare=False)
    """realtime, seconds, of its inode; 0.0 where nobody asked. The same device node made again is
    no other one"""
    mode: int = field(default=0, compare=False)
    "permission bits; 0 where nobody asked"


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as NVML enumerates it."""

    uuid: str
    bus_id: str
    "normalised to sysfs's form"
    minor: int
    "N of /dev/nvidiaN; -1 where NVML does not say"
    name: str = ""
    state: GpuState = NOTHING_SAID


@dataclass(frozen=True, slots=True)
class NvmlError:
    """An error NVML returned."""

    code: int
    call: str
    "the NVML function: nvmlInit, nvmlDeviceGetHandleByIndex, …"
    index: int = -1
    "NVML's index of the GPU it was asked about, -1 where the error is not about one"
    bus_id: str = ""


@dataclass(frozen=True, slots=True)
class Remains:
    """A probe process that outlived its deadline and SIGKILL."""

    pid: int
    state: str
    "of /proc/PID/stat: D is uninterruptible sleep"
    wchan: str
    since: float
    "boottime, seconds, when the probe was started"


class ProbeEnd(str, Enum):
    """How a probe ended."""

    ANSWERED = "answered"
    "NVML was initialised and asked"
    ERROR = "error"
    "NVML, or loading it, failed as a whole"
    HUNG = "hung"
    BROKEN = "broken"
    "the probe itself failed: junk, crash, could not be started"


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """What one fresh probe process said."""

    number: int
    "counts probes of this agent; two looks that carry the same number saw the same probe"
    started_at: float
    ended_at: float
    end: ProbeEnd
    gpus: tuple[Gpu, ...] = ()
    errors: tuple[NvmlError, ...] = ()
    excluded: tuple[str, ...] = ()
    "bus ids the driver itself was told to leave out"
    driver_version: str = ""
    library_version: str = ""
    library: str = ""
    "path the library was loaded from"
    detail: str = ""
    "a sentence, for HUNG and BROKEN"


@dataclass(frozen=True, slots=True)
class ProbeState:
    """The probes of this agent: the last report, and what is under way."""

    last: ProbeReport | None = None
    running_since: float | None = None
    remains: Remains | None = None


@dataclass(frozen=True, slots=True)
class Unit:
    """A systemd unit."""

    name: str
    load: str
    "loaded, not-found, masked, …"
    active: str
    "active, activating, inactive, failed, …"
    sub: str
    invocation_id: str
    active_since: float | None
    "boottime, seconds; None where it has not been active"
    file_state: str = ""

    @property
    def is_active(self) -> bool:
        return self.active in ("active", "reloading")


@dataclass(frozen=True, slots=True)
class Manager:
    """The system manager itself."""

    version: str
    last_reload_at: float | None
    "boottime, seconds: the last time units were loaded (boot, daemon-reload, daemon-reexec)"


@dataclass(frozen=True, slots=True)
class Devices:
    """What the kubelet lists as allocatable for one resource (pod-resources,
    GetAllocatableResources)."""

    resource: str
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NodeObject:
    """What the API server shows of this node, as gpu-gate-node.service read it (its report)."""

    seen_at: float
    "boottime, seconds, of the API server's last sign"
    trouble: str
    "why it cannot be read or written at present"
    name: str = ""
    "empty where the API server shows no such Node"
    boot_id: str = ""
    kubelet_heartbeat_at: float = 0.0
    "realtime, whole seconds, of the Ready condition"
    capacity: dict[str, str] = field(default_factory=dict)
    allocatable: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Hardware:
    """Links 1 to 5: the GPUs, their driver and device nodes, and what the last probe reports."""

    pci: Reading[tuple[PciFunction, ...]]
    soc: Reading[str] = NOT_ASKED
    """family of the system on chip, where PCI shows no GPU of NVIDIA's: Tegra"""
    nvgpu: Reading[tuple[Entry, ...]] = NOT_ASKED
    """/sys/module/nvgpu of a Tegra: its driver is loaded, or built in"""
    is_container: bool = False
    """this node is itself a container (kind, nvkind)"""
    driver_version: Reading[str] = NOT_ASKED
    """of the loaded module: /proc/driver/nvidia/version"""
    module_state: Reading[str] = NOT_ASKED
    """/sys/module/nvidia/initstate: coming, live, going"""
    module_installed: Reading[str] = NOT_ASKED
    """path of a module file for the running kernel; MISSING where there is none"""
    driver_building: Reading[str] = NOT_ASKED
    """what dkms is building now; MISSING where nothing is"""
    proc_gpus: Reading[tuple[str, ...]] = NOT_ASKED
    majors: Reading[dict[str, int]] = NOT_ASKED
    """character majors by name, of /proc/devices"""
    nodes: Reading[tuple[DeviceNode, ...]] = NOT_ASKED
    char_links: Reading[dict[str, str]] = NOT_ASKED
    """The key "195:0" to the link's target."""
    kernel: Reading[tuple[KernelEntry, ...]] = NOT_ASKED
    """the kernel log's entries about GPUs of this boot, oldest first"""
    probe: Reading[ProbeState] = NOT_ASKED
    mig_instances: Reading[tuple[str, ...]] = NOT_ASKED
    """gpu0/gi1/ci0: what the driver itself shows of GPUs that can be partitioned, without NVML"""


@dataclass(frozen=True, slots=True)
class Boot:
    """systemd's view of this boot, and what earlier cycles and boots wrote down."""

    boot_id: str = ""
    manager: Reading[Manager] = NOT_ASKED
    units: Reading[tuple[Unit, ...]] = NOT_ASKED
    released: Reading[Mark] = NOT_ASKED
    paused: Reading[Mark] = NOT_ASKED
    waiting: Reading[Mark] = NOT_ASKED
    """the wait unit's first start of this boot: deadlines count from here"""
    launched: Reading[Mark] = NOT_ASKED
    """the plugin was launched in this boot (Launch=): it is launched once"""
    milestones: dict[str, Reading[Mark]] = field(default_factory=dict)
    """marks of what came true for the first time in this boot, by name; read by no rule"""
    run_files: Reading[tuple[Entry, ...]] = NOT_ASKED
    """/run/gpu-gate: a mark's own instant beside its file's time tells whether the clock was set
    since"""
    learned: Reading[tuple[str, ...]] = NOT_ASKED
    """bus ids that earlier boots of this very machine saw stable"""


@dataclass(frozen=True, slots=True)
class Kubelet:
    """Links 7, 9, 10 and 11: the kubelet's folders and lists, and the Node."""

    control_plane: bool = False
    """static pods of a control plane are on this node"""
    plugin_sockets: Reading[tuple[Entry, ...]] = NOT_ASKED
    allocatable: Reading[tuple[Devices, ...]] = NOT_ASKED
    checkpoint: Reading[dict[str, int]] = NOT_ASKED
    """devices by resource in kubelet_internal_checkpoint: a hint that outlives every truth"""
    manifest_dir: str = ""
    """where Launch=manifest places its file; empty where no such folder is, or none is wanted"""
    node_object: Reading[NodeObject] = NOT_ASKED
    """MISSING where gpu-gate-node.service does not run"""


@dataclass(frozen=True, slots=True)
class Plugin:
    """Links 6 and 8: the container runtime, and the device plugin in it."""

    runtime_socket: str = ""
    """the CRI endpoint that was asked"""
    runtime: Reading[Runtime] = NOT_ASKED
    plugins: tuple[PluginSight, ...] = ()
    """containers that look like the device plugin of this node, newest attempt of each"""
    not_plugins: tuple[str, ...] = ()
    """names of those that look like it and do not reach the kubelet's folder"""
    socket_owners: tuple[SocketOwner, ...] = ()
    """who listens on the plugin's sockets; asked only where the kubelet lists too little"""
    dra_driver: Reading[str] = NOT_ASKED
    """name of a running container of NVIDIA's DRA driver whose socket is there; asked where no
    plugin was found"""
    ledger: Reading[tuple[LedgerEntry, ...]] = NOT_ASKED


@dataclass(frozen=True, slots=True)
class Workloads:
    """Link 12: running containers, and what they may open. Asked while the driver is loaded."""

    allocations: Reading[tuple[Allocation, ...]] = NOT_ASKED
    processes: Reading[tuple[Process, ...]] = NOT_ASKED
    access: Reading[AccessState] = NOT_ASKED
    allow_stopped: Reading[Mark] = NOT_ASKED
    """adding to a device list took something away, and is done no more in this boot"""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All readings of one cycle, a part for each subject."""

    clock: Clock
    hardware: Hardware
    boot: Boot = Boot()
    kubelet: Kubelet = Kubelet()
    plugin: Plugin = Plugin()
    workloads: Workloads = Workloads()
    toolkit: Toolkit | None = None
    """None where no driver is loaded"""
    trouble: tuple[str, ...] = ()
    """event sources that are lost, each a sentence: changes are detected later, by polling"""
