"""The closed set of things gpu-gate may do to a node, and the plan of one cycle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from .access import Device, Question
from .reason import ReleaseReason


@dataclass(frozen=True, slots=True)
class StartProbe:
    """Start one NVML probe program beside the cycle."""

    overlap: bool
    """keep the process until the next one has finished, so that a driver without persistence stays
    initialised"""


@dataclass(frozen=True, slots=True)
class DropProbe:
    """Let go of a probe process that was kept for overlap: nothing is held once the gate is
    open."""

    forget: bool = False
    "the driver is gone, and what was asked of it says nothing any more"


@dataclass(frozen=True, slots=True)
class CheckAccess:
    """Start the access program beside the cycle: what may these containers open, and what will
    their scopes allow?"""

    questions: tuple[Question, ...]
    scopes: tuple[tuple[str, str], ...] = ()
    "(unit, rules of its container): device lists to be read"
    reload_at: float = 0.0
    "boottime: when units were last loaded"


@dataclass(frozen=True, slots=True)
class Release:
    """Say that the kubelet may start (/run/gpu-gate/released)."""

    reason: str
    kind: ReleaseReason

    @property
    def sentence(self) -> str:
        return f"left the mark that releases the kubelet: {self.reason}"


@dataclass(frozen=True, slots=True)
class LinkDevChar:
    """Additive: /dev/char/<major>:<minor> links to device nodes that exist."""

    links: tuple[tuple[str, str], ...]
    '("195:0", "../nvidia0")'

    @property
    def sentence(self) -> str:
        return f"made links under /dev/char: {', '.join(name for name, _ in self.links)}"


@dataclass(frozen=True, slots=True)
class MakeNodes:
    """Additive: missing device nodes, through nvidia-modprobe, whose module is loaded already."""

    minors: tuple[int, ...]
    "/dev/nvidia<minor>; 255 is /dev/nvidiactl"
    uvm: bool

    @property
    def sentence(self) -> str:
        nodes = [*(f"minor {m}" for m in self.minors), *(["nvidia-uvm"] if self.uvm else [])]
        return f"had nvidia-modprobe make device nodes: {', '.join(nodes)}"


@dataclass(frozen=True, slots=True)
class LoadModule:
    """Additive, opt-in (Load=auto): modprobe -b nvidia; an admin's blacklist holds."""

    sentence = "loaded the nvidia module (Load=auto)"


@dataclass(frozen=True, slots=True)
class ScopeGrant:
    """One container whose scope's device list may be added to."""

    scope: str
    container_id: str
    pid: int
    started: str
    "in ticks: tells a pid used again apart"
    who: str
    "namespace/pod container"
    give: tuple[tuple[Device, str], ...]
    """what was given to it, and is given back where it is denied; each with the name people know it
    by"""


@dataclass(frozen=True, slots=True)
class GrantDevices:
    """Additive: name devices in DeviceAllow= of containers' scopes, so that a daemon-reload takes
    nothing away, or what it took comes back. What exactly is named is read when it is done."""

    allowances: tuple[ScopeGrant, ...]
    prevent: bool
    "also where nothing is denied yet"

    @property
    def sentence(self) -> str:
        return f"looking after the device lists of {', '.join(a.who for a in self.allowances)}"


@dataclass(frozen=True, slots=True)
class Learn:
    """Remember the set of GPUs this machine showed when it was stable (only ever to warn)."""

    bus_ids: tuple[str, ...]

    @property
    def sentence(self) -> str:
        return f"remembered the set of GPUs this machine showed: {', '.join(self.bus_ids)}"


@dataclass(frozen=True, slots=True)
class RestartUnit:
    """Disruptive: restart the device plugin's own unit."""

    number: int
    "in the ledger"
    unit: str
    invocation: str
    "the one that is to end: another one later means that it was restarted"
    cause: str
    because: str

    @property
    def sentence(self) -> str:
        return f"restarting {self.unit}: {self.because}"


@dataclass(frozen=True, slots=True)
class SendHup:
    """Disruptive: SIGHUP to the device plugin, which asks NVML again and registers again in
    place."""

    number: int
    container_id: str
    pid: int
    cause: str
    because: str

    @property
    def sentence(self) -> str:
        return (
            f"sending SIGHUP to container {self.container_id[:12]}, pid {self.pid}: {self.because}"
        )


@dataclass(frozen=True, slots=True)
class Rebuild:
    """Disruptive: stop (10 s) and remove one container; the kubelet builds it again."""

    number: int
    container_id: str
    cause: str
    because: str

    @property
    def sentence(self) -> str:
        return f"stopping and removing container {self.container_id[:12]}: {self.because}"


@dataclass(frozen=True, slots=True)
class NoteOutcome:
    """Write down, in the ledger and beside the evidence, what came of an action."""

    number: int
    outcome: str
    evidence: str

    @property
    def sentence(self) -> str:
        return f"outcome of action {self.number}: {self.outcome}"


@dataclass(frozen=True, slots=True)
class RefreshCdi:
    """Additive: have nvidia-cdi-refresh.service write the CDI spec again."""

    unit: str
    because: str

    @property
    def sentence(self) -> str:
        return f"starting {self.unit}: {self.because}"


@dataclass(frozen=True, slots=True)
class LaunchUnit:
    """Additive (Launch=unit): start the device plugin's unit, which is never restarted by this."""

    unit: str

    @property
    def sentence(self) -> str:
        return f"starting {self.unit}: NVML is stable (Launch=unit)"


@dataclass(frozen=True, slots=True)
class PlaceManifest:
    """Additive (Launch=manifest): put the owner's static pod into the kubelet's folder."""

    source: str
    target: str

    @property
    def sentence(self) -> str:
        return f"placed {self.target}: NVML is stable (Launch=manifest)"


@dataclass(frozen=True, slots=True)
class NoteNvmlFailed:
    """Write down that NVML failed after an action: a plugin that fails again since then is a new
    case."""

    number: int

    @property
    def sentence(self) -> str:
        return f"noted in the ledger: NVML failed after action {self.number}"


Disruptive = Union[RestartUnit, SendHup, Rebuild]
DISRUPTIVE = (RestartUnit, SendHup, Rebuild)
Action = Union[
    StartProbe,
    DropProbe,
    CheckAccess,
    Release,
    LinkDevChar,
    MakeNodes,
    LoadModule,
    GrantDevices,
    Learn,
    RestartUnit,
    SendHup,
    Rebuild,
    NoteOutcome,
    NoteNvmlFailed,
    RefreshCdi,
    LaunchUnit,
    PlaceManifest,
]
