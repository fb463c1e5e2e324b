"""Link 5: does NVML enumerate every expected GPU? Stability over several probes is the gate's to
count."""

from __future__ import annotations

from dataclasses import replace

from ...model.condition import Condition, Link
from ...model.finding import Finding, Heals, Scope, Verdict
from ...model.kernel import KernelEvent
from ...model.reading import Seen
from ...model.reason import Reason
from ...model.settings import Settings
from ...model.snapshot import DeviceNode, Gpu, NvmlError, ProbeEnd, ProbeReport, Remains, Snapshot
from ..common import parse
from . import kernel_events as kernel_log
from . import nvml_codes
from .device_nodes import missing_nodes
from .inventory import GpuInventory, ProbeAssessment
from .pci import expected_number
from .tegra import INTEGRATED, TEGRA

NO_NVML = (nvml_codes.LIBRARY_NOT_FOUND, nvml_codes.DRIVER_NOT_LOADED)
"""Of a Tegra: no library, or (nvgpu) no /proc/driver/nvidia/version, without which it is not
asked."""


def judge(snapshot: Snapshot, settings: Settings, gpus: GpuInventory) -> ProbeAssessment:
    report = (
        snapshot.hardware.probe.value.last if isinstance(snapshot.hardware.probe, Seen) else None
    )
    if report is None:
        return ProbeAssessment(
            gpus.candidates, _wanted(settings, gpus.candidates), (), gpus.candidates, (), ""
        )
    if gpus.bound == (TEGRA,):
        return _on_soc(report)
    elsewhere = {bus_id for bus_id, _ in gpus.elsewhere}
    expected = tuple(b for b in gpus.candidates if b not in report.excluded)
    shown = tuple(g for g in report.gpus if g.bus_id not in elsewhere and not _is_lost(g))
    missing = _missing(settings, expected, shown)
    errors = _errors(report, bool(missing))
    fingerprint = ""
    if not missing and not errors:
        fingerprint = _clean_fingerprint(snapshot, report, shown)
    return ProbeAssessment(
        expected, _wanted(settings, expected), shown, missing, errors, fingerprint
    )


def _clean_fingerprint(snapshot: Snapshot, report: ProbeReport, shown: tuple[Gpu, ...]) -> str:
    """Of a complete answer whose device nodes are there; "" for any other."""
    if report.end is not ProbeEnd.ANSWERED or not shown or missing_nodes(snapshot, shown):
        return ""
    return _fingerprint(report, shown, snapshot.hardware.nodes.value_or(()))


def _is_lost(gpu: Gpu) -> bool:
    """A GPU that can be opened, and reports at the next question that it is lost, is not there."""
    return gpu.state.trouble == nvml_codes.GPU_IS_LOST


def _errors(report: ProbeReport, is_short: bool) -> tuple[NvmlError, ...]:
    """An error of one GPU counts where that leaves the set short: the owner may expect fewer GPUs
    than PCI shows."""
    lost = tuple(
        NvmlError(nvml_codes.GPU_IS_LOST, "NVML", n, g.bus_id)
        for n, g in enumerate(report.gpus)
        if _is_lost(g)
    )
    return tuple(e for e in report.errors + lost if e.index < 0 or is_short)


def _on_soc(report: ProbeReport) -> ProbeAssessment:
    """One GPU, NVML's word optional: what the driver shows is enough where the library is not
    there."""
    absent = report.end is ProbeEnd.ERROR and all(e.code in NO_NVML for e in report.errors)
    errors = () if absent else report.errors
    shown = (INTEGRATED,) if absent else report.gpus
    clean = bool(shown) and not errors and (absent or report.end is ProbeEnd.ANSWERED)
    return ProbeAssessment(
        (TEGRA,),
        1,
        shown,
        () if shown else (TEGRA,),
        errors,
        _fingerprint(report, shown, ()) if clean else "",
    )


def _wanted(settings: Settings, expected: tuple[str, ...]) -> int:
    number = expected_number(settings)
    return number if number is not None else len(settings.expected_gpus or expected)


def _missing(
    settings: Settings, expected: tuple[str, ...], shown: tuple[Gpu, ...]
) -> tuple[str, ...]:
    number = expected_number(settings)
    if (
        number is not None
    ):  # the owner's word overrides PCI: 7 may be right on a node with a dead GPU
        short = number - len(shown)
        if short <= 0:
            return ()
        by_bus = tuple(b for b in expected if b not in {g.bus_id for g in shown})
        return by_bus or (f"{short} GPUs",)
    if settings.expected_gpus:
        return tuple(u for u in settings.expected_gpus if u not in {g.uuid for g in shown})
    return tuple(b for b in expected if b not in {g.bus_id for g in shown})


def _fingerprint(report: ProbeReport, shown: tuple[Gpu, ...], nodes: tuple[DeviceNode, ...]) -> str:
    """What must stay equal: UUID and bus id of each GPU, the device nodes' numbers, the driver's
    version."""
    paths = {"/dev/nvidiactl"} | {f"/dev/nvidia{g.minor}" for g in shown}
    numbers = sorted(f"{n.path}={n.major}:{n.minor}" for n in nodes if n.path in paths)
    return " ".join(
        [report.driver_version, *sorted(f"{g.uuid}@{g.bus_id}" for g in shown), *numbers]
    )


def findings(
    snapshot: Snapshot, gpus: GpuInventory, assessment: ProbeAssessment
) -> tuple[Finding, ...]:
    if gpus.scope is Scope.NONE:
        return ()
    state = snapshot.hardware.probe.value_or(None)
    now = snapshot.clock.boottime
    silent = kernel_log.silent_gsp(snapshot, gpus, assessment, state.last if state else None)
    if silent:
        return (
            _fails(
                f"the processor of {silent.bus_id} no longer answers its driver"
                + kernel_log.cited(snapshot, silent),
                Reason.GSP_TIMEOUT,
                Heals.NEVER,
                "drain the node, then nvidia-smi --gpu-reset, or reboot; asking NVML would hang",
                (silent.bus_id,),
            ),
        )
    if state and state.remains:
        return (_hung(state.remains, now),)
    if state is None or state.last is None:
        because = (
            f"first probe under way for {now - state.running_since:.0f} s"
            if state and state.running_since is not None
            else "no probe has been made"
        )
        return (
            Finding(
                Link.NVML,
                Condition.NVML_COMPLETE,
                Verdict.UNKNOWN,
                because,
                Reason.NOT_PROBED,
                missing=("an NVML probe",),
                next_step="gpu-gate probe",
            ),
        )
    found = [
        replace(
            _complete(snapshot, state.last, assessment),
            age_s=round(max(0.0, now - state.last.ended_at), 1),
        )
    ]
    if isinstance(snapshot.boot.learned, Seen):
        found += _learned(snapshot.boot.learned.value, assessment)
    return tuple(found)


def _hung(remains: Remains, now: float) -> Finding:
    return Finding(
        Link.NVML,
        Condition.NVML_COMPLETE,
        Verdict.FAILS,
        f"probe hung, pid {remains.pid}, state {remains.state}, wchan {remains.wchan or '?'}, "
        f"{now - remains.since:.0f} s",
        Reason.PROBE_HUNG,
        missing=("an answer from NVML",),
        next_step=f"cat /proc/{remains.pid}/stack; dmesg | grep -E 'NVRM|Xid'; a driver that "
        "hangs wants a reboot",
    )


def _complete(snapshot: Snapshot, report: ProbeReport, assessment: ProbeAssessment) -> Finding:
    if report.end is ProbeEnd.HUNG:
        return _fails(report.detail, Reason.PROBE_HUNG, Heals.SOON, "dmesg | grep -E 'NVRM|Xid'")
    if report.end is ProbeEnd.BROKEN:
        return _fails(
            f"the probe failed: {report.detail}", Reason.PROBE_BROKEN, Heals.SOON, "gpu-gate probe"
        )
    worst = _worst(assessment.errors)
    if worst is not None:
        return _refused(snapshot, report, assessment, worst)
    if assessment.missing:
        return _absent(snapshot, assessment)
    if not assessment.gpus:
        return _fails("NVML enumerates no GPU", Reason.GPU_MISSING, Heals.SOON, "nvidia-smi -L")
    because = f"NVML enumerates {len(assessment.gpus)} of {assessment.wanted} GPUs"
    if assessment.gpus == (INTEGRATED,):
        because = "the driver of a Tegra's GPU is there, and no NVML to ask"
    return Finding(Link.NVML, Condition.NVML_COMPLETE, Verdict.HOLDS, because)


def _is_by_uuid(assessment: ProbeAssessment) -> bool:
    return any(m.startswith("GPU-") for m in assessment.missing)


def _count(assessment: ProbeAssessment) -> str:
    shown = len(assessment.gpus)
    if _is_by_uuid(assessment):
        shown = assessment.wanted - len(assessment.missing)
    return f"{shown} of {assessment.wanted}"


def _refused(
    snapshot: Snapshot, report: ProbeReport, assessment: ProbeAssessment, worst: NvmlError
) -> Finding:
    """NVML answered a call with an error: of the library as a whole, or (index >= 0) of one GPU."""
    said = f"{worst.call} said {nvml_codes.name_of(worst.code)}"
    if worst.index >= 0:
        said = (
            f"{_count(assessment)}: {worst.call} for {worst.bus_id or f'index {worst.index}'} said "
            f"{nvml_codes.name_of(worst.code)}"
        )
    if worst.code == nvml_codes.MISMATCH:
        said += _versions(snapshot, report)
    elif worst.index >= 0:
        if assessment.missing:
            said += f"; missing {', '.join(assessment.missing)}"
        kinds = (KernelEvent.LOST, KernelEvent.INIT_FAILED)
        line = kernel_log.newest(snapshot, assessment.missing, *kinds)
        said += kernel_log.cited(snapshot, line)
    return _fails(
        said,
        _reason_of(worst.code),
        nvml_codes.heals(worst.code),
        nvml_codes.next_step(worst.code),
        assessment.missing,
    )


def _absent(snapshot: Snapshot, assessment: ProbeAssessment) -> Finding:
    """NVML does not show a GPU that is expected, and reports no error."""
    missing = assessment.missing
    where = "" if _is_by_uuid(assessment) else " on PCI,"
    because = f"{_count(assessment)}: {', '.join(missing)}{where} absent from NVML"
    lost = kernel_log.newest(snapshot, missing, KernelEvent.LOST)
    if fell := lost or kernel_log.dead(snapshot, missing):
        return _fails(
            because + kernel_log.cited(snapshot, fell),
            Reason.GPU_FELL_OFF_BUS,
            Heals.NEVER,
            nvml_codes.next_step(nvml_codes.GPU_IS_LOST),
            missing,
        )
    failed = kernel_log.newest(snapshot, missing, KernelEvent.INIT_FAILED)
    return _fails(
        because + kernel_log.cited(snapshot, failed),
        Reason.GPU_MISSING,
        Heals.SOON,
        "dmesg | grep -E 'NVRM|Xid'; nvidia-smi -L",
        missing,
    )


def _versions(snapshot: Snapshot, report: ProbeReport) -> str:
    """Both of them, as far as they are known."""
    module = snapshot.hardware.driver_version.value_or("?")
    named = parse.library_version(report.library)
    library = named if named not in ("", module) else kernel_log.client_version(snapshot)
    return f"; the loaded module is {module}, the library {library or 'another'}"


def _reason_of(code: int) -> Reason:
    """NVML_ERROR_GPU_IS_LOST is Reason.NVML_GPU_IS_LOST."""
    known = nvml_codes.CODES.get(code)
    name = known[0].replace("NVML_ERROR_", "NVML_") if known else "NVML_OTHER"
    return Reason[name]


def _worst(errors: tuple[NvmlError, ...]) -> NvmlError | None:
    """The error that decides: one that cannot heal before one that can."""
    rank = {Heals.NEVER: 0, Heals.CONFIGURATION: 1, Heals.SOON: 2}
    return min(errors, key=lambda e: rank[nvml_codes.heals(e.code)], default=None)


def _fails(
    because: str, reason: Reason, heals: Heals, next_step: str, missing: tuple[str, ...] = ()
) -> Finding:
    return Finding(
        Link.NVML,
        Condition.NVML_COMPLETE,
        Verdict.FAILS,
        because,
        reason,
        missing=missing,
        heals=heals,
        next_step=next_step,
    )


def _learned(learned: tuple[str, ...], assessment: ProbeAssessment) -> list[Finding]:
    gone = tuple(b for b in learned if b not in assessment.expected)
    if not gone:
        return []
    return [
        Finding(
            Link.NVML,
            Condition.GPU_SET_UNCHANGED,
            Verdict.FAILS,
            f"earlier boots of this machine showed {', '.join(gone)} as well",
            Reason.FEWER_THAN_BEFORE,
            missing=gone,
            blocks=False,
            next_step="if that is on purpose: gpu-gate forget",
        )
    ]
