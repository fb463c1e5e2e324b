"""What holds, beside NVML's own word: the kernel's log, the fabric, and what GPUs say of
themselves."""

from __future__ import annotations

from typing import Any

from ...model.finding import Finding, Verdict
from ...model.reading import Seen
from ...model.settings import Settings
from ...model.snapshot import Scene
from . import fabric
from . import health as state
from . import kernel_events as kernel_log
from .inventory import Judged, SortedGpus

WITHOUT_NVML = ("ModuleRejected", "ModuleUnfit", "GpuUnsupported", "GspTimeout", "NouveauBound")


def findings(
    scene: Scene, settings: Settings, gpus: SortedGpus, judged: Judged
) -> tuple[Finding, ...]:
    ready = fabric.find(settings, judged), fabric.unmanaged(scene, settings, judged)
    return (*(f for f in ready if f), *state.findings(judged), *kernel_log.findings(scene, gpus))


def parts(
    scene: Scene,
    settings: Settings,
    gpus: SortedGpus,
    judged: Judged,
    shown: tuple[Finding, ...],
    disturbed_at: float,
) -> dict[str, Any]:
    """Of the diagnosis: what disturbs, what holds, and what is waited for."""
    at, by = max(
        (disturbed_at, "a reload or restart"),
        (kernel_log.disturbed_at(scene, judged), "the kernel's report of a GPU"),
    )
    ready = fabric.find(settings, judged)
    report = scene.probe.value.last if isinstance(scene.probe, Seen) else None
    silent = kernel_log.silent_gsp(scene, gpus, judged, report)
    return {
        "disturbed_at": at,
        "disturbed_by": by,
        "driver_loaded_at": kernel_log.loaded_at(scene),
        "held": _held(shown, gpus),
        "fabric": ready if ready and ready.verdict is Verdict.FAILS else None,
        "rests_until": silent.at + kernel_log.GSP_REST_S if silent else 0.0,
    }


def _held(shown: tuple[Finding, ...], gpus: SortedGpus) -> Finding | None:
    """What is known without NVML, and cannot heal by waiting. One GPU of several on nouveau is only
    said: it may be the display's."""
    return next(
        (
            f
            for f in shown
            if f.blocks
            and f.verdict is Verdict.FAILS
            and f.reason in WITHOUT_NVML
            and not (f.reason == "NouveauBound" and gpus.candidates)
        ),
        None,
    )
