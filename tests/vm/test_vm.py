"""Virtual machines: each test is one boot, with its scenario below inside/."""

from __future__ import annotations

import json

import pytest
import qemu
import scenario as s
from disk import Disk

GATED = [
    "incident_with_the_gate",
    "agent_killed_before_ready",
    "reachable",
    "reloads_under_load",
    "containers_at_their_limits",
]
REPORT = "[Access]\nPrevent=report\nHeal=no\n[Agent]\nHeartbeatSec=5s\n"
OPEN = "[Gate]\nDeadlineSec=8s\nOnDeadline=open\n"
HOLD = "[Gate]\nDeadlineSec=4s\nOnDeadline=hold\nHoldSec=12s\n"


def went_well(boot: qemu.Boot, *names: str) -> None:
    """Every check reported success, and the machine powered off; pytest -rP shows the
    observations."""
    for name, row in boot.results.items():
        print(f"{name}: {row.get('failed') or json.dumps(row.get('saw', {}), indent=1)}")
    print(f"{boot.took_s:.0f} s")
    assert list(boot.results) == [*names, "end"], boot.told()
    failed = [name for name, row in boot.results.items() if row["ok"] is not True]
    assert not failed, boot.told()
    assert boot.ended, boot.told()


def test_the_incident_with_a_crash_reloads_and_limits(disk: Disk) -> None:
    went_well(s.live(disk, "gated,load", {**s.INCIDENT, **s.KILLED}), *GATED)


def test_the_incident_without_the_gate(disk: Disk) -> None:
    went_well(
        s.live(disk, "ungated", {**s.INCIDENT, **s.WITHOUT}),
        "incident_without_the_gate",
        "reachable",
    )


@pytest.mark.parametrize("settings", [OPEN, HOLD], ids=["open", "hold"])
def test_a_machine_with_broken_gpus_is_reachable(disk: Disk, settings: str) -> None:
    went_well(
        s.live(disk, "deadline", {**s.BROKEN, s.CONF: settings}),
        "held_and_reachable",
        "deadline_over",
    )


def test_cgroup_v1(disk: Disk) -> None:
    went_well(
        s.live(disk, "v1", {**s.HEALTHY, s.CONF: REPORT}, s.V1),
        "it_is_cgroup_v1",
        "a_loss_is_found",
    )


def test_a_machine_that_does_not_end_is_killed_and_reported(disk: Disk) -> None:
    boot = s.live(disk, "", {}, within_s=3)
    assert not boot.ended and boot.results == {}
    assert "did not end in time" in boot.told()
