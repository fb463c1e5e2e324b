"""What the rules conclude: one finding a condition, in the order of the chain."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from .access import GpuContainer
from .actions import Action, CheckAccess, GrantDevices, LaunchUnit, PlaceManifest, ScopeGrant
from .cdi import Refresh
from .condition import Condition, Link
from .fault import RepairFacts
from .reason import Reason
from .snapshot import ProbeReport


class Verdict(str, Enum):
    HOLDS = "holds"
    FAILS = "fails"
    UNKNOWN = "unknown"


class Heals(str, Enum):
    """What waiting does for a failed condition."""

    SOON = "soon"
    "waiting may heal it"
    NEVER = "never"
    "a person or a reboot must heal it"
    CONFIGURATION = "configuration"
    "this host is set up so that it cannot hold"


@dataclass(frozen=True, slots=True)
class Finding:
    """One condition of one link."""

    link: Link
    condition: Condition
    verdict: Verdict
    because: str
    "what was seen, in one line"
    reason: Reason = Reason.NONE
    missing: tuple[str, ...] = ()
    "what would have to be there: bus ids, device nodes, readings"
    heals: Heals = Heals.SOON
    next_step: str = ""
    "what a person can do, best a command to paste"
    blocks: bool = True
    "False: worth saying, but GPU work may start without it"
    age_s: float = 0.0
    "seconds since it was seen, where that is not this very look"


class Scope(str, Enum):
    """Is there anything on this host to gate?"""

    GPUS = "gpus"
    NONE = "none"
    "no NVIDIA GPU for containers"
    LATE_DRIVER = "late-driver"
    "GPUs, but their driver is not on the host: it comes later or never"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Pause:
    """Why no probe and no action is made now."""

    why: str
    until: float | None
    "boottime, seconds; None: not known beforehand"
    by_person: bool
    "`gpu-gate pause`, which releases the kubelet; else work on the GPUs, which ends soon"


ELSEWHERE = (Link.NODE, Link.METRICS, Link.ALERT)
"""Links whose word the API server and the monitoring have: the node's own readiness does not hang
on them."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What the scene means, and the few values the gate decides by."""

    findings: tuple[Finding, ...]
    scope: Scope
    scope_because: str
    expected: tuple[str, ...]
    "bus ids of the GPUs this host must show"
    may_probe: bool
    "the driver is loaded: NVML can be asked without loading it"
    report: ProbeReport | None
    probe_busy: bool
    "a probe is under way, or its remains still exist"
    fingerprint: str
    'what must stay equal from probe to probe; "" where the last probe was not complete and clean'
    mig_instances: str
    'as the driver shows them, "" where nobody asked; others than at the last probe want a new one'
    disturbed_at: float
    "boottime, seconds, of the newest reload, restart of a unit we follow, or report of the kernel"
    disturbed_by: str
    driver_loaded_at: float
    "boottime, seconds, of the module's last load; 0.0 where nothing tells"
    held: Finding | None
    "a cause that is known without asking NVML, and that waiting cannot heal"
    fabric: Finding | None
    "the fabric is not ready, and somebody wants it to be"
    rests_until: float
    "boottime, seconds: NVML is not asked before, because it would hang"
    kubelet_active: bool | None
    released_before: str
    'why an earlier moment of this boot released the kubelet, "" where none did'
    waiting_since: float | None
    paused: Pause | None
    control_plane: bool
    learned: tuple[str, ...]
    "bus ids that this machine showed before"
    registered: Finding | None
    registered_at: float
    "boottime, seconds, of the kubelet's answer behind it"
    repair_facts: RepairFacts | None
    "None where there is no plugin to mend: no kubelet, no GPU"
    gpu_containers: tuple[GpuContainer, ...] = ()
    access_check: CheckAccess | None = None
    "what the access program is to be asked now"
    allow: GrantDevices | None = None
    "scopes whose device lists are to be added to now"
    guarded: tuple[ScopeGrant, ...] = ()
    "those a reload may take something from: it is given back at once"
    access_due: float | None = None
    "boottime of the look that access asks for besides"
    additive: tuple[Action, ...] = ()
    "what is missing and may be added without asking"
    refresh: Refresh | None = None
    "CDI specs that their unit may mend"
    launch: LaunchUnit | PlaceManifest | None = None
    "how the plugin is launched, once the gate is open"

    def get(self, *conditions: Condition) -> Finding | None:
        """The first finding about one of these conditions."""
        return next((f for f in self.findings if f.condition in conditions), None)

    def blocking(self, *links: Link) -> Finding | None:
        """The first finding of these links that does not hold, and without which GPU work may not
        start."""
        return next(
            (
                f
                for f in self.findings
                if f.link in links and f.blocks and f.verdict is not Verdict.HOLDS
            ),
            None,
        )

    def first_broken(self, own: bool = False) -> Finding | None:
        """The first link that blocks: everything after it follows from it. `own`: of those this
        node answers for."""
        for finding in self.findings:
            if (
                finding.blocks
                and finding.verdict is Verdict.FAILS
                and not (own and finding.link in ELSEWHERE)
            ):
                return finding
        return None
