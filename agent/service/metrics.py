"""/metrics: the last cycle as Prometheus reads it (text format 0.0.4; every series is named in
docs/metrics.md).

The text is written here: prometheus_client takes urllib and OpenSSL along, 9 MiB that an agent
without TLS has no use for. Its parser and promtool read what is written in the tests. Labels hold
words of our own and resource names, never a pod, a container or a GPU: the number of series does
not grow with the node's work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from .. import __version__
from ..core.plugin import ledger
from ..engine.ports import LastCycle, Wakes
from ..model.access import CurrentAccess
from ..model.finding import Diagnosis, Verdict
from ..model.reading import Seen
from ..model.runtime import LedgerEntry
from ..model.settings import Settings
from ..model.snapshot import ProbeState, Snapshot
from ..model.wake import WakeSource
from .access import after_of, now_of
from .status_parts import MOST_RESOURCES

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_VERDICTS = {Verdict.HOLDS: 1, Verdict.FAILS: 0, Verdict.UNKNOWN: -1}


@dataclass
class Counts:
    """What only grows while this agent lives."""

    wakes: Counter[WakeSource] = field(default_factory=Counter)
    "by source"
    actions: Counter[tuple[str, str]] = field(default_factory=Counter)
    "(kind, done or failed)"
    probes: Counter[str] = field(default_factory=Counter)
    "by how they ended"
    probe: int = 0
    "number of the last probe that was counted"

    def woken(self, reasons: Wakes) -> None:
        for reason, count in reasons.items():
            self.wakes[reason.source] += count

    def probed(self, state: ProbeState) -> None:
        if state.last is not None and state.last.number != self.probe:
            self.probe = state.last.number
            self.probes[state.last.end.value] += 1


@dataclass(frozen=True)
class View:
    """What /metrics is made of."""

    seen: LastCycle
    counts: Counts
    settings: Settings
    probe: ProbeState
    milestones: dict[str, float]
    config_problems: int
    offset: float
    "realtime less boottime, seconds"


Labels = tuple[tuple[str, object], ...]
Family = tuple[str, str, str, list[tuple[Labels, float]]]
"""(name, type, help, samples)."""


def render(view: View) -> str:
    lines = []
    for name, kind, sentence, samples in families(view):
        lines += [f"# HELP {name} {sentence}", f"# TYPE {name} {kind}"]
        for labels, value in samples:
            inner = ",".join(f'{key}="{_escaped(str(text))}"' for key, text in labels)
            lines.append(f"{name}{{{inner}}} {value:.15g}" if inner else f"{name} {value:.15g}")
    return "\n".join(lines) + "\n"


def families(view: View) -> Iterator[Family]:
    """Every family, also those without a sample yet: a dashboard finds their names."""
    seen, gate = view.seen, view.seen.gate
    yield (
        "gpu_gate_build_info",
        "gauge",
        "Always 1; the agent's version.",
        [((("version", __version__),), 1)],
    )
    yield (
        "gpu_gate_phase",
        "gauge",
        "Phase of the gate: 0 WAITING 1 PROBING 2 SETTLING 3 OPEN 4 REVALIDATING "
        "5 REPAIRING 6 BLOCKED 7 NOT_APPLICABLE.",
        [((), gate.phase.number)],
    )
    yield (
        "gpu_gate_ready",
        "gauge",
        "1 while GPU work may start on this node.",
        [((), int(gate.ready))],
    )
    yield (
        "gpu_gate_released",
        "gauge",
        "1 once the kubelet may start; it stays 1 for the boot.",
        [((), int(bool(gate.released)))],
    )
    yield (
        "gpu_gate_paused",
        "gauge",
        "1 while no probe and no action is made.",
        [((), int(bool(gate.paused)))],
    )
    yield (
        "gpu_gate_reason_info",
        "gauge",
        "Always 1; the reason word of the phase (docs/reasons.md).",
        [((("reason", gate.reason),), 1)] if gate.reason else [],
    )
    yield from _links(seen.diagnosis)
    yield from _gpus(seen.diagnosis, seen.snapshot)
    yield (
        "gpu_gate_boot_seconds",
        "gauge",
        "Seconds from boot until NVML was first complete, stable, the gate "
        "open, the GPUs registered.",
        [((("milestone", name),), at) for name, at in view.milestones.items()],
    )
    yield from _containers(seen.diagnosis)
    yield from _repairs(view)
    yield from _agent(view)


def _links(diagnosis: Diagnosis | None) -> Iterator[Family]:
    worst: dict[tuple[int, str], int] = {}
    for finding in diagnosis.findings if diagnosis else ():
        key, value = (finding.link, finding.condition), _VERDICTS[finding.verdict]
        # One condition may have several findings: one that fails counts before one that is unknown.
        worst[key] = min(worst.get(key, value), value, key=lambda v: (v != 0, v != -1))
    yield (
        "gpu_gate_condition",
        "gauge",
        "A condition of a link: 1 holds, 0 fails, -1 unknown.",
        [
            ((("link", link), ("condition", condition)), value)
            for (link, condition), value in sorted(worst.items())
        ],
    )


def _gpus(diagnosis: Diagnosis | None, snapshot: Snapshot | None) -> Iterator[Family]:
    report = diagnosis.report if diagnosis else None
    yield (
        "gpu_gate_gpus_expected",
        "gauge",
        "GPUs that this host must show.",
        [((), len(diagnosis.expected))] if diagnosis else [],
    )
    yield (
        "gpu_gate_gpus_enumerated",
        "gauge",
        "GPUs that the last NVML probe enumerated.",
        [((), len(report.gpus))] if report else [],
    )
    listed = (
        snapshot.kubelet.allocatable.value
        if snapshot and isinstance(snapshot.kubelet.allocatable, Seen)
        else ()
    )
    yield (
        "gpu_gate_devices_registered",
        "gauge",
        "Devices that the kubelet lists as allocatable, by resource.",
        [((("resource", d.resource),), len(d.ids)) for d in listed[:MOST_RESOURCES]],
    )


def _containers(diagnosis: Diagnosis | None) -> Iterator[Family]:
    holders = diagnosis.gpu_containers if diagnosis else ()
    now = Counter(now_of(h) for h in holders)
    yield (
        "gpu_gate_gpu_containers",
        "gauge",
        "Running containers that hold GPUs, by whether they can open them "
        "now: allowed, denied, unknown.",
        [((("access", w.value),), now[w]) for w in CurrentAccess] if diagnosis else [],
    )
    yield (
        "gpu_gate_gpu_containers_at_risk",
        "gauge",
        "Containers that lose a GPU at the next daemon-reload.",
        [((), sum(1 for h in holders if after_of(h) == "lost"))] if diagnosis else [],
    )


def _repairs(view: View) -> Iterator[Family]:
    snapshot, settings = view.seen.snapshot, view.settings
    entries = (
        snapshot.plugin.ledger.value
        if snapshot and isinstance(snapshot.plugin.ledger, Seen)
        else ()
    )
    boot_id = snapshot.boot.boot_id if snapshot else ""
    done = ledger.actions(entries, boot_id)
    by: Counter[Labels] = Counter(
        (("action", e.what), ("outcome", ledger.outcome_of(entries, e) or "awaited")) for e in done
    )
    yield (
        "gpu_gate_repairs",
        "gauge",
        "Disruptive actions of this boot, by kind and outcome.",
        [(labels, count) for labels, count in sorted(by.items())],
    )
    now = view.seen.cycle_ended_at + view.offset
    yield (
        "gpu_gate_repair_budget_left",
        "gauge",
        "Disruptive actions that the limits still allow now.",
        [((), _budget_left(done, now, settings))]
        if snapshot and isinstance(snapshot.plugin.ledger, Seen)
        else [],
    )


def _budget_left(done: tuple[LedgerEntry, ...], now: float, settings: Settings) -> int:
    last_hour = sum(1 for e in done if now - e.at < 3600.0)
    return max(0, min(settings.repairs_per_boot - len(done), settings.repairs_per_hour - last_hour))


def _agent(view: View) -> Iterator[Family]:
    seen, counts, snapshot = view.seen, view.counts, view.seen.snapshot
    yield (
        "gpu_gate_actions_total",
        "counter",
        "Actions since the agent's start, by kind and result (done, failed).",
        [
            ((("action", kind), ("result", result)), n)
            for (kind, result), n in sorted(counts.actions.items())
        ],
    )
    yield (
        "gpu_gate_probes_total",
        "counter",
        "NVML probes, by how they ended: answered, error, hung, broken.",
        [((("end", end),), n) for end, n in sorted(counts.probes.items())],
    )
    last = view.probe.last
    yield (
        "gpu_gate_probe_duration_seconds",
        "gauge",
        "Duration of the last NVML probe.",
        [((), last.ended_at - last.started_at)] if last else [],
    )
    yield (
        "gpu_gate_probe_remains",
        "gauge",
        "1 while a probe that cannot be killed still exists (D state).",
        [((), int(view.probe.remains is not None))],
    )
    yield (
        "gpu_gate_wakes_total",
        "counter",
        "Wakes of the agent, by source.",
        [((("source", source.value),), n) for source, n in sorted(counts.wakes.items())],
    )
    yield (
        "gpu_gate_cycles_total",
        "counter",
        "Cycles: one snapshot, one diagnosis, one decision.",
        [((), seen.cycles)],
    )
    yield (
        "gpu_gate_cycle_duration_seconds",
        "gauge",
        "Duration of the last cycle.",
        [((), seen.cycle_took_s)],
    )
    yield (
        "gpu_gate_cycle_lag_seconds",
        "gauge",
        "How late the last cycle began.",
        [((), seen.cycle_lag_s)],
    )
    yield (
        "gpu_gate_last_cycle_timestamp_seconds",
        "gauge",
        "Unix time at which the last cycle ended.",
        [((), seen.cycle_ended_at + view.offset)] if seen.cycles else [],
    )
    manager = (
        snapshot.boot.manager.value
        if snapshot and isinstance(snapshot.boot.manager, Seen)
        else None
    )
    yield (
        "gpu_gate_last_reload_timestamp_seconds",
        "gauge",
        "Unix time of systemd's last daemon-reload or daemon-reexec.",
        [((), manager.last_reload_at + view.offset)] if manager and manager.last_reload_at else [],
    )
    yield (
        "gpu_gate_signal_sources_lost",
        "gauge",
        "Event sources that are unavailable; the agent detects their changes by polling.",
        [((), len(snapshot.trouble) if snapshot else 0)],
    )
    yield (
        "gpu_gate_config_problems",
        "gauge",
        "Problems in the configuration; see gpu-gate config --check.",
        [((), view.config_problems)],
    )


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
