"""What the doctor says of one look: a verdict in one line, its cause, the chain, what else fits,
what it lacks."""

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
WORDS = {Strength.CONFIRMED: "confirmed", Strength.CONSISTENT: "consistent"}


@dataclass(frozen=True)
class DoctorReport:
    """One look, judged."""

    snapshot: Snapshot
    diagnosis: Diagnosis
    diagnostics: DiagnosticData
    findings: tuple[Finding, ...]
    broken: Finding | None
    unknown: Finding | None
    suspects: tuple[Suspect, ...]
    causes: tuple[Suspect, ...]
    "of the suspects, those that explain the broken link"

    @property
    def exit_code(self) -> int:
        """0: every link that was asked holds; 1: one is broken; 4: the first trouble is that we do
        not know."""
        return 1 if self.broken else 4 if self.unknown else 0


def judge(snapshot: Snapshot, diagnosis: Diagnosis, diagnostics: DiagnosticData) -> DoctorReport:
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


def report(opinion: DoctorReport) -> dict[str, Any]:
    return {
        "version": 1,
        "gpu_gate": __version__,
        "verdict": verdict(opinion),
        "exit_code": opinion.exit_code,
        "scope": opinion.diagnosis.scope.value,
        "scope_because": opinion.diagnosis.scope_because,
        "first_broken": encode(opinion.broken) if opinion.broken else None,
        "causes": [s.id for s in opinion.causes],
        "findings": [encode(f) for f in opinion.findings],
        "faults": [encode(s) for s in opinion.suspects],
        "versions": dict(_versions(opinion)),
        "not_asked": _not_asked(opinion),
    }


def verdict(opinion: DoctorReport) -> str:
    """One line. The words are in docs/reasons.md and docs/faults."""
    broken = opinion.broken
    if broken:
        first = next(iter(opinion.causes), None)
        cause = f"; {first.id}: {WORDS[first.strength]}" if first else ""
        return f"Link {broken.link} is broken: {broken.reason or broken.condition}{cause}"
    if opinion.unknown:
        return f"Nothing is seen broken, but {opinion.unknown.condition} is unknown"
    return "Every link that was asked holds."


def text(opinion: DoctorReport, colour: bool = False) -> list[str]:
    line = printable(verdict(opinion))
    broken = {**encode(opinion.broken), "next_step": ""} if opinion.broken else None
    return [
        painted(line, BOLD) if colour else line,
        *_why(opinion),
        "",
        *chain(
            [broken if broken and f is opinion.broken else encode(f) for f in opinion.findings],
            colour,
            broken,
        ),
        *_others(opinion),
        *_foot(opinion),
    ]


def _why(opinion: DoctorReport) -> Iterator[str]:
    """What is broken, why, and what to do: the sentences under the verdict."""
    if opinion.unknown and not opinion.broken:
        yield from _row("seen", opinion.unknown.because)
        yield from _row("next", opinion.unknown.next_step)
    first = next(iter(opinion.causes), None)
    if opinion.broken and not first:
        yield from _row("seen", opinion.broken.because)
        yield from _row("next", opinion.broken.next_step)
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


def _others(opinion: DoctorReport) -> Iterator[str]:
    others = [s for s in opinion.suspects if s not in opinion.causes[:1]]
    if others:
        yield ""
        yield "Known faults that this snapshot shows besides:"
    for one in others:
        yield from wrapped(
            f"   {WORDS[one.strength]:<13}", f"{one.id} (link {one.link}): {one.seen}", 16
        )
        if one.decide:
            yield from wrapped(" " * 16, f"to decide: {one.decide}", 16)
            yield from _command(one.capture, 16)
        if not opinion.causes:  # nothing above has said what to do
            yield from wrapped(" " * 16, f"remedy: {one.remedy}", 16)
            yield from _command(one.do, 16)
        if one.is_not:
            yield from wrapped(" " * 16, f"it is not {one.is_not}", 16)


def _foot(opinion: DoctorReport) -> Iterator[str]:
    yield ""
    yield from wrapped(
        "", "Versions: " + ", ".join(f"{name} {said}" for name, said in _versions(opinion)), 0
    )
    for number, sentence in enumerate(_not_asked(opinion)):
        yield from wrapped(" " * 11 if number else "Not asked: ", sentence, 11)


def _row(name: str, sentence: str) -> list[str]:
    return wrapped(f"  {name:<8}", sentence, 10) if sentence else []


def _command(command: str, indent: int = 10) -> list[str]:
    """A line of its own, never broken: it is to be pasted."""
    return [" " * indent + "$ " + printable(command)] if command else []


def _versions(opinion: DoctorReport) -> Iterator[tuple[str, str]]:
    snapshot, diagnostics = opinion.snapshot, opinion.diagnostics
    report = opinion.diagnosis.report
    if isinstance(snapshot.driver_version, Seen):
        yield "driver", snapshot.driver_version.value
    if report and report.library_version:
        yield "NVML", report.library_version
    if isinstance(diagnostics.kernel, Seen):
        yield "kernel", diagnostics.kernel.value
    if isinstance(snapshot.manager, Seen):
        yield "systemd", snapshot.manager.value.version
    if diagnostics.cgroup:
        yield "cgroup", diagnostics.cgroup
    for version in diagnostics.versions:
        if isinstance(version.said, Seen):
            yield version.program, _number(version.program, version.said.value)
    yield "gpu-gate", __version__


def _number(program: str, said: str) -> str:
    """containerd github.com/containerd/containerd v1.7.24 …, NVIDIA Container Toolkit CLI version
    1.17.8."""
    words = said.removeprefix(program).split()
    return next((w.removeprefix("v") for w in words if w.removeprefix("v")[:1].isdigit()), said)


def _not_asked(opinion: DoctorReport) -> list[str]:
    """What could not be asked, and why: silence of ours, never of the node."""
    snapshot, diagnostics = opinion.snapshot, opinion.diagnostics
    asked = {
        "the journal": diagnostics.journal,
        "the kernel's log": snapshot.kernel,
        "systemd": snapshot.units,
        "the container runtime": snapshot.runtime,
        "pod-resources": snapshot.allocatable,
        "containers' device access": snapshot.access,
    }
    found = [
        f"{name} ({reading.why.value if reading.why is Why.NOT_PERMITTED else reading})"
        for name, reading in asked.items()
        if isinstance(reading, Refusal)
        and reading.why is not Why.NOT_ASKED
        and (reading is diagnostics.journal or not reading.is_missing)
    ]
    if any("not-permitted" in sentence for sentence in found):
        found.append("run it as root: what it may not read it cannot judge")
    return found
