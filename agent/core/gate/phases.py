"""Which phase a situation is: one ordered table, of which the first row that fits counts.

docs/design.md shows the same rows (tests/test_docs.py compares them).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from ...model.condition import Condition, Link
from ...model.finding import Diagnosis, Finding, Scope, Verdict
from ...model.reason import Reason
from ...model.settings import Settings
from ..plugin.repair import RepairState
from .schedule import AGREE, HOLD_AFTER_S
from .states import Gate, Phase


class Outcome(NamedTuple):
    """A phase, with why."""

    phase: Phase
    why: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class Situation:
    """What the table judges: the counts of the gate so far, and the diagnosis of this snapshot."""

    gate: Gate
    diagnosis: Diagnosis
    settings: Settings
    now: float
    "boottime, seconds"

    @property
    def nvml(self) -> Finding:
        return self.diagnosis.get(Condition.NVML_COMPLETE) or _NOT_ASKED

    @property
    def is_stable(self) -> bool:
        """Enough fresh probes in a row enumerated the same complete set."""
        return self.gate.good >= self.settings.stable_probes

    @property
    def fabric(self) -> Finding | None:
        """A fabric that is not ready, and is awaited."""
        return self.diagnosis.fabric if self.gate.fabric_since is not None else None

    @property
    def fabric_is_late(self) -> bool:
        since = self.gate.fabric_since
        return since is not None and self.now >= since + self.settings.fabric_within_s


_NOT_ASKED = Finding(
    Link.NVML,
    Condition.NVML_COMPLETE,
    Verdict.UNKNOWN,
    "NVML was not asked",
    Reason.NOT_PROBED,
    next_step="gpu-gate probe",
)
Because = tuple[str, Reason]


class Row(NamedTuple):
    """One line of the table."""

    phase: Phase
    when: str
    "for people: docs/design.md"
    judge: Callable[[Situation], Because | None]
    "why, where the row fits"


def _of(finding: Finding | None) -> Because | None:
    return (finding.because, finding.reason) if finding else None


def _for_a_person(finding: Finding) -> Because:
    return f"{finding.because}; next step: {finding.next_step}", finding.reason


def _known_without_nvml(s: Situation) -> Because | None:
    cause = s.diagnosis.held
    return _for_a_person(cause) if cause and s.now >= s.gate.doubt_since + HOLD_AFTER_S else None


def _no_gpu(s: Situation) -> Because | None:
    if s.diagnosis.scope is not Scope.NONE:
        return None
    return s.diagnosis.scope_because, Reason.NO_GPU_FOR_CONTAINERS


def _no_driver(s: Situation) -> Because | None:
    if s.diagnosis.may_probe:
        return None
    missing = s.diagnosis.blocking(Link.PCI, Link.DRIVER)
    return _of(missing) or (s.diagnosis.scope_because, Reason.DRIVER_UNKNOWN)


def _too_few_on_pci(s: Situation) -> Because | None:
    return _of(s.diagnosis.blocking(Link.PCI)) if s.gate.hopeless < AGREE else None


def _probes_cannot_heal(s: Situation) -> Because | None:
    return _for_a_person(s.nvml) if s.gate.hopeless >= AGREE else None


def _stable_without_nodes(s: Situation) -> Because | None:
    return _of(s.diagnosis.blocking(Link.DEVICE_NODES)) if s.is_stable else None


def _stable_and_failing(s: Situation) -> Because | None:
    return _of(s.nvml) if s.is_stable and s.nvml.verdict is Verdict.FAILS else None


def _fabric_awaited(s: Situation) -> Because | None:
    return _of(s.fabric) if s.is_stable and not s.fabric_is_late else None


def _fabric_required(s: Situation) -> Because | None:
    if not s.is_stable or s.fabric is None or not s.fabric.blocks:
        return None
    return _for_a_person(s.fabric)


def _disturbed(s: Situation) -> Because | None:
    validated_at, at = s.gate.validated_at, s.diagnosis.disturbed_at
    if not s.is_stable or validated_at is None or at <= validated_at:
        return None
    why = f"{s.diagnosis.disturbed_by} {s.now - at:.0f} s ago is newer than the last validation"
    return why, Reason.REVALIDATING


def _stable(s: Situation) -> Because | None:
    return (s.nvml.because, Reason.NONE) if s.is_stable else None


def _settling(s: Situation) -> Because | None:
    if not s.gate.good:
        return None
    count = f"{s.gate.good} of {s.settings.stable_probes} equal probes"
    return f"{s.nvml.because}: {count}", Reason.SETTLING


def _complete_without_nodes(s: Situation) -> Because | None:
    complete = s.nvml.verdict is Verdict.HOLDS
    return _of(s.diagnosis.blocking(Link.DEVICE_NODES)) if complete else None


def _complete(s: Situation) -> Because | None:
    if s.nvml.verdict is not Verdict.HOLDS:
        return None
    return f"{s.nvml.because}; a fresh probe is awaited", Reason.PROBING


def _incomplete(s: Situation) -> Because:
    return s.nvml.because, s.nvml.reason or Reason.PROBING


TABLE = (
    Row(
        Phase.BLOCKED,
        "for a second, a cause is known without NVML that waiting cannot heal",
        _known_without_nvml,
    ),
    Row(Phase.NOT_APPLICABLE, "the host has no NVIDIA GPU for containers", _no_gpu),
    Row(Phase.WAITING, "the driver is not loaded", _no_driver),
    Row(Phase.WAITING, "PCI shows fewer GPUs than expected", _too_few_on_pci),
    Row(
        Phase.BLOCKED,
        "two fresh probes in a row failed for a cause that waiting cannot heal",
        _probes_cannot_heal,
    ),
    Row(Phase.WAITING, "NVML is stable, and a device node is missing", _stable_without_nodes),
    Row(Phase.REVALIDATING, "NVML was stable, and the last probe failed", _stable_and_failing),
    Row(Phase.WAITING, "NVML is stable, and the fabric is awaited", _fabric_awaited),
    Row(
        Phase.BLOCKED,
        "NVML is stable, and a required fabric did not come in time",
        _fabric_required,
    ),
    Row(
        Phase.REVALIDATING,
        "a reload, a restart or a kernel event is newer than the last validation",
        _disturbed,
    ),
    Row(Phase.OPEN, "NVML is stable", _stable),
    Row(Phase.SETTLING, "NVML enumerates the expected set, not often enough yet", _settling),
    Row(
        Phase.WAITING,
        "NVML enumerates the expected set, and a device node is missing",
        _complete_without_nodes,
    ),
    Row(Phase.PROBING, "NVML enumerated the expected set, and a fresh probe is due", _complete),
    Row(Phase.PROBING, "NVML does not enumerate the expected set", _incomplete),
)
"""The phase of the host's GPUs. REPAIR_TABLE comes on top."""


class RepairSituation(NamedTuple):
    """What REPAIR_TABLE judges."""

    phase: Phase
    "by TABLE"
    before: RepairState
    now: RepairState


class RepairRow(NamedTuple):
    """One line of REPAIR_TABLE."""

    phase: Phase
    when: str
    judge: Callable[[RepairSituation], Because | None]


def _repair_under_way(s: RepairSituation) -> Because | None:
    # In the cycle that begins it, the executor may still refuse.
    if s.phase not in (Phase.OPEN, Phase.REVALIDATING) or not s.before.acting or not s.now.acting:
        return None
    why = f"the device plugin is being restarted ({s.now.acting}); its registration is awaited"
    return why, Reason.REPAIRING


def _repair_blocked(s: RepairSituation) -> Because | None:
    is_blocked = s.phase is Phase.OPEN and s.now.held
    return (s.now.held, s.now.held_reason) if is_blocked else None


REPAIR_TABLE = (
    RepairRow(
        Phase.REPAIRING,
        "the phase would be OPEN or REVALIDATING, and a repair of the device plugin is under way",
        _repair_under_way,
    ),
    RepairRow(
        Phase.BLOCKED,
        "the phase would be OPEN, and the device plugin needs an operator",
        _repair_blocked,
    ),
)


def with_repair(outcome: Outcome, before: RepairState, now: RepairState) -> Outcome:
    """The first row of REPAIR_TABLE that fits, else the outcome of TABLE."""
    situation = RepairSituation(outcome.phase, before, now)
    for row in REPAIR_TABLE:
        because = row.judge(situation)
        if because is not None:
            return Outcome(row.phase, *because)
    return outcome


def phase_of(situation: Situation) -> Outcome:
    """The first row that fits."""
    for row in TABLE:
        because = row.judge(situation)
        if because is not None:
            return Outcome(row.phase, *because)
    raise AssertionError("the last row fits every situation")
