"""What the container runtime (CRI) says, and what a device plugin's container shows of itself."""

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
    "realtime, seconds"
    labels: dict[str, str]
    "the pod's own labels are here, not on its containers"
    annotations: dict[str, str]


@dataclass(frozen=True, slots=True)
class Container:
    """A container, in whatever state."""

    id: str
    sandbox_id: str
    name: str
    attempt: int
    image: str
    state: ContainerState
    created_at: float
    "realtime, seconds"
    labels: dict[str, str]


@dataclass(frozen=True, slots=True)
class Runtime:
    """All sandboxes and containers of one CRI endpoint."""

    sandboxes: tuple[Sandbox, ...]
    containers: tuple[Container, ...]


@dataclass(frozen=True, slots=True)
class ContainerDetail:
    """One container's status, and what the runtime's verbose info adds."""

    id: str
    state: ContainerState
    started_at: float
    "realtime, seconds; 0 where it never started"
    finished_at: float
    exit_code: int
    reason: str
    image: str
    "as the pod's author wrote it: with its tag, which a list does not show"
    log_path: str
    pid: int
    "0 where the runtime does not say"
    args: tuple[str, ...]
    env: dict[str, str]
    "only NVIDIA_* and the device plugin's own settings: others may be secrets"
    device_rules: tuple[tuple[Device, str], ...] = ()
    "of its OCI spec, those that allow: -1 is every major or minor; rights of rwm"
    mounts: tuple[str, ...] = ()
    """paths of the host that are mounted in it; empty: not told, for the kubelet mounts one in
    every container"""


class PluginLogState(str, Enum):
    """What the last mark in a device plugin's log says it does now. Both log forms,
    docs/plugins.md."""

    NOTHING = "nothing"
    ASKING = "asking"
    "went to NVML and has not come back"
    INIT_FAILED = "init-failed"
    NO_DEVICES = "no-devices"
    SERVING = "serving"
    REGISTERED = "registered"
    NOT_REGISTERED = "not-registered"
    "could not register with the kubelet"
    WAITING = "waiting"
    "waits for another program, and tries again by itself"
    UNHEALTHY = "unhealthy"
    "took a GPU out of what it offers"
    UNWATCHED = "unwatched"
    "the same, for its health could not be watched: it saw no Xid"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class PluginLog:
    """What a device plugin's log tail says. Hints: a log may lie."""

    says: PluginLogState
    line: str
    "the line that says so"
    error: str = ""
    "NVML's words where it could not be initialised"
    version: str = ""
    "as the plugin itself prints it at its start (0.15 and later)"
    last: str = field(default="", compare=False)
    "its last words: the end of its last error, else of its last line"
    at: float = field(default=0.0, compare=False)
    "realtime, seconds, when the runtime got that line; 0.0 where it says nothing or not when"


@dataclass(frozen=True, slots=True)
class Access:
    """May the processes of a container open a device node now? By access(2), never by open(2)."""

    path: str
    allowed: bool
    how: str
    "by which way it was found out"


@dataclass(frozen=True, slots=True)
class PluginSight:
    """A device plugin's container as this look saw it."""

    container: Container
    sandbox: Sandbox | None
    detail: Reading[ContainerDetail]
    log: Reading[PluginLog]
    access: Reading[Access]
    restart_policy: str = ""
    'of its pod, as far as this node shows it: "" where it does not'
    halted: str = ""
    'why its process does not go on by itself; "" where it does, or nobody looked'
    in_kernel: bool = False
    "that is uninterruptible sleep: no signal ends it"
    unread: str = ""
    'why nobody knows whether it is halted; "" where that was read'


@dataclass(frozen=True, slots=True)
class SocketOwner:
    """The process that listens on a device plugin's socket."""

    socket: str
    "its name in the kubelet's folder"
    pid: int
    container_id: str
    '"" where its cgroup names none'
    unit: str
    "the innermost service of its cgroup"


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One disruptive action that was begun, or its outcome. The one thing gpu-gate remembers across
    boots."""

    at: float
    "realtime, seconds"
    boot_id: str
    number: int
    "counts actions; an outcome carries its action's number"
    what: str
    "restart-unit, hup, rebuild; or outcome"
    target: str
    "container id, or unit and its invocation: another one later means that it was done"
    cause: str
    evidence: str
    "the bundle's folder"
    outcome: str = ""
    boottime: float | None = None
    "seconds, of the same moment: no clock that is set shifts it"
