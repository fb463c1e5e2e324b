"""What the kernel's log says, held against what PCI and NVML show now: an old line holds nobody for
ever.

Only lines since the module's last load count, and a GPU that NVML showed after its line is well
again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ...model.condition import Condition, Link
from ...model.finding import Finding, Scope, Verdict
from ...model.kernel import KernelEntry, KernelEvent
from ...model.reading import Refusal, Seen
from ...model.reason import Reason
from ...model.snapshot import Gpu, ProbeReport, Snapshot
from ..common import xids
from .inventory import GpuInventory, ProbeAssessment

PROBING_S = 60.0
"""The module looks at each GPU before it says that it is loaded."""
WARNS_FOR_S = 86400.0
GSP_REST_S = 300.0
"""NVML is not asked so long after a GPU's own processor fell silent: a probe would hang, a reset
takes a while."""
SHOWN = 3
_GPUS_OWN = (
    KernelEvent.LOST,
    KernelEvent.DEAD,
    KernelEvent.REGION,
    KernelEvent.POWER,
    KernelEvent.FIRMWARE,
    KernelEvent.GSP,
    KernelEvent.INIT_FAILED,
    KernelEvent.XID,
)


def _words(snapshot: Snapshot) -> tuple[KernelEntry, ...]:
    return snapshot.hardware.kernel.value_or(())


def _last(words: Iterable[KernelEntry]) -> KernelEntry | None:
    return max(words, key=lambda w: w.at, default=None)


def loaded_at(snapshot: Snapshot) -> float:
    """When the module was last loaded; boottime, seconds. 0.0 where the log does not go back so
    far: inode times under /sys and /proc tell when somebody first looked, and no other level
    does."""
    return max((w.at for w in _words(snapshot) if w.event is KernelEvent.LOADED), default=0.0)


def newest(snapshot: Snapshot, bus_ids: Collection[str], *event: KernelEvent) -> KernelEntry | None:
    """The newest line about one of these GPUs, of the module that is loaded now."""
    since = (
        loaded_at(snapshot) if isinstance(snapshot.hardware.driver_version, Seen) else float("inf")
    )
    return _last(
        w for w in _words(snapshot) if w.event in event and w.bus_id in bus_ids and w.at >= since
    )


def said_since(snapshot: Snapshot, at: float) -> KernelEntry | None:
    """The newest line about any GPU of its own since then (boottime, seconds)."""
    return _last(w for w in _words(snapshot) if w.event in _GPUS_OWN and w.at >= at)


def silent_gsp(
    snapshot: Snapshot, gpus: GpuInventory, assessment: ProbeAssessment, report: ProbeReport | None
) -> KernelEntry | None:
    """A GPU whose processor fell silent, and that NVML has not shown well since."""
    well = {g.bus_id for g in assessment.gpus} - set(assessment.missing) if report else set()
    found = newest(snapshot, gpus.candidates, KernelEvent.GSP)
    if found is None or (report and report.started_at > found.at and found.bus_id in well):
        return None
    return found


def disturbed_at(snapshot: Snapshot, assessment: ProbeAssessment) -> float:
    """The newest line of a GPU that NVML showed: is it still there?"""
    found = newest(snapshot, {g.bus_id for g in assessment.gpus}, KernelEvent.LOST, KernelEvent.GSP)
    return found.at if found else 0.0


def rejected(snapshot: Snapshot) -> KernelEntry | None:
    """A module was refused and none was loaded since. Newer kernels do not say which: the installed
    one that is not loaded is meant."""
    return _last(
        w
        for w in _words(snapshot)
        if w.event is KernelEvent.REJECTED and w.at >= loaded_at(snapshot)
    )


def unfit(snapshot: Snapshot, is_uvm: bool) -> KernelEntry | None:
    """The module nvidia, or nvidia-uvm, was refused as built for another kernel or for another
    nvidia, and the module nvidia was not loaded since."""
    return _last(
        w
        for w in _words(snapshot)
        if w.event is KernelEvent.UNFIT
        and ("uvm" in w.client) is is_uvm
        and w.at >= loaded_at(snapshot)
    )


def wants_reset(snapshot: Snapshot, gpus: Iterable[Gpu]) -> tuple[KernelEntry, ...]:
    """The newest Xid of each GPU after which it is to be reset. A driver that tells by NVML what it
    wants is believed; of another nobody sees a reset, but for an Xid 154 that takes its word
    back."""
    asked = {g.bus_id for g in gpus if not g.state.recovery}
    over = {
        w.bus_id: w.at
        for w in _words(snapshot)
        if w.xid == xids.RECOVERY and not xids.recovery(w.line)
    }
    found = {
        w.bus_id: w
        for w in _words(snapshot)
        if w.bus_id in asked
        and xids.is_reset(w.xid, w.line)
        and w.at >= max(loaded_at(snapshot), over.get(w.bus_id, 0.0))
    }
    return tuple(found[bus_id] for bus_id in sorted(found))


def unsupported(snapshot: Snapshot, bus_ids: Collection[str]) -> KernelEntry | None:
    """A line without a bus id is of one of those that nobody has bound."""
    return _when_loaded(snapshot, {*bus_ids, ""} if bus_ids else (), KernelEvent.UNSUPPORTED)


def dead(snapshot: Snapshot, bus_ids: Collection[str]) -> KernelEntry | None:
    """One of these did not answer the module that is loaded now."""
    return _when_loaded(snapshot, bus_ids, KernelEvent.DEAD)


def no_region(snapshot: Snapshot, bus_ids: Collection[str]) -> KernelEntry | None:
    """One of these has no memory window, and the module did not bind it."""
    return _when_loaded(snapshot, bus_ids, KernelEvent.REGION)


def _when_loaded(
    snapshot: Snapshot, bus_ids: Collection[str], event: KernelEvent
) -> KernelEntry | None:
    return _last(
        w
        for w in _words(snapshot)
        if w.event is event and w.bus_id in bus_ids and w.at >= loaded_at(snapshot) - PROBING_S
    )


def client_version(snapshot: Snapshot) -> str:
    """Of the last client that the module refused; only to be cited: it may have been any
    container's."""
    found = [w.client for w in _words(snapshot) if w.event is KernelEvent.MISMATCH]
    return found[-1] if found else ""


def cited(snapshot: Snapshot, word: KernelEntry | None) -> str:
    """Its line, with its age, to be put behind a sentence."""
    return (
        f"; the kernel, {snapshot.clock.boottime - word.at:.0f} s ago: {word.line[:160]}"
        if word
        else ""
    )


def findings(snapshot: Snapshot, gpus: GpuInventory) -> tuple[Finding, ...]:
    """A warning of what the GPUs here said in the last day; whether they work is NVML's to say."""
    if gpus.scope is Scope.NONE or isinstance(snapshot.hardware.kernel, Refusal):
        return _unread(snapshot, gpus)
    recent = [
        w
        for w in _words(snapshot)
        if w.event in _GPUS_OWN
        and w.at >= loaded_at(snapshot)
        and w.at > snapshot.clock.boottime - WARNS_FOR_S
        and not _is_elsewhere(w, gpus)
    ]
    if not recent:
        return ()
    more = f" and {len(recent) - SHOWN} more" if len(recent) > SHOWN else ""
    lines = "; ".join(_advised(w) for w in recent[-SHOWN:])
    return (
        Finding(
            Link.NVML,
            Condition.KERNEL_LOG_QUIET,
            Verdict.FAILS,
            f"the kernel said: {lines}{more}",
            Reason.KERNEL_REPORTS,
            tuple(sorted({w.bus_id for w in recent if w.bus_id})),
            blocks=False,
            next_step="dmesg -T | grep -E 'NVRM|SXid|nvidia'; NVIDIA's Xid catalogue says what "
            "each wants",
        ),
    )


def _advised(word: KernelEntry) -> str:
    wants = xids.wants(word.xid, word.line)
    number = f"Xid {word.xid}: " if word.xid else ""
    return word.line[:160] + (f" ({number}{wants})" if wants else "")


def _is_elsewhere(word: KernelEntry, gpus: GpuInventory) -> bool:
    return word.bus_id in {bus_id for bus_id, _ in gpus.elsewhere}


def _unread(snapshot: Snapshot, gpus: GpuInventory) -> tuple[Finding, ...]:
    kernel = snapshot.hardware.kernel
    if gpus.scope is Scope.NONE or isinstance(kernel, Seen) or kernel.is_missing:
        return ()
    return (
        Finding(
            Link.NVML,
            Condition.KERNEL_LOG_QUIET,
            Verdict.UNKNOWN,
            f"the kernel's log was not read ({kernel})",
            Reason.KERNEL_LOG_UNREADABLE,
            missing=("/dev/kmsg",),
            blocks=False,
            next_step="as root: dmesg -T | tail",
        ),
    )
