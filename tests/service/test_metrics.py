"""/metrics, read by Prometheus's own parser; and that docs/metrics.md lists every series."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from agent.core.gate.states import Gate, Phase
from agent.engine.ports import LastCycle
from agent.model.reading import Seen
from agent.model.runtime import LedgerEntry
from agent.model.settings import Settings
from agent.model.snapshot import (
    Boot,
    Clock,
    Devices,
    Hardware,
    ProbeEnd,
    ProbeReport,
    ProbeState,
    Snapshot,
)
from agent.model.wake import WakeReason, WakeSource
from agent.service.metrics import Counts, View, families, render
from tests.unit.snapshots import changed

DOCS = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
BEFORE = View(LastCycle(Gate(started_at=1.0)), Counts(), Settings(), ProbeState(), {}, 0, 1000.0)


def snapshot(**parts: object) -> Snapshot:
    return changed(
        Snapshot(Clock(50.0, 50.0, 1050.0), Hardware(Seen((), 50.0)), Boot("b")), **parts
    )


def values(view: View) -> dict[tuple[str, tuple[str, ...]], float]:
    """(name, label values) to value."""
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(render(view))
        for sample in family.samples
    }


def test_before_the_first_cycle_metrics_show_no_values():
    said = values(BEFORE)
    assert said["gpu_gate_ready", ()] == 0 and said["gpu_gate_phase", ()] == Phase.WAITING.number
    names = {name for name, _ in said}
    assert not names & {
        "gpu_gate_gpus_expected",
        "gpu_gate_last_cycle_timestamp_seconds",
        "gpu_gate_condition",
    }


def test_the_phase_the_probe_and_the_instants_of_this_boot():
    report = ProbeReport(3, 10.0, 12.5, ProbeEnd.ANSWERED)
    seen = LastCycle(
        Gate(started_at=1.0, phase=Phase.BLOCKED, reason="NvmlGpuIsLost"),
        snapshot=snapshot(),
        cycles=7,
        cycle_ended_at=40.0,
    )
    said = values(replace(BEFORE, seen=seen, probe=ProbeState(report), milestones={"stable": 9.5}))
    assert said["gpu_gate_phase", ()] == 6 and said["gpu_gate_reason_info", ("NvmlGpuIsLost",)] == 1
    assert said["gpu_gate_probe_duration_seconds", ()] == 2.5
    assert said["gpu_gate_boot_seconds", ("stable",)] == 9.5
    assert said["gpu_gate_last_cycle_timestamp_seconds", ()] == 1040.0


def test_repairs_are_read_from_the_ledger_of_this_boot():
    entries = (
        LedgerEntry(100.0, "old", 1, "rebuild", "c0", "x", ""),
        LedgerEntry(1001.0, "b", 2, "rebuild", "c1", "x", ""),
        LedgerEntry(1005.0, "b", 2, "outcome", "", "", "", "cured"),
        LedgerEntry(1039.0, "b", 3, "hup", "c2", "x", ""),
    )
    seen = LastCycle(
        Gate(started_at=1.0), snapshot=snapshot(ledger=Seen(entries, 50.0)), cycle_ended_at=40.0
    )
    said = values(replace(BEFORE, seen=seen))
    assert (
        said["gpu_gate_repairs", ("rebuild", "cured")] == 1
        and said["gpu_gate_repairs", ("hup", "awaited")] == 1
    )
    assert said["gpu_gate_repair_budget_left", ()] == Settings().repairs_per_hour - 2


def test_hostile_resource_names_stay_inside_their_label_and_are_few():
    listed = tuple(Devices(f'x"}} 1\n{i}\\', ("a", "b")) for i in range(100))
    seen = LastCycle(Gate(started_at=1.0), snapshot=snapshot(allocatable=Seen(listed, 50.0)))
    shown = [
        key for key in values(replace(BEFORE, seen=seen)) if key[0] == "gpu_gate_devices_registered"
    ]
    assert len(shown) == 32 and ("gpu_gate_devices_registered", ('x"} 1\n0\\',)) in shown


def test_wakes_are_counted_by_their_source():
    counts = Counts()
    kubelet, runtime = (WakeReason(WakeSource.UNIT, f"{n}.service") for n in ("kubelet", "crio"))
    counts.woken({kubelet: 2, runtime: 1, WakeReason(WakeSource.TIMER): 1})
    assert counts.wakes == {WakeSource.UNIT: 3, WakeSource.TIMER: 1}
    text = render(replace(BEFORE, counts=counts))
    assert 'gpu_gate_wakes_total{source="unit"} 3' in text


def test_a_probe_is_counted_once():
    counts, state = Counts(), ProbeState(ProbeReport(1, 1.0, 2.0, ProbeEnd.HUNG))
    counts.probed(state)
    counts.probed(state)
    assert counts.probes == {"hung": 1}


def test_the_manual_names_every_series_with_its_type():
    told = set(re.findall(r"^\| `(gpu_gate_\w+)` \| (\w+) \|", DOCS.read_text(), re.MULTILINE))
    assert told == {(name, kind) for name, kind, _, _ in families(BEFORE)}
