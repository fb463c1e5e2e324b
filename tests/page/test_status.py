"""/status of every story's end against docs/status.schema.json; its bounds."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.core.diagnose import diagnose
from agent.core.gate.states import Gate
from agent.engine.history import ActionHistory
from agent.engine.ports import LastCycle
from agent.model.access import GrantResult
from agent.model.actions import LinkDevChar, Rebuild, StartProbe
from agent.model.snapshot import Clock, ProbeState
from agent.service import status_parts
from agent.service.status import StatusInput, status
from tests.unit.access_snapshots import access_scene
from tests.unit.snapshots import (
    BOOT_ID,
    DEFAULTS,
    FAILED_LOG,
    MISSING,
    NOW,
    OFFSET,
    diagnosed,
    entry,
    seen,
    sight,
    snapshot,
)

from .schema import faults
from .told import story

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "status.schema.json").read_text())
TOLD = (
    "repair_seed_003",
    "repair_ladder",
    "repair_two_plugins",
    "access_lost_by_reload",
    "access_plugin_denied_while_listed",
    "held_lost_and_back",
    "held_gsp_timeout",
    "hang_in_d",
    "probe_prints_junk",
    "no_gpu",
    "late_driver",
    "all_vfio",
    "mig_manager",
    "fabric_completes",
    "cdi_older_driver",
    "pause_while_open",
    "no_dbus",
    "snapshot_stalls",
    "deadline_open",
)


def told(of: Any = None, **changes: Any) -> dict[str, Any]:
    last = LastCycle(Gate(started_at=NOW - 50), diagnosed(), of or snapshot(), 3, NOW)
    usual = StatusInput(
        last, DEFAULTS, ProbeState(), (), {"seen": 12.5}, (), Clock(NOW, NOW, NOW + OFFSET)
    )
    return status(replace(usual, **changes))


@pytest.mark.parametrize("name", TOLD)
def test_a_real_status_fits_the_schema(name: str) -> None:
    body = json.loads(json.dumps(story(name).status()))
    assert not list(faults(body, SCHEMA, SCHEMA))


def test_a_status_before_the_first_cycle_fits_the_schema() -> None:
    assert not list(faults(told(seen=LastCycle(Gate(started_at=0.0))), SCHEMA, SCHEMA))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("version",), 2),
        (("gate", "phase"), "SHUT"),
        (("gate", "ready"), 1),
        (("node",), None),
        (("more",), 1),
        (("findings", 0, "link"), 15),
        (("findings", 0, "verdict"), "maybe"),
        (("boot", "milestones", "seen"), "6"),
    ],
)
def test_the_schema_can_fail(path: tuple[Any, ...], value: Any) -> None:
    body = copy.deepcopy(told())
    inside: Any = body
    for step in path[:-1]:
        inside = inside[step]
    inside[path[-1]] = value
    assert list(faults(body, SCHEMA, SCHEMA))


def test_the_last_actions_with_cause_and_outcome() -> None:
    entries = (
        entry(7, boot_id="another boot"),
        entry(1),
        entry(1, what="outcome", outcome="not cured"),
        entry(2),
    )
    history = ActionHistory()
    history.note(StartProbe(False), NOW)
    history.note(Rebuild(2, "c1", "a cause", "its log says 999"), NOW + OFFSET)
    for _ in range(3):
        history.note(LinkDevChar((("195:0", "../nvidia0"),)), NOW + OFFSET + 1, "read-only")
    history.added(
        (GrantResult("c9", "s.scope", "ml/t main", NOW, given_back=("/dev/nvidia0",)),),
        NOW + OFFSET + 2,
    )
    rows = status_parts.actions(snapshot(ledger=seen(entries)), history.recent)
    assert [(r["kind"], r["disruptive"], r["outcome"]) for r in rows] == [
        ("rebuild", True, "not cured"),
        ("rebuild", True, "awaited"),
        ("LinkDevChar", False, "failed: read-only"),
        ("GrantDevices", False, "given back: /dev/nvidia0"),
    ]
    assert rows[0]["why"] == "some cause", "an earlier agent's: its ledger is all that is left"
    assert "its log says 999" in rows[1]["why"]
    assert rows[1]["evidence"] == "/evidence/2"
    assert [r["target"] for r in rows][-1] == "c9"
    assert (
        history.counts["LinkDevChar", "failed"] == 3 and history.counts["StartProbe", "done"] == 1
    )


def test_a_repair_that_could_not_begin_is_shown() -> None:
    """Nothing is in the ledger then."""
    history = ActionHistory()
    history.note(Rebuild(1, "c1", "a cause", "because"), NOW, "the ledger cannot be written")
    (row,) = status_parts.actions(snapshot(), history.recent)
    assert row["disruptive"] and row["outcome"].startswith("failed")


def test_the_status_is_bounded() -> None:
    many = seen(tuple(entry(n, at=float(n)) for n in range(500)))
    body = told(snapshot(ledger=many, plugins=snapshot().plugin.plugins * 50))
    assert [a["at"] for a in body["actions"]] == [float(n) for n in range(480, 500)]
    assert len(body["plugins"]) == status_parts.MOST_PLUGINS
    assert body["boot"]["id"] == BOOT_ID
    few = diagnose(access_scene(), DEFAULTS)
    crowd = replace(few, gpu_containers=few.gpu_containers * 1000)
    body = told(seen=LastCycle(Gate(started_at=0.0), crowd, snapshot()))
    assert (len(body["access"]), body["access_left_out"]) == (256, 744)
    assert not list(faults(body, SCHEMA, SCHEMA))


def test_the_first_broken_link_equals_the_doctors() -> None:
    """A plugin that failed blocks nothing by itself: that it is not registered does. It is broken
    all the same."""
    assert told()["first_broken"] is None
    failed = snapshot(allocatable=seen(()), plugins=(sight(FAILED_LOG, access=True),))
    body = told(seen=LastCycle(Gate(started_at=0.0), diagnose(failed, DEFAULTS), failed))
    assert body["first_broken"] in body["findings"]
    assert (body["first_broken"]["condition"], body["first_broken"]["blocks"]) == (
        "PluginHealthy",
        False,
    )


def test_registered_against_expected() -> None:
    assert told()["registered"] == [{"resource": "nvidia.com/gpu", "listed": 2, "expected": 2}]
    assert told(snapshot(allocatable=MISSING))["registered"] == []
