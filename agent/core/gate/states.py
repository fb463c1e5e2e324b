"""The gate's types: its phases, its memory, and the result of one step."""

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
    """The gate's memory. Instants are boottime, seconds.

    It ends with the agent: the next agent begins anew and comes to the same result."""

    started_at: float
    phase: Phase = Phase.WAITING
    since: float = 0.0
    why: str = "no cycle has ended yet"
    reason: Reason = Reason.NOT_LOOKED
    released: str = ""
    'why the kubelet may start, "" while it may not'
    ready: bool = False
    ready_why: str = "no cycle has ended yet"
    unready_since: float = 0.0
    troubles: tuple[str, ...] = ()
    """reasons why the plugin or its runtime has failed since then, its first seconds apart: each is
    logged once"""
    answered_at: float = 0.0
    "instant of the kubelet's answer in the last snapshot"
    counted: int = 0
    "number of the last probe that was judged"
    good: int = 0
    "complete, equal probes in a row"
    fingerprint: str = ""
    validated_at: float | None = None
    "start of the last probe that showed the stable set"
    hopeless: int = 0
    "fresh probes in a row that failed for a cause that waiting cannot heal"
    failing_since: float | None = None
    failures: int = 0
    probe_after: float = 0.0
    asked_for: str = ""
    "the MIG instances at the start of the last probe"
    deadline_at: float = 0.0
    doubt: str = ""
    "reason of a cause that is known without NVML and would block"
    doubt_since: float = 0.0
    fabric_since: float | None = None
    "instant since which the fabric is awaited"
    loaded_at: float = 0.0
    "instant of the module's last load"
    paused: str = ""
    'why there are no probes and no actions, "" while there are'
    paused_until: float | None = None
    open_since: float | None = None
    "instant since which NVML is stable"
    listed: int = 0
    "answers of the kubelet in a row that list every GPU"
    listed_at: float = 0.0
    "instant of the last of them"
    slowest_s: float = 0.0
    "seconds that the slowest probe that answered took"
    repair: RepairState = field(default_factory=RepairState)
    launch: Launch = field(default_factory=Launch)


@dataclass(frozen=True, slots=True)
class Step:
    """What one cycle decided."""

    gate: Gate
    actions: tuple[Action, ...]
    wake_at: float
    "boottime, seconds: the next cycle comes then at the latest"
