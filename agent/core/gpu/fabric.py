"""Link 4: is the NVSwitch fabric ready for each GPU that is part of one? Each GPU's own state is
asked, never a unit: on GB200 the fabric manager's unit is inactive and the fabric complete."""

from __future__ import annotations

from collections.abc import Sequence

from ...model.condition import Condition, Link
from ...model.finding import Finding, Heals, Verdict
from ...model.reading import Seen
from ...model.reason import Reason
from ...model.settings import Settings
from ...model.snapshot import Gpu, ProbeState, Snapshot
from ..common.watched import FABRIC_MANAGER
from .inventory import ProbeAssessment, is_passthrough

DONE = "completed"
PENDING = ("not started", "in progress")
NONE = "not supported"
DRIVER_CONTAINER = "/run/nvidia/driver/"
"""Where the GPU Operator's driver container keeps its root; it runs a fabric manager of its own."""


def may_have_one(snapshot: Snapshot, gpus: Sequence[Gpu]) -> bool:
    """NVSwitches are here, or a GPU that does not say that it is part of no fabric."""
    return _has_switches(snapshot) or not gpus or any(g.state.fabric != NONE for g in gpus)


def _has_switches(snapshot: Snapshot) -> bool:
    return any(
        f.is_switch and not is_passthrough(f.driver) for f in snapshot.hardware.pci.value_or(())
    )


def unmanaged(
    snapshot: Snapshot, settings: Settings, assessment: ProbeAssessment
) -> Finding | None:
    """NVSwitches on PCI want a fabric manager on this very host (GB200 has none on PCI; a host that
    shares them runs it as well). A GPU whose fabric is complete proves that there is one."""
    if (
        settings.fabric == "ignore"
        or not isinstance(snapshot.boot.units, Seen)
        or not assessment.gpus
        or not _has_switches(snapshot)
        or any(g.state.fabric == DONE for g in assessment.gpus)
    ):
        return None
    last = snapshot.hardware.probe.value_or(ProbeState()).last
    unit = next((u for u in snapshot.boot.units.value if u.name == FABRIC_MANAGER), None)
    if (
        unit is None
        or unit.active != "inactive"
        or (last and last.library.startswith(DRIVER_CONTAINER))
    ):
        return None
    is_here = unit.load == "loaded"
    lacks = f"{FABRIC_MANAGER} does not run" if is_here else f"no {FABRIC_MANAGER} is installed"
    return Finding(
        Link.FABRIC,
        Condition.FABRIC_MANAGER_ACTIVE,
        Verdict.FAILS,
        f"NVSwitches are on the PCI bus, and {lacks}: CUDA would say 802",
        Reason.FABRIC_MANAGER_INACTIVE,
        blocks=False,
        heals=Heals.SOON,
        next_step=f"systemctl enable --now {FABRIC_MANAGER}"
        if is_here
        else "install nvidia-fabricmanager in the version of the driver",
    )


def find(settings: Settings, assessment: ProbeAssessment) -> Finding | None:
    """None where no GPU is part of a fabric, or Fabric=ignore."""
    if settings.fabric == "ignore":
        return None
    complete = [g for g in assessment.gpus if g.state.fabric == DONE]
    failed = [g for g in complete if g.state.fabric_status]
    pending = [g for g in assessment.gpus if g.state.fabric in PENDING]
    done = len(complete) - len(failed)
    if failed:
        return _failed(settings, failed)
    if pending:
        states = " and ".join(sorted({g.state.fabric for g in pending}))
        others = f", that of {done} is complete" if done else ""
        return _fails(
            settings,
            f"the fabric of {len(pending)} of {len(assessment.gpus)} GPUs is {states}{others}: "
            "CUDA would say 802",
            Reason.FABRIC_PENDING,
            [g.bus_id for g in pending],
        )
    if not done:
        return None
    because = f"the fabric of {done} GPUs is complete"
    return Finding(Link.FABRIC, Condition.FABRIC_READY, Verdict.HOLDS, because)


def _failed(settings: Settings, gpus: list[Gpu]) -> Finding:
    codes = ", ".join(map(str, sorted({g.state.fabric_status for g in gpus})))
    bus_ids = [g.bus_id for g in gpus]
    because = f"the fabric of {', '.join(bus_ids)} failed (NVML {codes})"
    return _fails(settings, because, Reason.FABRIC_FAILED, bus_ids)


def _fails(settings: Settings, because: str, reason: Reason, missing: list[str]) -> Finding:
    return Finding(
        Link.FABRIC,
        Condition.FABRIC_READY,
        Verdict.FAILS,
        because,
        reason,
        tuple(missing),
        heals=Heals.SOON,
        blocks=settings.fabric == "require",
        next_step="nvidia-smi -q | grep -A2 Fabric; journalctl -u nvidia-fabricmanager; where "
        "NVSwitches are shared "
        "this is their rest: [Gate] Fabric=prefer",
    )
