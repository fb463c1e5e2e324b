"""Who holds GPUs, may they open them now, and will they after the next daemon-reload?

Two kinds of words: what was read of the node (Process, Verdict, AccessState, ScopeDevices,
Allocation), and what core/access/containers.py concludes of it, one GpuContainer for each container
that holds GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from .reading import Reading


@dataclass(frozen=True, slots=True, order=True)
class Device:
    """A device number: what a device cgroup knows, whatever the node is called and wherever it
    lies."""

    kind: str
    "c or b"
    major: int
    minor: int

    @property
    def word(self) -> str:
        "As the access program takes it."
        return f"{self.kind}:{self.major}:{self.minor}"

    @property
    def path(self) -> str:
        "As systemd takes it; needs no node on the host (systemd 252 and 257)."
        return f"/dev/{'char' if self.kind == 'c' else 'block'}/{self.major}:{self.minor}"


class CurrentAccess(str, Enum):
    """Access as it is now."""

    ALLOWED = "allowed"
    DENIED = "denied"
    UNKNOWN = "unknown"
    "could not be seen, or is being asked"


class ReloadRisk(str, Enum):
    """Will the next daemon-reload take it away?"""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


class Entitlement(str, Enum):
    """Why a device node counts as given to a container. What only its own /dev shows is none: a
    tenant can mknod."""

    ALLOCATED = "allocated"
    "the kubelet allocated a GPU to it (pod-resources)"
    SPEC = "spec"
    "the device rules of its OCI spec"
    SEEN = "seen"
    "an earlier look of this agent saw it allowed"
    PLUGIN = "plugin"
    "it is the device plugin's own container"


class Driver(str, Enum):
    """The runtime's cgroup driver, as the container's own cgroup shows it."""

    SYSTEMD = "systemd"
    CGROUPFS = "cgroupfs"
    "no unit of systemd carries it: a daemon-reload cannot hurt"
    UNKNOWN = "unknown"


class LossCause(str, Enum):
    """How access was lost, as far as it was observed."""

    RELOAD = "reload"
    """units were loaded anew between the last look that saw it allowed and the first that saw it
    denied"""
    UPDATE = "update"
    """the device programs changed and no reload was seen: a container update (cpu-manager, resize),
    set-property"""
    NEVER_HAD = "never-had"
    "this agent never saw it allowed: lost before it started, or never given"


@dataclass(frozen=True, slots=True)
class Allocation:
    """What the kubelet allocated to one container (pod-resources, List)."""

    namespace: str
    pod: str
    container: str
    resource: str
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Process:
    """A running container's first process, and what governs its devices now: a cheap reading,
    nothing is tried."""

    container_id: str
    pid: int
    "0 where the runtime does not say"
    started: str
    'in ticks, tells a pid used again apart; "" where it is gone'
    cgroup_v2: str | None
    "its path in the v2 hierarchy; None for none"
    cgroup_v1: str | None
    "its path in v1's hierarchy with the devices controller"
    rules: str
    """what must stay equal for an old verdict to stand: ids of all device programs in force, or
    v1's list; "" unread"""
    is_fixed: bool
    "rules that stay equal are the same rules: no program reads a map, which its owner could change"
    other_until: float = 0.0
    "boottime of the last look that saw other rules; 0: these are the first that were seen"
    problem: str = ""
    "why something of this could not be read"
    spec: tuple[tuple[Device, str], ...] = ()
    """the device rules of its OCI spec that allow, of any vendor, with their rights; -1 is every
    major or minor"""


@dataclass(frozen=True, slots=True)
class Question:
    """What the access program is to be asked about one container."""

    container_id: str
    pid: int
    started: str
    devices: tuple[Device, ...]
    rules: str = ""
    "of its Process, as it was seen before asking"
    other_until: float = 0.0
    "of its Process: what is now denied was allowed until then at least"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one run of the access program said of one container."""

    container_id: str
    pid: int
    started: str
    rules: str
    "those that were tried; another reading of Process.rules makes the verdict an old one"
    at: float
    "boottime, seconds"
    how: str
    "scratch, no-program, devices.list, devices.list+scratch"
    all_devices: bool
    """a number that is nobody's is allowed as well: it may open everything (privileged, or no
    device cgroup)"""
    answers: tuple[tuple[Device, CurrentAccess], ...]
    detail: str = ""
    "why something is unknown"
    asked_rules: str = ""
    "of the question"


@dataclass(frozen=True, slots=True)
class Sighting:
    """A device node that earlier looks saw allowed, and the first look since that saw it denied."""

    container_id: str
    device: Device
    allowed_at: float
    "boottime of the last look that saw it allowed"
    denied_at: float = 0.0
    "boottime of the first verdict after it that saw it denied; 0 for none"
    reload_at: float = 0.0
    "boottime: when units had last been loaded, as it was first seen denied"


@dataclass(frozen=True, slots=True)
class ScopeDevices:
    """A scope's device list as systemd has it (D-Bus). It holds from the next reload on, whatever
    holds now."""

    unit: str
    rules: str
    "those of its container when it was read: it is read again when they change"
    at: float
    "boottime, seconds"
    policy: str = ""
    "auto, closed, strict"
    allow: tuple[tuple[str, str], ...] = ()
    "DeviceAllow=: (path or char-NAME, rights of rwm)"
    problem: str = ""
    "why it could not be read"


@dataclass(frozen=True, slots=True)
class GrantResult:
    """What came of adding to one scope's device list."""

    container_id: str
    scope: str
    who: str
    "namespace/pod container"
    at: float
    "boottime, seconds"
    rules: str = ""
    "of its container afterwards; while they stand, an addition that was in vain is not tried again"
    named: tuple[str, ...] = ()
    "what the list was given: /dev/char/195:0 rw"
    given_back: tuple[str, ...] = ()
    "what was denied, and is allowed now"
    still_denied: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    "allowed before and denied after: nothing is added any more in this boot"
    problem: str = ""
    took_s: float = 0.0
    "from the batch's begin"


@dataclass(frozen=True, slots=True)
class AccessState:
    """What the access program has said so far, beside the cycle. Memory of this agent only."""

    verdicts: tuple[Verdict, ...] = ()
    "the newest of each container that still runs"
    sightings: tuple[Sighting, ...] = ()
    scopes: tuple[ScopeDevices, ...] = ()
    asked_by: tuple[tuple[float, str], ...] = ()
    "(boottime of a reload, who asked for it by systemd's own log)"
    asking_since: float | None = None
    adding_since: float | None = None
    "device lists are being added to"
    added: tuple[GrantResult, ...] = ()
    "what came of it, the newest of each container that still runs"


@dataclass(frozen=True, slots=True)
class GivenDevice:
    """A device node that was given to a container."""

    device: Device
    path: str
    'of the host\'s own node; "" where it has none'
    claims: tuple[Entitlement, ...]
    access: CurrentAccess
    risk: ReloadRisk
    detail: str = ""
    "why access is unknown"
    allowed_at: float = 0.0
    "boottime when it was last seen allowed; 0 never"
    denied_since: float = 0.0
    "boottime of the first look that saw it denied; 0 where it is not denied"

    @property
    def name(self) -> str:
        return self.path or self.device.path


@dataclass(frozen=True, slots=True)
class GpuContainer:
    """A running container that holds GPUs."""

    id: str
    namespace: str
    pod: str
    pod_uid: str
    name: str
    is_plugin: bool
    gpus: tuple[str, ...]
    "device ids that the kubelet allocated to it"
    process: Process | None
    "None where it was not read"
    driver: Driver
    unit: str
    'of systemd, that carries its cgroup; "" for none'
    all_devices: bool
    "privileged, or under no device cgroup: it may open everything, and nothing is at risk"
    devices: tuple[GivenDevice, ...]
    scope: Reading[ScopeDevices]
    scope_at: float
    "boottime of that reading; 0 where there is none"
    verdict: Verdict | None
    "the one that stands for the rules that govern it now; None: being asked"
    risk_why: str = ""
    loss: LossCause | None = None
    loss_why: str = ""
    "what was observed of the loss, a sentence"
    cure: str = ""
    "what keeps it from coming again"
    added: GrantResult | None = None
    "what came of adding to its scope's device list, where that was done"

    @property
    def denied(self) -> tuple[GivenDevice, ...]:
        return tuple(d for d in self.devices if d.access is CurrentAccess.DENIED)

    @property
    def at_risk(self) -> tuple[GivenDevice, ...]:
        return tuple(d for d in self.devices if d.risk is ReloadRisk.YES)
