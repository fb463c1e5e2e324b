"""What is wrong with a device plugin, and what the mender may know."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from .reason import Reason
from .runtime import LedgerEntry, PluginSight


class Cure(str, Enum):
    """What a fault asks for."""

    FRESH_START = "fresh-start"
    "starting it afresh may cure it"
    TIME = "time"
    "it may still come by itself; a fresh start once RegisterWithinSec is over"
    WAIT = "wait"
    "nothing of ours: the kubelet's own back-off, or a pod that is still to come"
    PERSON = "person"
    "a fresh start would end where this one did"


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a plugin's devices are not listed, as far as it can be seen."""

    reason: Reason
    because: str
    cure: Cure
    next_step: str = ""
    barred: bool = False
    """a removal could not help, would make it worse, or nobody can know which: a person's, once it
    is due"""
    access_denied: bool = False
    hup_answers: bool = False
    "SIGHUP re-registers in place: its access was just verified, and its version answers"
    sight: PluginSight | None = None
    unit: str = ""
    "the host's unit that is the plugin, where it is no container"
    invocation: str = ""
    "of that unit"
    began_at: float = 0.0
    "boottime, seconds, when its process or its unit was started; 0.0 where nobody can know"
    said_at: float = 0.0
    "boottime, seconds, of its log's last mark, where that tells of something it is about; else 0.0"


@dataclass(frozen=True, slots=True)
class RepairFacts:
    """What the mender decides by, of one look."""

    fault: Fault | None
    may_act: bool
    "this very look saw the kubelet active and its pod-resources API answering"
    listed: int
    "GPUs the kubelet lists"
    kubelet_since: float
    "boottime, seconds"
    kubelet_invocation: str
    offset: float
    "realtime less boottime, seconds"
    boot_id: str
    entries: tuple[LedgerEntry, ...]
    ledger_problem: str
