"""After the gate opens: the CDI spec is written again before the kubelet goes, and the plugin is
launched once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agent.core.common.watched import CDI_UNIT
from agent.core.gate.states import Gate, Phase
from agent.core.gate.transitions import step as gate_step
from agent.core.plugin.launch import AGAIN_S, CDI_WITHIN_S, TRIES, Launch, step
from agent.core.plugin.repair import RepairState
from agent.model.actions import LaunchUnit, PlaceManifest, RefreshCdi, Release
from agent.model.cdi import Refresh
from agent.model.fault import Cure, Fault
from agent.model.finding import Diagnosis, Verdict
from agent.model.mark import Mark
from agent.model.settings import Settings

from .snapshots import DEFAULTS, DENIED, MISSING, NOW, diagnosed, finding, probed, seen, unit

ASKED = (RefreshCdi(CDI_UNIT, "it is old"),)
BROKEN = Refresh("old driver 1", "it is old", "before", False)
OPEN = NOW - 1
DP = "dp.service"


def view(refresh: Refresh | None = BROKEN, **changes: Any) -> Diagnosis:
    return replace(diagnosed(), refresh=refresh, **changes)


def test_the_refresh_is_requested_once_and_awaited() -> None:
    first = step(Launch(), view(), OPEN, NOW)
    assert (
        first.actions == ASKED
        and "it is old" in first.holds
        and first.wake_at == OPEN + CDI_WITHIN_S
    )
    running = step(
        first.launch, view(replace(BROKEN, invocation="now", is_running=True)), OPEN, NOW + 1
    )
    assert running.actions == () and running.holds
    assert not step(running.launch, view(None), OPEN, NOW + 2).holds
    failed = step(running.launch, view(replace(BROKEN, invocation="now")), OPEN, NOW + 2)
    assert failed.actions == () and not failed.holds
    assert (
        step(failed.launch, view(replace(BROKEN, invocation="now")), OPEN, NOW + 999).actions == ()
    )


def test_a_unit_that_did_not_run_is_retried_a_limited_number_of_times() -> None:
    launch, asked, now = Launch(), 0, NOW
    for _ in range(100):
        done = step(launch, view(), OPEN, now)
        launch, asked, now = done.launch, asked + len(done.actions), now + AGAIN_S / 4
        assert bool(done.holds) == (now - AGAIN_S / 4 < OPEN + CDI_WITHIN_S)
    assert asked == TRIES


def test_new_evidence_is_acted_on_and_not_more_than_once_a_minute() -> None:
    done = step(Launch(), view(), OPEN, NOW)
    other = view(replace(BROKEN, evidence="old driver 2"))
    soon = step(done.launch, other, OPEN, NOW + 5)
    assert soon.actions == () and not soon.holds
    assert step(done.launch, other, OPEN, NOW + AGAIN_S).actions == ASKED


def test_a_unit_that_is_already_running_is_not_started() -> None:
    done = step(Launch(), view(replace(BROKEN, is_running=True)), OPEN, NOW)
    assert done.actions == () and done.holds


@pytest.mark.parametrize(
    ("diagnosis", "open_since"),
    [
        (view(), None),
        (view(paused=True), OPEN),
        (view(launch=LaunchUnit(DP), paused=True), OPEN),
    ],
)
def test_no_repair_before_nvml_is_stable(diagnosis: Diagnosis, open_since: float | None) -> None:
    done = step(Launch(), diagnosis, open_since, NOW)
    assert done.actions == () and not done.holds


def test_the_plugin_is_launched_after_the_spec() -> None:
    both = view(launch=LaunchUnit(DP))
    first = step(Launch(), both, OPEN, NOW)
    assert first.actions == ASKED
    mended = step(first.launch, replace(both, refresh=None), OPEN, NOW + 2)
    assert mended.actions == (LaunchUnit(DP),)
    assert (
        step(mended.launch, replace(both, refresh=None), OPEN, NOW + 3).actions == ()
    )  # its mark may take a while
    late = step(first.launch, both, OPEN, OPEN + CDI_WITHIN_S)
    assert late.actions == (LaunchUnit(DP),)


def opened(diagnosis: Diagnosis, settings: Settings = DEFAULTS, now: float = NOW) -> Any:
    gate = Gate(started_at=NOW - 9, good=2, fingerprint=diagnosis.fingerprint, open_since=None)
    return gate_step(gate, diagnosis, now, settings)


def test_the_release_waits_for_the_spec_until_the_deadline() -> None:
    held = replace(
        diagnosed(
            units=seen((unit("kubelet.service", active="inactive"),)), probe=probed(number=1)
        ),
        refresh=BROKEN,
    )
    waits = opened(held)
    assert ASKED[0] in waits.actions and not any(isinstance(a, Release) for a in waits.actions)
    assert any(isinstance(a, Release) for a in opened(replace(held, refresh=None)).actions)
    over = gate_step(waits.gate, held, waits.gate.deadline_at, DEFAULTS)
    assert any(isinstance(a, Release) for a in over.actions)


UNIT = Settings(launch="unit", plugin_unit=DP)
MANIFEST = Settings(launch="manifest")


def launched(settings: Settings, *units: Any, **changes: Any) -> Diagnosis:
    return diagnosed(
        settings,
        **{
            "units": seen((unit("kubelet.service", since=50.0), *units)),
            "launched": MISSING,
            "manifest_dir": "/m" if settings is MANIFEST else "",
            **changes,
        },
    )


@pytest.mark.parametrize("state", ["inactive", "active", "activating"])
def test_a_unit_is_launched(state: str) -> None:
    assert launched(UNIT, unit(DP, active=state)).launch == LaunchUnit(DP)


@pytest.mark.parametrize(
    ("settings", "units", "changes", "reason"),
    [
        (UNIT, (unit(DP, active="failed"),), {}, "LaunchRefused"),
        (UNIT, (unit(DP, load="not-found"),), {}, "LaunchRefused"),
        (UNIT, (unit(DP, load="masked"),), {}, "LaunchRefused"),
        (UNIT, (unit(DP),), {"launched": DENIED}, "LaunchUnknown"),
        (UNIT, (unit(DP),), {"units": DENIED}, "NotLaunched"),
        (
            UNIT,
            (),
            {"units": seen((unit("kubelet.service", active="inactive"), unit(DP)))},
            "NotLaunched",
        ),
        (MANIFEST, (), {"manifest_dir": ""}, "LaunchRefused"),
        (MANIFEST, (), {"launched": DENIED}, "LaunchUnknown"),
    ],
)
def test_plugins_that_are_not_launched(
    settings: Settings, units: Any, changes: Any, reason: str
) -> None:
    diagnosis = launched(settings, *units, **changes)
    said = finding(diagnosis, "PluginLaunched")
    assert diagnosis.launch is None
    assert (said.reason, said.blocks) == (reason, False) and said.verdict is not Verdict.HOLDS


def test_a_plugin_is_launched_once_per_boot() -> None:
    for settings in (UNIT, MANIFEST):
        diagnosis = launched(
            settings, unit(DP, active="inactive"), launched=seen(Mark("dp.service: done", 5.0))
        )
        assert diagnosis.launch is None
        assert finding(diagnosis, "PluginLaunched").verdict is Verdict.HOLDS


def test_a_manifest_is_placed_also_where_the_kubelet_does_not_run() -> None:
    placed = PlaceManifest("/etc/gpu-gate/plugin.yaml", "/m/gpu-gate-plugin.yaml")
    assert launched(MANIFEST).launch == placed
    assert launched(MANIFEST, units=DENIED).launch == placed


def test_without_launch_there_is_no_finding() -> None:
    assert launched(DEFAULTS).launch is None
    assert not any(f.condition == "PluginLaunched" for f in launched(DEFAULTS).findings)


def test_a_blocked_repair_does_not_prevent_writing_the_spec() -> None:
    """The repair may be blocked because of that spec."""
    calm = diagnosed()
    assert calm.repair_facts is not None
    fault = Fault("PluginLacksLibrary", "its container lacks NVML's library", Cure.PERSON)
    held = replace(
        calm, refresh=BROKEN, repair_facts=replace(calm.repair_facts, fault=fault, may_act=True)
    )
    before = replace(
        opened(calm).gate, repair=RepairState(held="no library", held_reason=fault.reason)
    )
    done = gate_step(before, held, NOW + 1, DEFAULTS)
    assert done.gate.phase is Phase.BLOCKED and ASKED[0] in done.actions
