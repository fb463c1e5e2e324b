"""Link 5: what a GPU that NVML shows says of itself and wants of a person. Warnings: such a GPU
works."""

from __future__ import annotations

from ...model.condition import Condition, Link
from ...model.finding import Finding, Verdict
from ...model.gpu import GpuState
from ...model.reason import Reason
from .inventory import ProbeAssessment

RESET_REQUIRED = 16
"NVML_ERROR_RESET_REQUIRED, nvidia-ml-py 13.615.71"
RESET = "when it is idle: nvidia-smi --gpu-reset -i BUS-ID, or reboot the drained node"


def findings(assessment: ProbeAssessment) -> tuple[Finding, ...]:
    found = [(g.bus_id, *said) for g in assessment.gpus for said in _wants(g.state)]
    if not found:
        return ()
    words = "; ".join(f"{bus_id}: {what}" for bus_id, what, _ in found)
    return (
        Finding(
            Link.NVML,
            Condition.NO_GPU_MAINTENANCE_PENDING,
            Verdict.FAILS,
            words,
            Reason.GPU_WANTS_ATTENTION,
            tuple(sorted({bus_id for bus_id, _, _ in found})),
            blocks=False,
            next_step="; ".join(dict.fromkeys(step for _, _, step in found)),
        ),
    )


def _wants(state: GpuState) -> list[tuple[str, str]]:
    """(what is seen, what to do)."""
    found = []
    if state.trouble == RESET_REQUIRED:
        found.append(("NVML says that it wants a reset (16)", RESET))
    if state.remap_failed:
        found.append(("a row of its memory could not be remapped", "take the GPU to its vendor"))
    if state.remap_pending:
        found.append(("rows of its memory wait to be remapped", RESET))
    if state.ecc_pending is not None and state.ecc_pending != state.ecc:
        found.append((f"ECC will be {'on' if state.ecc_pending else 'off'} after a reset", RESET))
    if state.mig_pending is not None and state.mig_pending != state.mig:
        found.append(
            (f"MIG mode will be {'on' if state.mig_pending else 'off'} after a reset", RESET)
        )
    if state.recovery not in ("", "none"):
        found.append((f"the driver wants: {state.recovery}", RESET))
    return found
