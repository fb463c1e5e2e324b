"""Link 6: can the runtime give containers their GPUs? CDI specs judged by what they name, never by
their age.

A broken spec closes readiness only where containers are given GPUs by CDI names: elsewhere the
runtime's hook, or a spec the runtime makes by itself (jit-cdi), does it, and a spec that lies about
is none of their business.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ...model.cdi import CdiFile, CdiSpec, Refresh, Toolkit
from ...model.condition import Condition, Link
from ...model.finding import Finding, Heals, Scope, Verdict
from ...model.reading import Refusal, Seen
from ...model.reason import Reason
from ...model.snapshot import Gpu, ProbeState, Snapshot, Unit
from ..access import containers
from ..common.watched import CDI_UNIT
from ..gpu import driver
from ..gpu.inventory import GpuInventory, ProbeAssessment
from . import specs as cdi
from .collect import SPEC_FOLDERS

GENERATE = "nvidia-ctk cdi generate --output="
OUTPUT = "/var/run/cdi/nvidia.yaml"
SHOWN = 4
"""Missing paths that a sentence names."""


@dataclass(frozen=True, slots=True)
class Cdi:
    """What the specs are worth."""

    verdict: Verdict
    because: str
    reason: Reason = Reason.NONE
    missing: tuple[str, ...] = ()
    next_step: str = ""
    in_use: str = ""
    "why containers here are given GPUs by CDI names; empty where nothing says so"
    mendable: bool = False
    "by writing the spec again"
    evidence: str = ""


def judge(snapshot: Snapshot, gpus: GpuInventory, assessment: ProbeAssessment) -> Cdi | None:
    """None where nothing was asked: no GPU, or no driver yet."""
    toolkit = snapshot.toolkit
    if toolkit is None or gpus.scope is not Scope.GPUS or not driver.is_live(snapshot):
        return None
    in_use = _in_use(snapshot, toolkit)
    if isinstance(toolkit.specs, Refusal):
        return Cdi(
            Verdict.UNKNOWN,
            f"CDI specs were not read ({toolkit.specs})",
            Reason.CDI_UNKNOWN,
            in_use=in_use,
            next_step=f"ls -l {' '.join(SPEC_FOLDERS)}",
        )
    fault = next(_faults(snapshot, toolkit, toolkit.specs.value, assessment, bool(in_use)), None)
    if fault is not None:
        return _broken(fault, in_use, snapshot.hardware.driver_version.value_or(""))
    for file in toolkit.specs.value:
        if isinstance(file.spec, Refusal):  # a silent refusal: what it holds is not known
            return Cdi(
                Verdict.UNKNOWN,
                f"{file.path} was not read ({file.spec})",
                Reason.CDI_UNKNOWN,
                in_use=in_use,
            )
    specs = [
        (f.path, f.spec.value)
        for f in toolkit.specs.value
        if isinstance(f.spec, Seen) and f.spec.value
    ]
    if not specs:
        return Cdi(
            Verdict.HOLDS,
            "no CDI spec: the runtime's own hook gives containers their GPUs",
            in_use=in_use,
        )
    if isinstance(toolkit.absent, Refusal):
        return Cdi(
            Verdict.UNKNOWN,
            f"whether what the CDI specs name is there was not read ({toolkit.absent})",
            Reason.CDI_UNKNOWN,
            in_use=in_use,
        )
    return Cdi(
        Verdict.HOLDS,
        "; ".join(
            f"{path}: {s.kind}, {len(s.devices)} devices"
            + (f", driver {'/'.join(s.versions)}" if s.versions else "")
            for path, s in specs
        ),
        in_use=in_use,
    )


def _broken(fault: CdiFault, in_use: str, driver_version: str) -> Cdi:
    mendable = fault.reason is not Reason.CDI_CONFLICT
    remedy = (
        GENERATE + (fault.path or OUTPUT)
        if mendable
        else f"grep -l {cdi.KIND} /etc/cdi/* /run/cdi/*; remove one"
    )
    missing = " ".join(fault.missing)
    return Cdi(
        Verdict.FAILS,
        fault.because,
        fault.reason,
        fault.missing,
        remedy,
        in_use,
        mendable,
        f"{fault.reason} {fault.path} {missing} driver {driver_version}",
    )


def _in_use(snapshot: Snapshot, toolkit: Toolkit) -> str:
    """Only what makes containers depend on a spec; that one is there, or that the runtime could use
    it, does not."""
    for sight in snapshot.plugin.plugins:
        if isinstance(sight.detail, Seen):
            words = [
                sight.detail.value.env.get("DEVICE_LIST_STRATEGY", ""),
                *sight.detail.value.args,
            ]
            if any("cdi-annotations" in w or "cdi-cri" in w for w in words):
                return "the device plugin hands out CDI names"
    if isinstance(toolkit.mode, Seen) and toolkit.mode.value == "cdi":
        return "the NVIDIA runtime's mode is cdi"
    return ""


class CdiFault(NamedTuple):
    """What is wrong with the specs."""

    because: str
    reason: Reason
    missing: tuple[str, ...]
    path: str
    "the file"


def _faults(
    snapshot: Snapshot,
    toolkit: Toolkit,
    files: tuple[CdiFile, ...],
    assessment: ProbeAssessment,
    in_use: bool,
) -> Iterator[CdiFault]:
    """The first one counts: what comes first explains what comes after it."""
    yield from _unreadable(files)
    specs = [(f.path, f.spec.value) for f in files if isinstance(f.spec, Seen) and f.spec.value]
    gpu_specs = {path: spec for path, spec in specs if spec.kind == cdi.KIND}
    every_file_was_read = all(isinstance(f.spec, Seen) for f in files)
    is_expected = bool(_unit(snapshot)) or (in_use and not specs)
    if every_file_was_read and not gpu_specs and is_expected:
        where = " or ".join(SPEC_FOLDERS)
        yield CdiFault(
            f"no CDI spec of kind {cdi.KIND} in {where}", Reason.CDI_MISSING, (OUTPUT,), ""
        )
    yield from _conflicts(specs)
    for path, spec in specs:
        if not _is_shadowed(path, spec, specs):
            yield from _spec_faults(snapshot, toolkit, path, spec)
    lacking = _lacking(list(gpu_specs.values()), snapshot, assessment)
    if lacking:
        yield CdiFault(
            f"{', '.join(gpu_specs)} lacks {', '.join(lacking)}, which NVML shows",
            Reason.CDI_LACKS_GPU,
            lacking,
            next(iter(gpu_specs)),
        )


def _unreadable(files: tuple[CdiFile, ...]) -> Iterator[CdiFault]:
    for file in files:
        if isinstance(file.spec, Refusal) and file.spec.is_telling and not file.spec.is_missing:
            because = f"{file.path}: {file.spec.detail}"
            yield CdiFault(because, Reason.CDI_UNREADABLE, (file.path,), file.path)


def _spec_faults(
    snapshot: Snapshot, toolkit: Toolkit, path: str, spec: CdiSpec
) -> Iterator[CdiFault]:
    loaded = snapshot.hardware.driver_version.value_or("")
    if spec.versions and loaded and loaded not in spec.versions:
        yield CdiFault(
            f"{path} names driver {'/'.join(spec.versions)}, loaded is {loaded}",
            Reason.CDI_OLDER_DRIVER,
            spec.versions,
            path,
        )
    absent = toolkit.absent.value_or(())
    gone = tuple(p for p in spec.paths if p in absent)
    if gone:
        more = f" and {len(gone) - SHOWN} more" if len(gone) > SHOWN else ""
        yield CdiFault(
            f"{path} names what is not there: {', '.join(gone[:SHOWN])}{more}",
            Reason.CDI_PATHS_MISSING,
            gone,
            path,
        )
    nodes = (
        {n.path: (n.major, n.minor) for n in snapshot.hardware.nodes.value}
        if isinstance(snapshot.hardware.nodes, Seen)
        else {}
    )
    other = tuple(
        p for p, major, minor in spec.numbers if p in nodes and nodes[p] != (major, minor)
    )
    if other:
        yield CdiFault(
            f"{path} names other device numbers than {', '.join(other)} has now",
            Reason.CDI_OTHER_NUMBERS,
            other,
            path,
        )


def _is_shadowed(path: str, spec: CdiSpec, specs: list[tuple[str, CdiSpec]]) -> bool:
    """Every device of it is also defined in a folder of higher precedence, which wins."""
    rank = _rank(path)
    above = {d for p, s in specs if s.kind == spec.kind and _rank(p) > rank for d in s.devices}
    return set(spec.devices) <= above


def _rank(path: str) -> int:
    return SPEC_FOLDERS.index(path.rpartition("/")[0])


def _conflicts(specs: list[tuple[str, CdiSpec]]) -> Iterator[CdiFault]:
    """Two files of one folder that define one device: the runtime then knows neither (cdi
    pkg/cdi/cache.go)."""
    owners = Counter((_rank(p), f"{s.kind}={d}") for p, s in specs for d in set(s.devices))
    twice = sorted({(rank, name) for (rank, name), n in owners.items() if n > 1})
    if twice:
        files = sorted(
            {p for p, s in specs for d in s.devices if (_rank(p), f"{s.kind}={d}") in twice}
        )
        names = tuple(name for _, name in twice)
        yield CdiFault(
            f"{' and '.join(files)} both define {names[0]}",
            Reason.CDI_CONFLICT,
            names[:SHOWN],
            files[0],
        )


def _lacking(
    specs: list[CdiSpec], snapshot: Snapshot, assessment: ProbeAssessment
) -> tuple[str, ...]:
    """GPUs of a complete probe that no spec offers, by index, UUID or one of its MIG devices."""
    state = snapshot.hardware.probe.value_or(ProbeState())
    if not specs or not assessment.fingerprint or state.last is None:
        return ()
    names = {d for s in specs for d in s.devices}
    return tuple(g.uuid for n, g in enumerate(state.last.gpus) if not _is_offered(n, g, names))


def _is_offered(index: int, gpu: Gpu, names: set[str]) -> bool:
    ids = {gpu.uuid, str(index), f"gpu{index}"}
    return bool(ids & names) or any(n.startswith((f"{index}:", f"mig{index}:")) for n in names)


def _unit(snapshot: Snapshot) -> Unit | None:
    """The unit that writes the spec, where it is installed and its owner has not switched it
    off."""
    units = snapshot.boot.units.value_or(())
    return next(
        (
            u
            for u in units
            if u.name == CDI_UNIT and u.load == "loaded" and u.file_state != "disabled"
        ),
        None,
    )


def refresh(snapshot: Snapshot, assessment: Cdi | None) -> Refresh | None:
    """What the toolkit's own unit may mend; None where nothing is broken, or it is not
    installed."""
    unit = _unit(snapshot)
    if assessment is None or not assessment.mendable or unit is None:
        return None
    return Refresh(
        assessment.evidence, assessment.because, unit.invocation_id, unit.active == "activating"
    )


def findings(snapshot: Snapshot, assessment: Cdi | None) -> tuple[Finding, ...]:
    if assessment is None:
        return ()
    used = (
        f" ({assessment.in_use})"
        if assessment.in_use and assessment.verdict is not Verdict.HOLDS
        else ""
    )
    found = [
        Finding(
            Link.RUNTIME,
            Condition.CDI_SPEC,
            assessment.verdict,
            assessment.because + used,
            assessment.reason,
            missing=assessment.missing,
            heals=Heals.SOON if assessment.mendable else Heals.CONFIGURATION,
            next_step=assessment.next_step,
            blocks=bool(assessment.in_use),
        )
    ]
    found += _handler(snapshot.toolkit)
    if isinstance(snapshot.plugin.runtime, Seen):
        found.append(
            Finding(
                Link.RUNTIME,
                Condition.RUNTIME_ANSWERS,
                Verdict.HOLDS,
                f"{snapshot.plugin.runtime_socket} answers: "
                f"{containers.number(len(snapshot.plugin.runtime.value.containers))}",
                blocks=False,
            )
        )
    return tuple(found)


def _handler(toolkit: Toolkit | None) -> list[Finding]:
    """A hint: what the runtime read at its start may be older than its files."""
    if toolkit is None or not (isinstance(toolkit.mode, Seen) or toolkit.handlers):
        return []
    mode = (
        f"the NVIDIA runtime's mode is {toolkit.mode.value}"
        if isinstance(toolkit.mode, Seen)
        else f"no configuration of the NVIDIA runtime ({toolkit.mode})"
    )
    if toolkit.handlers:
        said = f"{mode}; handler nvidia in {', '.join(toolkit.handlers)}"
    elif toolkit.cdi_enabled:
        said = f"{mode}; enable_cdi in {toolkit.cdi_enabled}"
    else:
        said = ""
    if said:
        return [Finding(Link.RUNTIME, Condition.RUNTIME_HANDLER, Verdict.HOLDS, said, blocks=False)]
    return [
        Finding(
            Link.RUNTIME,
            Condition.RUNTIME_HANDLER,
            Verdict.FAILS,
            f"{mode}; no file of the runtime's configuration that we know names a handler nvidia",
            Reason.NO_RUNTIME_HANDLER,
            blocks=False,
            heals=Heals.CONFIGURATION,
            next_step="nvidia-ctk runtime configure --runtime=containerd; systemctl restart "
            "containerd",
        )
    ]
