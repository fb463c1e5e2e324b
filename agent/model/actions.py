"""Every action that gpu-gate can take on a node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from .access import Device, Question
from .reason import ReleaseReason


@dataclass(frozen=True, slots=True)
class StartProbe:
    """Start one NVML probe program beside the cycle."""

    overlap: bool
    """keep the process until the next probe has finished, so that a driver without persistence
    stays initialised"""


@dataclass(frozen=True, slots=True)
class DropProbe:
    """End a probe process that was kept for overlap: none is kept once the gate is open."""

    forget: bool = False
    """discard its results too, because the driver was unloaded"""


@dataclass(frozen=True, slots=True)
class CheckAccess:
    """Start the access program beside the cycle. It finds what these containers may open, and what
    their scopes will allow after a daemon-reload."""

    questions: tuple[Question, ...]
    scopes: tuple[tuple[str, str], ...] = ()
    """device lists to read: (unit, rules of its container)"""
    reload_at: float = 0.0
    """boottime, seconds: when units were last loaded"""


@dataclass(frozen=True, slots=True)
class Release:
    """Release the kubelet (/run/gpu-gate/released)."""

    reason: str
    """a sentence"""
    kind: ReleaseReason

    @property
    def sentence(self) -> str:
        return f"released the kubelet: {self.reason}"


@dataclass(frozen=True, slots=True)
class LinkDevChar:
    """Additive: /dev/char/<major>:<minor> links to device nodes that exist."""

    links: tuple[tuple[str, str], ...]
    """("195:0", "../nvidia0")"""

    @property
    def sentence(self) -> str:
        return f"created links under /dev/char: {', '.join(name for name, _ in self.links)}"


@dataclass(frozen=True, slots=True)
class MakeNodes:
    """Additive: create missing device nodes with nvidia-modprobe, whose module is loaded
    already."""

    minors: tuple[int, ...]
    """/dev/nvidia<minor>; 255 is /dev/nvidiactl"""
    uvm: bool

    @property
    def sentence(self) -> str:
        nodes = [*(f"minor {m}" for m in self.minors), *(["nvidia-uvm"] if self.uvm else [])]
        return f"created device nodes with nvidia-modprobe: {', '.join(nodes)}"


@dataclass(frozen=True, slots=True)
class LoadModule:
    """Additive, with Load=auto only: modprobe -b nvidia, which respects a blacklist."""

    sentence = "loaded the nvidia module (Load=auto)"


@dataclass(frozen=True, slots=True)
class ScopeGrant:
    """One container whose scope's device list may be added to."""

    scope: str
    container_id: str
    pid: int
    started: str
    """start time in clock ticks: distinguishes a pid that was used again"""
    who: str
    """namespace/pod container"""
    give: tuple[tuple[Device, str], ...]
    """the devices that belong to it, and that it gets back where it is denied them; each with its
    usual name"""


@dataclass(frozen=True, slots=True)
class GrantDevices:
    """Additive: list devices in DeviceAllow= of containers' scopes, so that a daemon-reload takes
    none away, or so that those it took come back. The executor reads what exactly is missing."""

    allowances: tuple[ScopeGrant, ...]
    prevent: bool
    """also where no device is denied yet"""

    @property
    def sentence(self) -> str:
        return f"updating DeviceAllow= of {', '.join(a.who for a in self.allowances)}"


@dataclass(frozen=True, slots=True)
class Learn:
    """Remember the GPUs that this machine had when it was stable. Only a warning depends on it."""

    bus_ids: tuple[str, ...]

    @property
    def sentence(self) -> str:
        return f"remembered the GPUs of this machine: {', '.join(self.bus_ids)}"


@dataclass(frozen=True, slots=True)
class RestartUnit:
    """Disruptive: restart the device plugin's own unit."""

    number: int
    """the number of the action in the ledger"""
    unit: str
    invocation: str
    """the InvocationID to end: another one later shows that the unit was restarted"""
    cause: str
    because: str

    @property
    def sentence(self) -> str:
        return f"restarting {self.unit}: {self.because}"


@dataclass(frozen=True, slots=True)
class SendHup:
    """Disruptive: send SIGHUP to the device plugin, which asks NVML again and registers again
    without a new container."""

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
    """Disruptive: stop (10 s) and remove one container; the kubelet starts it again."""

    number: int
    container_id: str
    cause: str
    because: str

    @property
    def sentence(self) -> str:
        return f"stopping and removing container {self.container_id[:12]}: {self.because}"


@dataclass(frozen=True, slots=True)
class NoteOutcome:
    """Write the outcome of an action to the ledger and beside its evidence."""

    number: int
    outcome: str
    evidence: str

    @property
    def sentence(self) -> str:
        return f"outcome of action {self.number}: {self.outcome}"


@dataclass(frozen=True, slots=True)
class RefreshCdi:
    """Additive: start nvidia-cdi-refresh.service, which writes the CDI spec again."""

    unit: str
    because: str

    @property
    def sentence(self) -> str:
        return f"starting {self.unit}: {self.because}"


@dataclass(frozen=True, slots=True)
class LaunchUnit:
    """Additive, with Launch=unit: start the device plugin's unit. This never restarts it."""

    unit: str

    @property
    def sentence(self) -> str:
        return f"starting {self.unit}: NVML is stable (Launch=unit)"


@dataclass(frozen=True, slots=True)
class PlaceManifest:
    """Additive, with Launch=manifest: put the administrator's static pod into the kubelet's
    folder."""

    source: str
    target: str

    @property
    def sentence(self) -> str:
        return f"placed {self.target}: NVML is stable (Launch=manifest)"


@dataclass(frozen=True, slots=True)
class NoteNvmlFailed:
    """Write to the ledger that NVML failed after an action: if the plugin fails again since then,
    that is a new case."""

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
