"""What is wrong with a device plugin, and what decides about its repair."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from .reason import Reason
from .runtime import LedgerEntry, PluginSight


class Cure(str, Enum):
    """What may cure a fault."""

    FRESH_START = "fresh-start"
    """a restart may cure it"""
    TIME = "time"
    """it may recover by itself; a restart once RegisterWithinSec= is over"""
    WAIT = "wait"
    """no action of gpu-gate: the kubelet's own backoff, or a pod that is not created yet"""
    PERSON = "person"
    """an operator; a restart would fail in the same way"""


@dataclass(frozen=True, slots=True)
class Fault:
    """Why the kubelet does not list a plugin's devices, as far as is known."""

    reason: Reason
    because: str
    cure: Cure
    next_step: str = ""
    barred: bool = False
    """removing the container would not help or would make it worse, or which of these is unknown:
    an operator must decide, once a repair is due"""
    access_denied: bool = False
    hup_answers: bool = False
    """SIGHUP makes it register again: its access was just verified, and its version supports it"""
    sight: PluginSight | None = None
    unit: str = ""
    """the plugin's unit on the host, where the plugin is not a container"""
    invocation: str = ""
    """of that unit"""
    began_at: float = 0.0
    """boottime, seconds, when its process or its unit was started; 0.0 where that is unknown"""
    said_at: float = 0.0
    """boottime, seconds, of the last event in its log, if that is something in progress; else
    0.0"""


@dataclass(frozen=True, slots=True)
class RepairFacts:
    """The facts of one snapshot that decide about a repair."""

    fault: Fault | None
    may_act: bool
    """in this snapshot the kubelet is active and its pod-resources API answers"""
    listed: int
    """GPUs the kubelet lists"""
    kubelet_since: float
    """boottime, seconds"""
    kubelet_invocation: str
    offset: float
    """realtime less boottime, seconds"""
    boot_id: str
    entries: tuple[LedgerEntry, ...]
    ledger_problem: str
