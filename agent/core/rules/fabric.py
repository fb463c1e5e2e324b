"""Link 4: is the NVSwitch fabric ready for each GPU that is part of one? Each GPU's own state is asked, never a unit:
on GB200 the fabric manager's unit is inactive and the fabric complete."""

from __future__ import annotations

from ...model.finding import Finding, Heals, Verdict
from ...model.settings import Settings
from .gpus import Judged

DONE = "completed"
PENDING = ("not started", "in progress")


def find(settings: Settings, judged: Judged) -> Finding | None:
    """None where no GPU is part of a fabric, or nobody wants to know."""
    if settings.fabric == "ignore":
        return None
    failed = [g.bus_id for g in judged.gpus if g.state.fabric == DONE and g.state.fabric_status]
    pending = [g for g in judged.gpus if g.state.fabric in PENDING]
    done = sum(g.state.fabric == DONE for g in judged.gpus) - len(failed)
    if failed:
        codes = {g.state.fabric_status for g in judged.gpus if g.bus_id in failed}
        return _fails(settings, f"the fabric of {', '.join(failed)} failed (NVML "
                      f"{', '.join(map(str, sorted(codes)))})", "FabricFailed", failed)
    if pending:
        states = " and ".join(sorted({g.state.fabric for g in pending}))
        return _fails(settings, f"the fabric of {len(pending)} of {len(judged.gpus)} GPUs is {states}: CUDA would "
                      "say 802", "FabricPending", [g.bus_id for g in pending])
    if done:
        return Finding(4, "FabricReady", Verdict.HOLDS, f"the fabric of {done} GPUs is complete")
    return None


def _fails(settings: Settings, because: str, reason: str, missing: list[str]) -> Finding:
    return Finding(
        4, "FabricReady", Verdict.FAILS, because, reason, tuple(missing),
        heals=Heals.SOON, blocks=settings.fabric == "require",
        next_step="nvidia-smi -q | grep -A2 Fabric; journalctl -u nvidia-fabricmanager; where NVSwitches are shared "
                  "this is their rest: [Gate] Fabric=prefer")
