"""What a known fault is made of: words for a page of docs/faults, and a judge that looks for its
mark.

A judge makes no second judgement of the node: it refers to the reason words of the findings and to
what was read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ...model.access import GpuContainer, LossCause
from ...model.condition import Link
from ...model.diagnostics import NO_DIAGNOSTICS, DiagnosticData, JournalEntry, JournalEvent
from ...model.finding import Diagnosis, Finding, Verdict
from ...model.runtime import PluginLog, PluginSight
from ...model.snapshot import Entry, Snapshot, Unit


@dataclass(frozen=True, slots=True)
class Evidence:
    """One look at a node, and what was asked besides."""

    snapshot: Snapshot
    diagnosis: Diagnosis
    diagnostics: DiagnosticData = NO_DIAGNOSTICS

    def finding(self, *reasons: str) -> Finding | None:
        """The first finding that fails for one of these reasons. What is unknown marks nothing."""
        return next(
            (
                f
                for f in self.diagnosis.findings
                if f.reason in reasons and f.verdict is Verdict.FAILS
            ),
            None,
        )

    def journal(
        self, says: JournalEvent, since: float = 0.0, source: str = ""
    ) -> JournalEntry | None:
        """The newest line of this boot that says so; boottime, seconds. `source`: of this unit
        only."""
        lines = self.diagnostics.journal.value_or(())
        return max(
            (w for w in lines if w.says is says and w.at >= since and source in ("", w.source)),
            key=lambda w: w.at,
            default=None,
        )

    def lost(self, cause: LossCause) -> GpuContainer | None:
        return next(
            (c for c in self.diagnosis.gpu_containers if c.denied and c.loss is cause), None
        )

    @property
    def plugin(self) -> PluginSight | None:
        """The device plugin, where there is one."""
        return self.snapshot.plugin.plugins[0] if len(self.snapshot.plugin.plugins) == 1 else None

    @property
    def plugin_log(self) -> PluginLog | None:
        """What its log says, where that was read."""
        return self.plugin.log.value_or(None) if self.plugin else None

    @property
    def plugin_unit(self) -> Unit | None:
        """The unit of the host that is the device plugin, where something is wrong with it."""
        fault = self.diagnosis.repair_facts.fault if self.diagnosis.repair_facts else None
        units = self.snapshot.boot.units.value_or(())
        return next(
            (u for u in units if fault and fault.sight is None and u.name == fault.unit), None
        )

    @property
    def kubelet_socket(self) -> Entry | None:
        entries = self.snapshot.kubelet.plugin_sockets.value_or(())
        return next((e for e in entries if e.name == "kubelet.sock"), None)

    def boottime_of(self, realtime: float) -> float:
        return realtime - self.snapshot.clock.realtime + self.snapshot.clock.boottime

    def ago(self, at: float) -> str:
        return f"{max(0.0, self.snapshot.clock.boottime - at):.0f} s ago"


@dataclass(frozen=True, slots=True)
class Mark:
    """What of a fault was observed."""

    is_confirmed: bool
    seen: str


Judge = Callable[[Evidence], "Mark | None"]


@dataclass(frozen=True, slots=True)
class KnownFault:
    """A fault that somebody has had before."""

    id: str
    "CamelCase, stable: also its page in docs/faults"
    link: Link
    title: str
    source: str
    "whose report, and where"
    confirmed: str
    "what must have been observed"
    remedy: str
    judge: Judge = field(compare=False)
    consistent: str = ""
    'what alone only fits it; "" where its mark is all there is'
    decide: str = ""
    "what would confirm it, or rule it out"
    capture: str = ""
    """the command that captures that. {plugin}: the plugin's container; {unit}: its unit, where it
    is one"""
    do: str = ""
    "the remedy as a command"
    is_not: str = ""
    "what it is taken for, or what does not help: it follows “it is not”"
    is_cause: bool = True
    "False: it says what follows, or why it stays so, never how it began"


def when(*reasons: str) -> Judge:
    """Confirmed by a finding: its reason is the mark."""

    def judge(evidence: Evidence) -> Mark | None:
        found = evidence.finding(*reasons)
        return Mark(True, found.because) if found else None

    return judge


def said(says: JournalEvent) -> Judge:
    """Confirmed by a line of the journal."""

    def judge(evidence: Evidence) -> Mark | None:
        line = evidence.journal(says)
        return Mark(True, cited(evidence, line)) if line else None

    return judge


def either(judges: Iterable[Judge]) -> Judge:
    """The first that confirms; else the first that fits."""
    every = tuple(judges)

    def judge(evidence: Evidence) -> Mark | None:
        marks = [mark for one in every if (mark := one(evidence))]
        return next((m for m in marks if m.is_confirmed), marks[0] if marks else None)

    return judge


def cited(evidence: Evidence, line: JournalEntry) -> str:
    """A journal line with its age."""
    return f"{line.source}, {evidence.ago(line.at)}: {line.line[:200]}"
