"""What the doctor asks beyond a snapshot: journals, versions, sockets, CUDA. The daemon's cycle
asks none of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from .mark import Mark
from .reading import NOT_ASKED, Reading


@dataclass(frozen=True, slots=True)
class JournalLine:
    """One line of the journal."""

    at: float
    """boottime, seconds"""
    source: str
    """the unit that logged it, kernel, or systemd for PID 1"""
    text: str


class JournalEvent(str, Enum):
    """What a journal line is about."""

    RELOAD = "reload"
    """systemd loads its units again, or re-executes"""
    OUT_OF = "out-of"
    """the kubelet rejected a pod that requested more GPUs than are free"""
    UNEXPECTED = "unexpected"
    """the kubelet rejected a pod whose GPUs it could not allocate"""
    REGISTERED = "registered"
    """a device plugin registered with the kubelet"""
    LIST_ENDED = "list-ended"
    """the kubelet lost a device plugin"""
    CHECKPOINT = "checkpoint"
    """the kubelet could not read its checkpoint"""
    NO_HANDLER = "no-handler"
    """a sandbox requested a runtime handler that the runtime does not have"""
    NO_CDI_DEVICE = "no-cdi-device"
    """the runtime has no CDI device of that name"""
    NOT_STARTED = "not-started"
    """the kubelet could not start a device plugin's container: image, configuration, runtime"""
    NO_SANDBOX = "no-sandbox"
    """the kubelet could not create the sandbox of a device plugin's pod: network, volumes,
    runtime"""
    TURNED_OUT = "turned-out"
    """the kubelet evicted a device plugin's pod, or did not admit it"""
    NOT_REACHED = "not-reached"
    """the kubelet refused the registration of a device plugin, or could not reach its socket"""
    NOT_WRITTEN = "not-written"
    """the kubelet could not write its checkpoint"""
    HOOK_FAILED = "hook-failed"
    """the NVIDIA runtime's hook refused a container"""
    FABRIC_VERSION = "fabric-version"
    """the fabric manager refuses to start beside a driver of another version"""
    GPU_UP = "gpu-up"
    """nvidia-persistenced initialised a GPU"""
    PLUGIN_FAILED = "plugin-failed"
    """a device plugin that is a unit of the host could not initialise NVML, or found no GPU"""
    KERNEL = "kernel"
    """a kernel line about GPUs, which the kernel's own ring may have lost since"""


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """What one line reports."""

    at: float
    """boottime, seconds"""
    says: JournalEvent
    source: str
    line: str
    who: str = ""
    """of RELOAD: who requested it, which newer versions of systemd log"""


@dataclass(frozen=True, slots=True)
class Version:
    """The version that a program reports."""

    program: str
    said: Reading[str]


@dataclass(frozen=True, slots=True)
class CudaReport:
    """The result of CUDA's driver library: the last call, its return code, and the number of
    devices."""

    call: str
    code: int
    count: int = 0
    library: str = ""


@dataclass(frozen=True, slots=True)
class SocketSight:
    """A socket in the kubelet's folder, tried by connecting to it."""

    name: str
    pid: Reading[int]
    """the process that listens; FAILED where none does"""


@dataclass(frozen=True, slots=True)
class DiagnosticData:
    """The answers to all of these questions."""

    journal: Reading[tuple[JournalEntry, ...]] = NOT_ASKED
    versions: tuple[Version, ...] = ()
    kernel: Reading[str] = NOT_ASKED
    cgroup: str = ""
    """v2, hybrid or v1; empty where it is unknown"""
    cpu_policy: Reading[str] = NOT_ASKED
    """of the kubelet's cpu manager; static replaces the device rules of running containers"""
    first_seen: Reading[Mark] = NOT_ASKED
    """when NVML first showed every GPU in this boot"""
    sockets: tuple[SocketSight, ...] = ()
    cuda: Reading[CudaReport] = NOT_ASKED


NO_DIAGNOSTICS = DiagnosticData()
