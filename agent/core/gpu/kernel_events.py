"""What the kernel's log says, held against what PCI and NVML show now: an old line holds nobody for
ever.

Only lines since the module's last load count, and a GPU that NVML showed after its line is well
again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ...model.finding import Finding, Scope, Verdict
from ...model.kernel import KernelWord, Tells
from ...model.reading import Refusal, Seen
from ...model.snapshot import Gpu, ProbeReport, Scene
from ..common import xids
from .inventory import Judged, SortedGpus

PROBING_S = 60.0
"""The module looks at each GPU before it says that it is loaded."""
WARNS_FOR_S = 86400.0
GSP_REST_S = 300.0
"""NVML is not asked so long after a GPU's own processor fell silent: a probe would hang, a reset
takes a while."""
SHOWN = 3
_GPUS_OWN = (
    Tells.LOST,
    Tells.DEAD,
    Tells.REGION,
    Tells.POWER,
    Tells.FIRMWARE,
    Tells.GSP,
    Tells.INIT_FAILED,
    Tells.XID,
)


def _words(scene: Scene) -> tuple[KernelWord, ...]:
    return scene.kernel.value_or(())


def _last(words: Iterable[KernelWord]) -> KernelWord | None:
    return max(words, key=lambda w: w.at, default=None)


def loaded_at(scene: Scene) -> float:
    """When the module was last loaded; boottime, seconds. 0.0 where the log does not go back so
    far: inode times under /sys and /proc tell when somebody first looked, and no other level
    does."""
    return max((w.at for w in _words(scene) if w.tells is Tells.LOADED), default=0.0)


def newest(scene: Scene, bus_ids: Collection[str], *tells: Tells) -> KernelWord | None:
    """The newest line about one of these GPUs, of the module that is loaded now."""
    since = loaded_at(scene) if isinstance(scene.driver_version, Seen) else float("inf")
    return _last(
        w for w in _words(scene) if w.tells in tells and w.bus_id in bus_ids and w.at >= since
    )


def said_since(scene: Scene, at: float) -> KernelWord | None:
    """The newest line about any GPU of its own since then (boottime, seconds)."""
    return _last(w for w in _words(scene) if w.tells in _GPUS_OWN and w.at >= at)


def silent_gsp(
    scene: Scene, gpus: SortedGpus, judged: Judged, report: ProbeReport | None
) -> KernelWord | None:
    """A GPU whose processor fell silent, and that NVML has not shown well since."""
    well = {g.bus_id for g in judged.gpus} - set(judged.missing) if report else set()
    found = newest(scene, gpus.candidates, Tells.GSP)
    if found is None or (report and report.started_at > found.at and found.bus_id in well):
        return None
    return found


def disturbed_at(scene: Scene, judged: Judged) -> float:
    """The newest line of a GPU that NVML showed: is it still there?"""
    found = newest(scene, {g.bus_id for g in judged.gpus}, Tells.LOST, Tells.GSP)
    return found.at if found else 0.0


def rejected(scene: Scene) -> KernelWord | None:
    """A module was refused and none was loaded since. Newer kernels do not say which: the installed
    one that is not loaded is meant."""
    return _last(w for w in _words(scene) if w.tells is Tells.REJECTED and w.at >= loaded_at(scene))


def unfit(scene: Scene, is_uvm: bool) -> KernelWord | None:
    """The module nvidia, or nvidia-uvm, was refused as built for another kernel or for another
    nvidia, and the module nvidia was not loaded since."""
    return _last(
        w
        for w in _words(scene)
        if w.tells is Tells.UNFIT and ("uvm" in w.client) is is_uvm and w.at >= loaded_at(scene)
    )


def wants_reset(scene: Scene, gpus: Iterable[Gpu]) -> tuple[KernelWord, ...]:
    """The newest Xid of each GPU after which it is to be reset. A driver that tells by NVML what it
    wants is believed; of another nobody sees a reset, but for an Xid 154 that takes its word
    back."""
    asked = {g.bus_id for g in gpus if not g.state.recovery}
    over = {
        w.bus_id: w.at
        for w in _words(scene)
        if w.xid == xids.RECOVERY and not xids.recovery(w.line)
    }
    found = {
        w.bus_id: w
        for w in _words(scene)
        if w.bus_id in asked
        and xids.is_reset(w.xid, w.line)
        and w.at >= max(loaded_at(scene), over.get(w.bus_id, 0.0))
    }
    return tuple(found[bus_id] for bus_id in sorted(found))


def unsupported(scene: Scene, bus_ids: Collection[str]) -> KernelWord | None:
    """A line without a bus id is of one of those that nobody has bound."""
    return _when_loaded(scene, {*bus_ids, ""} if bus_ids else (), Tells.UNSUPPORTED)


def dead(scene: Scene, bus_ids: Collection[str]) -> KernelWord | None:
    """One of these did not answer the module that is loaded now."""
    return _when_loaded(scene, bus_ids, Tells.DEAD)


def no_region(scene: Scene, bus_ids: Collection[str]) -> KernelWord | None:
    """One of these has no memory window, and the module did not bind it."""
    return _when_loaded(scene, bus_ids, Tells.REGION)


def _when_loaded(scene: Scene, bus_ids: Collection[str], tells: Tells) -> KernelWord | None:
    return _last(
        w
        for w in _words(scene)
        if w.tells is tells and w.bus_id in bus_ids and w.at >= loaded_at(scene) - PROBING_S
    )


def client_version(scene: Scene) -> str:
    """Of the last client that the module refused; only to be cited: it may have been any
    container's."""
    found = [w.client for w in _words(scene) if w.tells is Tells.MISMATCH]
    return found[-1] if found else ""


def cited(scene: Scene, word: KernelWord | None) -> str:
    """Its line, with its age, to be put behind a sentence."""
    return (
        f"; the kernel, {scene.clock.boottime - word.at:.0f} s ago: {word.line[:160]}"
        if word
        else ""
    )


def findings(scene: Scene, gpus: SortedGpus) -> tuple[Finding, ...]:
    """A warning of what the GPUs here said in the last day; whether they work is NVML's to say."""
    if gpus.scope is Scope.NONE or isinstance(scene.kernel, Refusal):
        return _unread(scene, gpus)
    recent = [
        w
        for w in _words(scene)
        if w.tells in _GPUS_OWN
        and w.at >= loaded_at(scene)
        and w.at > scene.clock.boottime - WARNS_FOR_S
        and not _is_elsewhere(w, gpus)
    ]
    if not recent:
        return ()
    more = f" and {len(recent) - SHOWN} more" if len(recent) > SHOWN else ""
    lines = "; ".join(_advised(w) for w in recent[-SHOWN:])
    return (
        Finding(
            5,
            "KernelLogQuiet",
            Verdict.FAILS,
            f"the kernel said: {lines}{more}",
            "KernelReports",
            tuple(sorted({w.bus_id for w in recent if w.bus_id})),
            blocks=False,
            next_step="dmesg -T | grep -E 'NVRM|SXid|nvidia'; NVIDIA's Xid catalogue says what "
            "each wants",
        ),
    )


def _advised(word: KernelWord) -> str:
    wants = xids.wants(word.xid, word.line)
    number = f"Xid {word.xid}: " if word.xid else ""
    return word.line[:160] + (f" ({number}{wants})" if wants else "")


def _is_elsewhere(word: KernelWord, gpus: SortedGpus) -> bool:
    return word.bus_id in {bus_id for bus_id, _ in gpus.elsewhere}


def _unread(scene: Scene, gpus: SortedGpus) -> tuple[Finding, ...]:
    kernel = scene.kernel
    if gpus.scope is Scope.NONE or isinstance(kernel, Seen) or kernel.is_missing:
        return ()
    return (
        Finding(
            5,
            "KernelLogQuiet",
            Verdict.UNKNOWN,
            f"the kernel's log was not read ({kernel})",
            "KernelLogUnreadable",
            missing=("/dev/kmsg",),
            blocks=False,
            next_step="as root: dmesg -T | tail",
        ),
    )
