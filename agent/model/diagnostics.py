"""What the doctor asks beyond a look: journals, versions, sockets, CUDA. The daemon's cycle asks
none of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from .mark import Mark
from .reading import NOT_ASKED, Reading


@dataclass(frozen=True, slots=True)
class JournalLine:
    """One line of the journal."""

    at: float
    "boottime, seconds"
    source: str
    "the unit that wrote it, kernel, or systemd for PID 1"
    text: str


class JournalEvent(str, Enum):
    """What a journal line is about."""

    RELOAD = "reload"
    "systemd loads its units anew, or executes itself anew"
    OUT_OF = "out-of"
    "the kubelet turned a pod away: fewer GPUs than it asked for"
    UNEXPECTED = "unexpected"
    "the kubelet turned a pod away: its GPUs could not be allocated"
    REGISTERED = "registered"
    "a device plugin came to register with the kubelet"
    LIST_ENDED = "list-ended"
    "the kubelet lost a device plugin"
    CHECKPOINT = "checkpoint"
    "the kubelet could not read its checkpoint"
    NO_HANDLER = "no-handler"
    "a sandbox asked for a runtime handler that the runtime does not have"
    NO_CDI_DEVICE = "no-cdi-device"
    "the runtime knows no CDI device of that name"
    NOT_STARTED = "not-started"
    "the kubelet could not have a device plugin's container started: image, configuration, runtime"
    NO_SANDBOX = "no-sandbox"
    "the kubelet could not have a device plugin's pod made: network, volumes, runtime"
    TURNED_OUT = "turned-out"
    "the kubelet evicted a device plugin's pod, or did not admit it"
    NOT_REACHED = "not-reached"
    "the kubelet refused a device plugin that came to register, or could not reach its socket"
    NOT_WRITTEN = "not-written"
    "the kubelet could not write its checkpoint"
    HOOK_FAILED = "hook-failed"
    "the NVIDIA runtime's hook refused a container"
    FABRIC_VERSION = "fabric-version"
    "the fabric manager refuses to start beside a driver of another version"
    GPU_UP = "gpu-up"
    "nvidia-persistenced has brought a GPU up"
    PLUGIN_FAILED = "plugin-failed"
    "a device plugin that is a unit of the host failed to initialise NVML, or saw no GPU"
    KERNEL = "kernel"
    "the kernel on GPUs: what its own ring may have lost since"


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """What one line tells."""

    at: float
    "boottime, seconds"
    says: JournalEvent
    source: str
    line: str
    who: str = ""
    "of RELOAD: who asked for it, as newer versions of systemd tell"


@dataclass(frozen=True, slots=True)
class Version:
    """What a program says of its version."""

    program: str
    said: Reading[str]


@dataclass(frozen=True, slots=True)
class CudaReport:
    """What CUDA's driver library said: the last call that was made, its code, and the devices it
    counts."""

    call: str
    code: int
    count: int = 0
    library: str = ""


@dataclass(frozen=True, slots=True)
class SocketSight:
    """A socket in the kubelet's folder, tried by connecting to it."""

    name: str
    pid: Reading[int]
    "of who listens; FAILED where nobody does"


@dataclass(frozen=True, slots=True)
class DiagnosticData:
    """Everything that was asked besides."""

    journal: Reading[tuple[JournalEntry, ...]] = NOT_ASKED
    versions: tuple[Version, ...] = ()
    kernel: Reading[str] = NOT_ASKED
    cgroup: str = ""
    "v2, hybrid or v1; empty where it could not be seen"
    cpu_policy: Reading[str] = NOT_ASKED
    "of the kubelet's cpu manager; static replaces the device rules of running containers"
    first_seen: Reading[Mark] = NOT_ASKED
    "when the agent first saw NVML show every GPU of this boot"
    sockets: tuple[SocketSight, ...] = ()
    cuda: Reading[CudaReport] = NOT_ASKED


NO_DIAGNOSTICS = DiagnosticData()
