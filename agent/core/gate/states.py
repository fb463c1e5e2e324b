"""The gate's words: its phases, its memory, and what one step says."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from ...model.actions import Action
from ...model.reason import Reason
from ..plugin.launch import Launch
from ..plugin.repair import RepairState


class Phase(str, Enum):
    """Where the host's GPUs stand. The numbers are on dashboards: they never change."""

    WAITING = "WAITING"
    PROBING = "PROBING"
    SETTLING = "SETTLING"
    OPEN = "OPEN"
    REVALIDATING = "REVALIDATING"
    REPAIRING = "REPAIRING"
    BLOCKED = "BLOCKED"
    NOT_APPLICABLE = "NOT_APPLICABLE"

    @property
    def number(self) -> int:
        return list(Phase).index(self)


@dataclass(frozen=True, slots=True)
class Gate:
    """The gate's memory. Dropped with the agent: the next one begins anew and ends at the same
    place."""

    started_at: float
    phase: Phase = Phase.WAITING
    since: float = 0.0
    why: str = "not looked yet"
    reason: Reason = Reason.NOT_LOOKED
    released: str = ""
    'why the kubelet may start, "" while it may not'
    ready: bool = False
    ready_why: str = "not looked yet"
    unready_since: float = 0.0
    "boottime"
    troubles: tuple[str, ...] = ()
    """reason words of what was wrong with the plugin or its runtime since then, not counting its
    first moments"""
    answered_at: float = 0.0
    "boottime of the kubelet's answer that the last look saw"
    counted: int = 0
    "number of the last probe that was judged"
    good: int = 0
    "complete, equal probes in a row"
    fingerprint: str = ""
    validated_at: float | None = None
    "start of the last probe that found the open gate's set again"
    hopeless: int = 0
    "fresh probes in a row whose cause waiting cannot heal"
    failing_since: float | None = None
    failures: int = 0
    probe_after: float = 0.0
    asked_for: str = ""
    "the MIG instances that were there when the last probe was started"
    deadline_at: float = 0.0
    doubt: str = ""
    "reason of the cause that is known without NVML and would hold"
    doubt_since: float = 0.0
    fabric_since: float | None = None
    "boottime since which the fabric is awaited"
    loaded_at: float = 0.0
    "boottime of the module's last load that was seen"
    paused: str = ""
    'why no probe and no action is made, "" where they are'
    paused_until: float | None = None
    open_since: float | None = None
    "boottime since which NVML is stable"
    listed: int = 0
    "answers of the kubelet in a row that list every GPU"
    listed_at: float = 0.0
    "boottime of the last of them"
    slowest_s: float = 0.0
    "what the slowest probe that answered took"
    repair: RepairState = field(default_factory=RepairState)
    launch: Launch = field(default_factory=Launch)


@dataclass(frozen=True, slots=True)
class Step:
    """What one cycle decided."""

    gate: Gate
    actions: tuple[Action, ...]
    wake_at: float
    "boottime, seconds: look again then at the latest"
