"""Link 5: GPUs in MIG mode, as far as the device plugin stumbles over them. Nothing here holds the
kubelet.

What NVIDIA's plugin refuses to start with: internal/mig, AssertAllMigDevicesAreValid (0.9 to 0.20).
"""

from __future__ import annotations

from ...model.condition import Condition, Link
from ...model.finding import Finding, Heals, Verdict
from ...model.reason import Reason
from ...model.snapshot import Gpu
from ..gpu.inventory import ProbeAssessment
from .resources import Listing


def findings(assessment: ProbeAssessment, listed: Listing) -> tuple[Finding, ...]:
    in_mig = [g for g in assessment.gpus if g.state.mig]
    pending = [
        g
        for g in assessment.gpus
        if g.state.mig_pending is not None and g.state.mig_pending != g.state.mig
    ]
    found = []
    if pending:
        found.append(
            _fails(
                f"MIG mode is to be {_on(pending[0])} after a reset of {_which(pending)}",
                Reason.MIG_PENDING,
                "drain the node, then nvidia-smi --gpu-reset, or reboot",
            )
        )
    empty = [g for g in in_mig if g.state.mig_devices == ()]
    strategy = listed.visible_devices.strategy
    if empty:
        stops = (
            ""
            if strategy in ("", "none")
            else f"; the plugin does not start so (MIG_STRATEGY={strategy})"
        )
        found.append(
            _fails(
                f"MIG mode is on and no instance was made on {_which(empty)}{stops}",
                Reason.MIG_WITHOUT_INSTANCES,
                "nvidia-smi mig -cgi …, nvidia-mig-parted, or MIG mode off",
            )
        )
    if strategy == "single" and in_mig and not empty and not _is_uniform(assessment, in_mig):
        found.append(
            _fails(
                "MIG_STRATEGY=single wants MIG mode and one profile on every GPU, and "
                f"{_which(in_mig)} of {len(assessment.gpus)} GPUs differ: the plugin does not "
                "start so",
                Reason.MIG_NOT_UNIFORM,
                "make all GPUs equal, or MIG_STRATEGY=mixed",
            )
        )
    return tuple(found)


def _is_uniform(assessment: ProbeAssessment, in_mig: list[Gpu]) -> bool:
    profiles = {m.profile for g in in_mig for m in g.state.mig_devices or ()}
    return len(in_mig) == len(assessment.gpus) and len(profiles) <= 1


def _on(gpu: Gpu) -> str:
    return "on" if gpu.state.mig_pending else "off"


def _which(gpus: list[Gpu]) -> str:
    return ", ".join(g.bus_id for g in gpus)


def _fails(because: str, reason: Reason, next_step: str) -> Finding:
    return Finding(
        Link.NVML,
        Condition.MIG_CONFIGURED,
        Verdict.FAILS,
        because,
        reason,
        heals=Heals.CONFIGURATION,
        blocks=False,
        next_step=next_step,
    )
