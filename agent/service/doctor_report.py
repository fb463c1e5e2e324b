"""The doctor's report on one snapshot: a verdict in one line, its cause, the chain, other known
faults that fit, and what could not be collected."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .. import __version__
from ..core.doctor.broken import first_broken, first_unknown
from ..core.doctor.links import causes, links
from ..core.doctor.suspects import suspects
from ..host.codec import encode
from ..model.diagnostics import DiagnosticData
from ..model.finding import Diagnosis, Finding
from ..model.reading import Refusal, Seen, Why
from ..model.snapshot import Snapshot
from ..model.suspect import Strength, Suspect
from .chain import chain, painted, printable, wrapped

BOLD = "1"
STRENGTHS = {Strength.CONFIRMED: "confirmed", Strength.CONSISTENT: "consistent"}


@dataclass(frozen=True)
class DoctorReport:
    """One snapshot, its diagnosis and the known faults that fit."""

    snapshot: Snapshot
    diagnosis: Diagnosis
    diagnostics: DiagnosticData
    findings: tuple[Finding, ...]
    broken: Finding | None
    unknown: Finding | None
    suspects: tuple[Suspect, ...]
    causes: tuple[Suspect, ...]
    """Of the suspects, those that explain the broken link."""

    @property
    def exit_code(self) -> int:
        """0 if every link that was checked holds, 1 if one is broken, 4 if one is unknown and none
        is known to be broken."""
        return 1 if self.broken else 4 if self.unknown else 0


def assess(snapshot: Snapshot, diagnosis: Diagnosis, diagnostics: DiagnosticData) -> DoctorReport:
    """Check every link and match the known faults."""
    found = links(snapshot, diagnosis, diagnostics)
    shown, broken = suspects(snapshot, diagnosis, diagnostics), first_broken(found)
    return DoctorReport(
        snapshot,
        diagnosis,
        diagnostics,
        found,
        broken,
        first_unknown(found),
        shown,
        causes(broken, shown) if broken else (),
    )


def report(result: DoctorReport) -> dict[str, Any]:
    return {
        "version": 1,
        "gpu_gate": __version__,
        "verdict": verdict(result),
        "exit_code": result.exit_code,
        "scope": result.diagnosis.scope.value,
        "scope_because": result.diagnosis.scope_because,
        "first_broken": encode(result.broken) if result.broken else None,
        "causes": [s.id for s in result.causes],
        "findings": [encode(f) for f in result.findings],
        "faults": [encode(s) for s in result.suspects],
        "versions": dict(_versions(result)),
        "not_asked": _not_asked(result),
    }


def verdict(result: DoctorReport) -> str:
    """One line. docs/reasons.md and docs/faults explain its reasons."""
    broken = result.broken
    if broken:
        first = next(iter(result.causes), None)
        cause = f"; {first.id}: {STRENGTHS[first.strength]}" if first else ""
        return f"Link {broken.link} is broken: {broken.reason or broken.condition}{cause}"
    if result.unknown:
        return f"Nothing is seen broken, but {result.unknown.condition} is unknown"
    return "Every link that was asked holds."


def text(result: DoctorReport, colour: bool = False) -> list[str]:
    line = printable(verdict(result))
    broken = {**encode(result.broken), "next_step": ""} if result.broken else None
    return [
        painted(line, BOLD) if colour else line,
        *_explanation(result),
        "",
        *chain(
            [broken if broken and f is result.broken else encode(f) for f in result.findings],
            colour,
            broken,
        ),
        *_others(result),
        *_foot(result),
    ]


def _explanation(result: DoctorReport) -> Iterator[str]:
    """The rows under the verdict: what is broken, why, and what to do."""
    if result.unknown and not result.broken:
        yield from _row("seen", result.unknown.because)
        yield from _row("next", result.unknown.next_step)
    first = next(iter(result.causes), None)
    if result.broken and not first:
        yield from _row("seen", result.broken.because)
        yield from _row("next", result.broken.next_step)
    if not first:
        return
    yield from _row(
        "cause",
        first.title
        + (
            " (its mark was seen)"
            if first.strength is Strength.CONFIRMED
            else " (fits; its mark was not seen)"
        ),
    )
    yield from _row("seen", first.seen)
    if first.decide:
        yield from _row("decide", first.decide)
        yield from _command(first.capture)
    yield from _row("remedy", first.remedy)
    yield from _command(first.do)
    yield from _row("is not", first.is_not)


def _others(result: DoctorReport) -> Iterator[str]:
    others = [s for s in result.suspects if s not in result.causes[:1]]
    if others:
        yield ""
        yield "Known faults that this snapshot shows besides:"
    for one in others:
        yield from wrapped(
            f"   {STRENGTHS[one.strength]:<13}", f"{one.id} (link {one.link}): {one.seen}", 16
        )
        if one.decide:
            yield from wrapped(" " * 16, f"to decide: {one.decide}", 16)
            yield from _command(one.capture, 16)
        if not result.causes:  # nothing above shows a remedy
            yield from wrapped(" " * 16, f"remedy: {one.remedy}", 16)
            yield from _command(one.do, 16)
        if one.is_not:
            yield from wrapped(" " * 16, f"it is not {one.is_not}", 16)


def _foot(result: DoctorReport) -> Iterator[str]:
    yield ""
    yield from wrapped(
        "", "Versions: " + ", ".join(f"{name} {version}" for name, version in _versions(result)), 0
    )
    for number, sentence in enumerate(_not_asked(result)):
        yield from wrapped(" " * 11 if number else "Not asked: ", sentence, 11)


def _row(name: str, sentence: str) -> list[str]:
    return wrapped(f"  {name:<8}", sentence, 10) if sentence else []


def _command(command: str, indent: int = 10) -> list[str]:
    """A line of its own, never broken, so that it can be pasted."""
    return [" " * indent + "$ " + printable(command)] if command else []


def _versions(result: DoctorReport) -> Iterator[tuple[str, str]]:
    snapshot, diagnostics = result.snapshot, result.diagnostics
    report = result.diagnosis.report
    if isinstance(snapshot.hardware.driver_version, Seen):
        yield "driver", snapshot.hardware.driver_version.value
    if report and report.library_version:
        yield "NVML", report.library_version
    if isinstance(diagnostics.kernel, Seen):
        yield "kernel", diagnostics.kernel.value
    if isinstance(snapshot.boot.manager, Seen):
        yield "systemd", snapshot.boot.manager.value.version
    if diagnostics.cgroup:
        yield "cgroup", diagnostics.cgroup
    for version in diagnostics.versions:
        if isinstance(version.said, Seen):
            yield version.program, _number(version.program, version.said.value)
    yield "gpu-gate", __version__


def _number(program: str, printed: str) -> str:
    """Find the version number in what a program printed, such as "containerd
    github.com/containerd/containerd v1.7.24 …" or "NVIDIA Container Toolkit CLI version 1.17.8"."""
    words = printed.removeprefix(program).split()
    return next((w.removeprefix("v") for w in words if w.removeprefix("v")[:1].isdigit()), printed)


def _not_asked(result: DoctorReport) -> list[str]:
    """What could not be collected, and why."""
    snapshot, diagnostics = result.snapshot, result.diagnostics
    asked = {
        "the journal": diagnostics.journal,
        "the kernel's log": snapshot.hardware.kernel,
        "systemd": snapshot.boot.units,
        "the container runtime": snapshot.plugin.runtime,
        "pod-resources": snapshot.kubelet.allocatable,
        "containers' device access": snapshot.workloads.access,
    }
    found = [
        f"{name} ({reading.why.value if reading.why is Why.NOT_PERMITTED else reading})"
        for name, reading in asked.items()
        if isinstance(reading, Refusal)
        and reading.why is not Why.NOT_ASKED
        and (reading is diagnostics.journal or not reading.is_missing)
    ]
    if any("not-permitted" in sentence for sentence in found):
        found.append("run it as root to collect these too")
    return found
