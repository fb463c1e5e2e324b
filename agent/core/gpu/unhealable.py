"""What holds, beside NVML's own word: the kernel's log, the fabric, and what GPUs say of
themselves."""

from __future__ import annotations

from typing import NamedTuple

from ...model.finding import Finding, Verdict
from ...model.reading import Seen
from ...model.reason import Reason
from ...model.settings import Settings
from ...model.snapshot import Snapshot
from . import fabric
from . import health as state
from . import kernel_events as kernel_log
from .inventory import GpuInventory, ProbeAssessment

WITHOUT_NVML = (
    Reason.MODULE_REJECTED,
    Reason.MODULE_UNFIT,
    Reason.GPU_UNSUPPORTED,
    Reason.GSP_TIMEOUT,
    Reason.NOUVEAU_BOUND,
)


def findings(
    snapshot: Snapshot, settings: Settings, gpus: GpuInventory, assessment: ProbeAssessment
) -> tuple[Finding, ...]:
    ready = fabric.find(settings, assessment), fabric.unmanaged(snapshot, settings, assessment)
    return (
        *(f for f in ready if f),
        *state.findings(assessment),
        *kernel_log.findings(snapshot, gpus),
    )


class Disturbance(NamedTuple):
    """What the diagnosis holds about causes outside of NVML's own answer."""

    at: float
    "boottime, seconds"
    by: str
    driver_loaded_at: float
    held: Finding | None
    fabric: Finding | None
    rests_until: float


def disturbance(
    snapshot: Snapshot,
    settings: Settings,
    gpus: GpuInventory,
    assessment: ProbeAssessment,
    shown: tuple[Finding, ...],
    disturbed_at: float,
) -> Disturbance:
    """What disturbs, what holds, and what is waited for."""
    at, by = max(
        (disturbed_at, "a reload or restart"),
        (kernel_log.disturbed_at(snapshot, assessment), "the kernel's report of a GPU"),
    )
    ready = fabric.find(settings, assessment)
    report = (
        snapshot.hardware.probe.value.last if isinstance(snapshot.hardware.probe, Seen) else None
    )
    silent = kernel_log.silent_gsp(snapshot, gpus, assessment, report)
    return Disturbance(
        at=at,
        by=by,
        driver_loaded_at=kernel_log.loaded_at(snapshot),
        held=_held(shown, gpus),
        fabric=ready if ready and ready.verdict is Verdict.FAILS else None,
        rests_until=silent.at + kernel_log.GSP_REST_S if silent else 0.0,
    )


def _held(shown: tuple[Finding, ...], gpus: GpuInventory) -> Finding | None:
    """What is known without NVML, and cannot heal by waiting. One GPU of several on nouveau is only
    said: it may be the display's."""
    return next(
        (
            f
            for f in shown
            if f.blocks
            and f.verdict is Verdict.FAILS
            and f.reason in WITHOUT_NVML
            and not (f.reason == Reason.NOUVEAU_BOUND and gpus.candidates)
        ),
        None,
    )
