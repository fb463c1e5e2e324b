"""What the container runtime (CRI) reports, and what is known about a device plugin's container."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from .access import Device
from .reading import Reading


class ContainerState(str, Enum):
    CREATED = "created"
    RUNNING = "running"
    EXITED = "exited"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A pod sandbox."""

    id: str
    name: str
    namespace: str
    uid: str
    attempt: int
    is_ready: bool
    created_at: float
    """realtime, seconds"""
    labels: dict[str, str]
    """the pod's own labels are here, not on its containers"""
    annotations: dict[str, str]


@dataclass(frozen=True, slots=True)
class Container:
    """A container in any state."""

    id: str
    sandbox_id: str
    name: str
    attempt: int
    image: str
    state: ContainerState
    created_at: float
    """realtime, seconds"""
    labels: dict[str, str]


@dataclass(frozen=True, slots=True)
class Runtime:
    """All sandboxes and containers of one CRI endpoint."""

    sandboxes: tuple[Sandbox, ...]
    containers: tuple[Container, ...]


@dataclass(frozen=True, slots=True)
class ContainerDetail:
    """One container's status, with the runtime's verbose info."""

    id: str
    state: ContainerState
    started_at: float
    """realtime, seconds; 0 if it never started"""
    finished_at: float
    exit_code: int
    reason: str
    image: str
    """as in the pod's manifest, with its tag, which a list of containers lacks"""
    log_path: str
    pid: int
    """0 where the runtime does not report it"""
    args: tuple[str, ...]
    env: dict[str, str]
    """only NVIDIA_* and the device plugin's own settings: others may be secrets"""
    device_rules: tuple[tuple[Device, str], ...] = ()
    """the allow rules of its OCI spec: -1 is every major or minor; rights of rwm"""
    mounts: tuple[str, ...] = ()
    """host paths that are mounted in it; empty means unknown, because the kubelet mounts one into
    every container"""


class PluginLogState(str, Enum):
    """What a device plugin does now, by the last event in its log. Both log formats are in
    docs/plugins.md."""

    NOTHING = "nothing"
    ASKING = "asking"
    """called NVML, which has not returned"""
    INIT_FAILED = "init-failed"
    NO_DEVICES = "no-devices"
    SERVING = "serving"
    REGISTERED = "registered"
    NOT_REGISTERED = "not-registered"
    """could not register with the kubelet"""
    WAITING = "waiting"
    """waits for another program, and retries by itself"""
    UNHEALTHY = "unhealthy"
    """marked a GPU as unhealthy"""
    UNWATCHED = "unwatched"
    """the same, because it could not watch the GPU's health; it saw no Xid"""
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class PluginLog:
    """What the end of a device plugin's log shows. It is a hint: a log may be wrong."""

    says: PluginLogState
    line: str
    """the line that shows it"""
    error: str = ""
    """NVML's message where it could not be initialised"""
    version: str = ""
    """what the plugin prints at its start (0.15 and later)"""
    last: str = field(default="", compare=False)
    """the end of its last error, else of its last line"""
    at: float = field(default=0.0, compare=False)
    """realtime, seconds, when the runtime received that line; 0.0 where it is unknown"""


@dataclass(frozen=True, slots=True)
class Access:
    """Whether the processes of a container may open a device node now: by access(2), never by
    open(2)."""

    path: str
    allowed: bool
    how: str
    """the method by which this was found"""


@dataclass(frozen=True, slots=True)
class PluginSight:
    """A device plugin's container in this snapshot."""

    container: Container
    sandbox: Sandbox | None
    detail: Reading[ContainerDetail]
    log: Reading[PluginLog]
    access: Reading[Access]
    restart_policy: str = ""
    """of its pod; empty where this node does not show it"""
    halted: str = ""
    """why its process does not continue by itself; empty where it does, or where that was not
    read"""
    in_kernel: bool = False
    """`halted` is uninterruptible sleep, which no signal ends"""
    unread: str = ""
    """why it is unknown whether it is halted; empty where that was read"""


@dataclass(frozen=True, slots=True)
class SocketOwner:
    """The process that listens on a device plugin's socket."""

    socket: str
    """its name in the kubelet's folder"""
    pid: int
    container_id: str
    """empty where its cgroup has none"""
    unit: str
    """the innermost service of its cgroup"""


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One disruptive action that was begun, or its outcome. gpu-gate remembers it across boots."""

    at: float
    """realtime, seconds"""
    boot_id: str
    number: int
    """of the action; its outcome has the same number"""
    what: str
    """restart-unit, hup, rebuild; or outcome"""
    target: str
    """the container id, or the unit and its InvocationID: another one later shows that it was
    done"""
    cause: str
    evidence: str
    """the bundle's folder"""
    outcome: str = ""
    boottime: float | None = None
    """seconds, at the same time: setting the clock does not shift it"""
