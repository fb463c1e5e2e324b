"""The gate's one step: the phase, released, ready, and the time of the next cycle."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from agent.core.gate.deadline import MAX_HOLD_S, hold_limit_s
from agent.core.gate.schedule import MAX_BACKOFF_S
from agent.core.gate.transitions import Gate, Phase, step
from agent.core.plugin.repair import RepairState
from agent.model.actions import DropProbe, Learn, MakeNodes, Release, StartProbe
from agent.model.finding import Diagnosis, Finding, Heals, Scope, Verdict
from agent.model.mark import Mark
from agent.model.settings import Settings
from agent.model.snapshot import Devices, Manager, ProbeEnd, ProbeState, Remains

from .snapshots import (
    BUSES,
    DEFAULTS,
    DENIED,
    FAILED_LOG,
    GPUS,
    MISSING,
    NO_DRIVER,
    NODES,
    NOW,
    OFFSET,
    UUIDS,
    container,
    diagnosed,
    entry,
    failing,
    function,
    probed,
    report,
    seen,
    sight,
    snapshot,
    unit,
)

START = NOW - 10
WAITING_KUBELET = seen(
    (unit("kubelet.service", "inactive", since=None), unit("nvidia-persistenced.service"))
)
BOOT: dict[str, Any] = {"units": WAITING_KUBELET, "allocatable": MISSING, "learned": seen(BUSES)}
"""A node that boots: its kubelet waits, and has not answered yet."""


def gate(**changes: Any) -> Gate:
    return replace(Gate(started_at=START, since=START), **changes)


def boot(settings: Settings = DEFAULTS, **changes: Any) -> Diagnosis:
    return diagnosed(settings, **{**BOOT, **changes})


def after_probes(
    count: int,
    settings: Settings = DEFAULTS,
    begin: Gate | None = None,
    first: int = 1,
    **changes: Any,
) -> Gate:
    """The gate once so many probes of the same node were judged, one a second."""
    now, at = begin or gate(), START
    for number in range(first, first + count):
        at += 1
        now = step(
            now,
            boot(settings, **{"probe": probed(number=number, started_at=at - 1), **changes}),
            at,
            settings,
        ).gate
    return now


def opened(**changes: Any) -> Gate:
    return replace(after_probes(3), **changes)


def failed(count: int, code: int = 999, every_s: float = 1.0, **changes: Any) -> tuple[Gate, float]:
    """The gate after so many probes that got this error, and the instant of the last one."""
    now, at = gate(), START
    for number in range(1, count + 1):
        at += every_s
        now = step(
            now, boot(probe=failing(code, number=number, started_at=at), **changes), at, DEFAULTS
        ).gate
    return now, at


def kinds(actions: Any) -> set[type]:
    return {type(action) for action in actions}


def test_the_numbers_of_the_phases_never_change() -> None:
    assert {phase.value: phase.number for phase in Phase} == {
        "WAITING": 0,
        "PROBING": 1,
        "SETTLING": 2,
        "OPEN": 3,
        "REVALIDATING": 4,
        "REPAIRING": 5,
        "BLOCKED": 6,
        "NOT_APPLICABLE": 7,
    }


def test_three_equal_probes_open_the_gate() -> None:
    phases = [after_probes(count).phase for count in range(4)]
    assert phases == [Phase.WAITING, Phase.SETTLING, Phase.SETTLING, Phase.OPEN]
    assert after_probes(2).why == "NVML enumerates 2 of 2 GPUs: 2 of 3 equal probes"
    assert not after_probes(2).released
    assert after_probes(3).released == "stable: NVML enumerates 2 of 2 GPUs"


def test_the_same_probe_counts_once() -> None:
    once = after_probes(1)
    for _ in range(9):
        once = step(once, boot(), NOW, DEFAULTS).gate
    assert once.good == 1


def test_one_probe_is_enough_with_stable_probes_1() -> None:
    assert after_probes(1, Settings(stable_probes=1)).phase is Phase.OPEN


def test_a_difference_between_readings_starts_the_count_again() -> None:
    two = after_probes(2)
    other = boot(probe=probed(number=3, gpus=(replace(GPUS[0], uuid="GPU-other"), GPUS[1])))
    assert step(two, other, NOW, DEFAULTS).gate.good == 1


def test_a_failure_starts_the_count_again() -> None:
    assert step(after_probes(2), boot(probe=failing(999, number=3)), NOW, DEFAULTS).gate.good == 0


def test_an_event_restarts_nothing() -> None:
    two = after_probes(2)
    again = step(
        two,
        boot(probe=probed(number=2), trouble=("udev is lost",), manager=seen(Manager("252", NOW))),
        NOW,
        DEFAULTS,
    ).gate
    assert (again.good, again.phase) == (2, Phase.SETTLING)


# name, what the gate remembers, what is changed in the scene, settings, phase, reason
TABLE: list[tuple[str, Gate, dict[str, Any], dict[str, Any], Phase, str]] = [
    ("no GPU", gate(), {"pci": seen(())}, {}, Phase.NOT_APPLICABLE, "NoGpuForContainers"),
    (
        "all GPUs given away",
        gate(),
        {"pci": seen((function(BUSES[0], "vfio-pci"),))},
        {},
        Phase.NOT_APPLICABLE,
        "NoGpuForContainers",
    ),
    (
        "no GPU any more",
        opened(),
        {"pci": seen(())},
        {},
        Phase.NOT_APPLICABLE,
        "NoGpuForContainers",
    ),
    ("no driver yet", gate(), NO_DRIVER, {}, Phase.WAITING, "DriverNotInstalled"),
    (
        "driver installed, not loaded",
        gate(),
        {**NO_DRIVER, "module_installed": seen("nvidia.ko")},
        {},
        Phase.WAITING,
        "DriverNotLoaded",
    ),
    (
        "module still loading",
        gate(),
        {"module_state": seen("coming")},
        {},
        Phase.WAITING,
        "DriverLoading",
    ),
    ("driver went away", opened(), NO_DRIVER, {}, Phase.WAITING, "DriverNotInstalled"),
    (
        "driver unreadable",
        gate(),
        {"driver_version": DENIED, "module_state": MISSING},
        {},
        Phase.WAITING,
        "DriverUnreadable",
    ),
    ("PCI unreadable", gate(), {"pci": DENIED}, {}, Phase.WAITING, "PciUnreadable"),
    ("PCI short", gate(), {}, {"expected_gpus": ("8",)}, Phase.WAITING, "PciShort"),
    (
        "a GPU without a driver",
        gate(),
        {"pci": seen((function(BUSES[0]), function(BUSES[1], "")))},
        {},
        Phase.WAITING,
        "GpuUnbound",
    ),
    ("not probed", gate(), {"probe": seen(ProbeState())}, {}, Phase.PROBING, "NotProbed"),
    ("NVML 999", gate(), {"probe": failing(999)}, {}, Phase.PROBING, "NvmlUnknown"),
    ("seven of eight", gate(), {"probe": probed(gpus=GPUS[:1])}, {}, Phase.PROBING, "GpuMissing"),
    (
        "mismatch, seen once",
        gate(),
        {"probe": failing(18)},
        {},
        Phase.PROBING,
        "NvmlLibRmVersionMismatch",
    ),
    (
        "mismatch, seen twice",
        gate(hopeless=1, counted=1),
        {"probe": failing(18, number=2)},
        {},
        Phase.BLOCKED,
        "NvmlLibRmVersionMismatch",
    ),
    (
        "hung",
        gate(),
        {"probe": seen(ProbeState(report(), None, Remains(7, "D", "", START)))},
        {},
        Phase.SETTLING,
        "Settling",
    ),
    (
        "hung, nothing before",
        gate(),
        {"probe": seen(ProbeState(None, None, Remains(7, "D", "", START)))},
        {},
        Phase.PROBING,
        "ProbeHung",
    ),
    ("nodes missing", gate(), {"nodes": seen(NODES[1:])}, {}, Phase.WAITING, "DeviceNodesMissing"),
    (
        "nodes gone",
        opened(),
        {"probe": probed(number=3), "nodes": seen(NODES[1:])},
        {},
        Phase.WAITING,
        "DeviceNodesMissing",
    ),
    ("open", opened(), {"probe": probed(number=3)}, {}, Phase.OPEN, ""),
    (
        "reloaded",
        opened(),
        {"probe": probed(number=3), "manager": seen(Manager("252", NOW - 1))},
        {},
        Phase.REVALIDATING,
        "Revalidating",
    ),
    (
        "open, and the next probe hangs",
        opened(),
        {"probe": seen(ProbeState(report(3), None, Remains(7, "D", "", START)))},
        {},
        Phase.REVALIDATING,
        "ProbeHung",
    ),
]


@pytest.mark.parametrize(
    ("name", "before", "changes", "settings", "phase", "reason"),
    TABLE,
    ids=[row[0] for row in TABLE],
)
def test_phase(
    name: str,
    before: Gate,
    changes: dict[str, Any],
    settings: dict[str, Any],
    phase: Phase,
    reason: str,
) -> None:
    after = step(before, boot(Settings(**settings), **changes), NOW, Settings(**settings)).gate
    assert (after.phase, after.reason) == (phase, reason)
    assert after.why
    assert after.since == (before.since if phase is before.phase else NOW)


HOPELESS = gate(hopeless=1, counted=1)
# name, before, changes, settings, a part of the reason; "" where the kubelet must go on waiting
RELEASES: list[tuple[str, Gate, dict[str, Any], dict[str, Any], str]] = [
    ("probing", gate(), {"probe": failing(999)}, {}, ""),
    ("settling", gate(), {}, {}, ""),
    (
        "driver installed and not loaded",
        gate(),
        {**NO_DRIVER, "module_installed": seen("nvidia.ko")},
        {},
        "",
    ),
    ("driver being built", gate(), {**NO_DRIVER, "driver_building": seen("nvidia 550")}, {}, ""),
    ("PCI unreadable", gate(), {"pci": DENIED}, {}, ""),
    (
        "whether a driver is there is unknown",
        gate(),
        {**NO_DRIVER, "module_installed": DENIED},
        {},
        "",
    ),
    ("systemd unreadable", gate(), {"units": DENIED, "probe": failing(999)}, {}, ""),
    ("hung", gate(), {"probe": seen(ProbeState(None, None, Remains(7, "D", "", START)))}, {}, ""),
    ("open", replace(after_probes(2), counted=2), {"probe": probed(number=3)}, {}, "stable: "),
    ("no GPU", gate(), {"pci": seen(())}, {}, "no NVIDIA GPU on the PCI bus"),
    ("paused", gate(), {"paused": seen(Mark("", 0.0)), "probe": failing(999)}, {}, "paused"),
    ("driver comes later", gate(), NO_DRIVER, {}, "no nvidia driver on the host yet"),
    (
        "mismatch",
        HOPELESS,
        {"probe": failing(18, number=2)},
        {},
        "NVML_ERROR_LIB_RM_VERSION_MISMATCH",
    ),
    (
        "GPU lost",
        HOPELESS,
        {"probe": failing(15, "nvmlDeviceGetHandleByIndex", 1, number=2)},
        {},
        "GPU_IS_LOST",
    ),
    ("no library", HOPELESS, {"probe": failing(12, "dlopen", number=2)}, {}, "LIBRARY_NOT_FOUND"),
    (
        "kubelet already running",
        gate(),
        {"units": seen((unit("kubelet.service"),)), "probe": failing(999)},
        {},
        "already running",
    ),
    (
        "released earlier in this boot",
        gate(),
        {"released": seen(Mark("open before", 1.0)), "probe": failing(999)},
        {},
        "open before",
    ),
    (
        "deadline",
        gate(started_at=NOW - 180),
        {"probe": failing(999)},
        {},
        "the deadline is over while PROBING: nv",
    ),
    ("a second before the deadline", gate(started_at=NOW - 179), {"probe": failing(999)}, {}, ""),
    (
        "deadline of the wait unit",
        gate(),
        {"waiting": seen(Mark("", NOW - 180)), "probe": failing(999)},
        {},
        "the deadline is over",
    ),
    (
        "a wait that began later",
        gate(started_at=1.0),
        {"waiting": seen(Mark("", NOW - 5)), "probe": failing(999)},
        {},
        "",
    ),
    ("hold", gate(started_at=NOW - 180), {"probe": failing(999)}, {"on_deadline": "hold"}, ""),
    (
        "hold is over",
        gate(started_at=NOW - 1800),
        {"probe": failing(999)},
        {"on_deadline": "hold"},
        "deadline",
    ),
    (
        "control plane",
        gate(started_at=NOW - 20),
        {"probe": failing(999), "control_plane": True},
        {},
        "deadline",
    ),
    (
        "control plane and hold",
        gate(started_at=NOW - 20),
        {"probe": failing(999), "control_plane": True},
        {"on_deadline": "hold"},
        "deadline",
    ),
    (
        "a mark from the future",
        gate(started_at=NOW - 180),
        {"waiting": seen(Mark("", NOW + 1e6)), "probe": failing(999)},
        {},
        "deadline",
    ),
]


@pytest.mark.parametrize(
    ("name", "before", "changes", "settings", "says"),
    [pytest.param(*row, id=row[0]) for row in RELEASES],
)
def test_release(
    name: str, before: Gate, changes: dict[str, Any], settings: dict[str, Any], says: str
) -> None:
    done = step(before, boot(Settings(**settings), **changes), NOW, Settings(**settings))
    assert bool(done.gate.released) is bool(says), done.gate
    assert says in done.gate.released
    marks = [a for a in done.actions if isinstance(a, Release)]
    assert len(marks) == (1 if says and "released" not in changes else 0)
    assert all(mark.reason == done.gate.released and mark.kind for mark in marks)


def test_once_released_released_for_this_boot() -> None:
    after = opened()
    for changes in (
        {"probe": failing(999, number=4)},
        {"pci": DENIED},
        NO_DRIVER,
        {"nodes": seen(())},
    ):
        after = step(after, boot(**changes), NOW, DEFAULTS).gate
        assert after.released.startswith("stable: ")
        assert not after.ready


@pytest.mark.parametrize(
    ("settings", "plane", "limit"),
    [
        ({}, False, 180.0),
        ({}, True, 20.0),
        ({"deadline_s": 10.0}, True, 10.0),
        ({"on_deadline": "hold"}, False, 1800.0),
        ({"on_deadline": "hold"}, True, 20.0),
        (
            {"on_deadline": "hold", "hold_s": 60.0},
            False,
            180.0,
        ),  # hold never means less than the deadline
        ({"deadline_s": 9e9}, False, MAX_HOLD_S),
        ({"on_deadline": "hold", "hold_s": 9e9}, False, MAX_HOLD_S),
    ],
)
def test_the_longest_delay_of_a_kubelet(
    settings: dict[str, Any], plane: bool, limit: float
) -> None:
    assert hold_limit_s(Settings(**settings), plane) == limit


REGISTERED = {"units": seen((unit("kubelet.service", since=50.0),)), "learned": seen(BUSES)}
LISTED = {"listed": 1, "listed_at": NOW - 1}
"""The kubelet listed everything once before."""
# name, before, changes, ready, a part of the reason
READINESS: list[tuple[str, Gate, dict[str, Any], bool, str]] = [
    (
        "open and registered",
        opened(**LISTED),
        {"probe": probed(number=3)},
        True,
        "the kubelet lists 2 of 2",
    ),
    (
        "listed once is not yet",
        opened(),
        {"probe": probed(number=3)},
        False,
        "lists 2 of 2 GPUs, once so far",
    ),
    (
        "the same answer again is once",
        opened(listed=1, listed_at=NOW),
        {"probe": probed(number=3)},
        False,
        "once so",
    ),
    (
        "listed none in between",
        opened(listed=5),
        {"probe": probed(number=3), "allocatable": seen(())},
        False,
        "no n",
    ),
    ("not looked", gate(), {"probe": seen(ProbeState())}, False, "no probe"),
    ("settling", gate(), {}, False, "1 of 3 equal probes"),
    (
        "open, not registered",
        opened(),
        {"probe": probed(number=3), "allocatable": seen(())},
        False,
        "lists no",
    ),
    (
        "open, the kubelet is silent",
        opened(),
        {"probe": probed(number=3), "allocatable": MISSING},
        False,
        "no answer",
    ),
    (
        "open, no kubelet here",
        opened(),
        {"probe": probed(number=3), "units": seen(()), "allocatable": MISSING},
        True,
        "NVML enumerates 2",
    ),
    ("one GPU gone", opened(), {"probe": probed(number=4, gpus=GPUS[:1])}, False, "1 of 2"),
    (
        "reloaded just now",
        opened(**LISTED),
        {"probe": probed(number=3), "manager": seen(Manager("252", NOW - 1))},
        True,
        "2",
    ),
    (
        "reloaded, no verdict since",
        opened(validated_at=NOW - 20),
        {"probe": probed(number=3), "manager": seen(Manager("252", NOW - 16))},
        False,
        "no verdict for 16 s",
    ),
    (
        "reloaded while paused",
        opened(**LISTED),
        {
            "probe": probed(number=3),
            "manager": seen(Manager("252", NOW - 1)),
            "paused": seen(Mark("", 0.0)),
        },
        False,
        "not validated since a reload or restart; paused: ",
    ),
    ("no GPU", gate(), {"pci": seen(()), "units": seen(())}, True, "no NVIDIA GPU"),
    (
        "only a nouveau GPU",
        gate(),
        {"pci": seen((function(BUSES[0], "nouveau"),)), "units": seen(())},
        False,
        "nouveau",
    ),
    ("driver comes later", gate(), NO_DRIVER, False, "no nvidia driver"),
    ("deadline over", gate(started_at=0.0), {"probe": failing(999)}, False, "NVML_ERROR_UNKNOWN"),
    (
        "paused before it was open",
        gate(),
        {"paused": seen(Mark("", 0.0)), "probe": failing(999)},
        False,
        "999",
    ),
    ("mismatch", HOPELESS, {"probe": failing(18, number=2)}, False, "drain the node and reboot"),
    (
        "device nodes cannot be read any more",
        opened(),
        {"probe": probed(number=3), "nodes": DENIED},
        False,
        "/dev",
    ),
]


@pytest.mark.parametrize(
    ("name", "before", "changes", "ready", "says"),
    [pytest.param(*row, id=row[0]) for row in READINESS],
)
def test_ready(name: str, before: Gate, changes: dict[str, Any], ready: bool, says: str) -> None:
    after = step(before, diagnosed(**{**REGISTERED, **changes}), NOW, DEFAULTS).gate
    assert after.ready is ready
    assert says in after.ready_why


BROKEN: dict[str, Any] = {
    **REGISTERED,
    "probe": probed(number=3),
    "allocatable": seen(()),
    "plugins": (sight(FAILED_LOG),),
}
"""The plugin's NVML failed while it started, and the kubelet lists nothing."""
DISTURBED = {"manager": seen(Manager("252", NOW + 0.5))}
HELD_PLUGIN = {"plugins": (sight(FAILED_LOG), sight(of=container("c2")))}


def mended(changes: dict[str, Any], then: dict[str, Any], looks: int) -> Gate:
    """The gate after snapshots of the same node, a second apart, the last one with a change."""
    now = opened(open_since=100.0, validated_at=NOW - 1)
    for n in range(looks):
        seen_now = {**changes, **(then if n == looks - 1 else {})}
        now = step(now, diagnosed(**seen_now), NOW + n, DEFAULTS).gate
    return now


# what is seen, what the last look sees otherwise, looks, phase, reason
MENDS: list[tuple[str, dict[str, Any], dict[str, Any], int, Phase, str]] = [
    ("one look decides nothing", BROKEN, {}, 1, Phase.OPEN, ""),
    ("a repair that the hand may still refuse", BROKEN, {}, 2, Phase.OPEN, ""),
    ("a repair", BROKEN, {}, 3, Phase.REPAIRING, "Repairing"),
    ("the word of the kubelet is awaited", BROKEN, {}, 5, Phase.REPAIRING, "Repairing"),
    ("a reload meanwhile", BROKEN, DISTURBED, 3, Phase.REPAIRING, "Repairing"),
    (
        "NVML fails meanwhile",
        BROKEN,
        {"probe": failing(999, number=4)},
        3,
        Phase.PROBING,
        "NvmlUnknown",
    ),
    ("one look holds nothing", {**BROKEN, **HELD_PLUGIN}, {}, 1, Phase.OPEN, ""),
    ("held", {**BROKEN, **HELD_PLUGIN}, {}, 2, Phase.BLOCKED, "TwoPlugins"),
    (
        "held, and a reload",
        {**BROKEN, **HELD_PLUGIN},
        DISTURBED,
        3,
        Phase.REVALIDATING,
        "Revalidating",
    ),
    (
        "held, and NVML fails",
        {**BROKEN, **HELD_PLUGIN},
        {"probe": failing(999, number=4)},
        3,
        Phase.PROBING,
        "NvmlUnknown",
    ),
    (
        "held, and it is gone",
        {**BROKEN, **HELD_PLUGIN},
        REGISTERED | {"allocatable": snapshot().kubelet.allocatable},
        3,
        Phase.OPEN,
        "",
    ),
    (
        "held by the budget",
        {**BROKEN, "ledger": seen((entry(at=OFFSET + NOW - 1),))},
        {},
        2,
        Phase.BLOCKED,
        "BudgetSpent",
    ),
]


@pytest.mark.parametrize(
    ("seen_first", "then", "looks", "phase", "reason"),
    [row[1:] for row in MENDS],
    ids=[row[0] for row in MENDS],
)
def test_phases_of_a_repair(
    seen_first: dict[str, Any], then: dict[str, Any], looks: int, phase: Phase, reason: str
) -> None:
    after = mended(seen_first, then, looks)
    assert (after.phase, after.reason) == (phase, reason)
    assert after.released, "whatever is wrong with a plugin, its kubelet runs"
    assert not after.ready


def test_a_repair_is_ready_after_two_answers_and_not_before() -> None:
    now = mended(BROKEN, {}, 2)
    for at, ready in ((NOW + 3, False), (NOW + 4, True)):
        answered = replace(snapshot().kubelet.allocatable, at=at)
        now = step(now, diagnosed(**{**BROKEN, "allocatable": answered}), at, DEFAULTS).gate
        assert now.ready is ready
    assert now.phase is Phase.OPEN


def test_a_failing_probe_is_recorded_for_repairs() -> None:
    now = step(
        opened(), diagnosed(**{**REGISTERED, "probe": failing(999, number=4)}), NOW, DEFAULTS
    ).gate
    assert now.repair.bad_probe_at == pytest.approx(NOW)
    assert now.open_since is None


def test_nvml_is_stable_since_its_last_needed_probe() -> None:
    assert after_probes(2).open_since is None
    assert after_probes(3).open_since == START + 3
    assert after_probes(9).open_since == START + 3


def test_unloading_the_driver_discards_the_last_probe() -> None:
    gone = step(opened(), boot(**{**NO_DRIVER, "probe": probed(number=3)}), NOW, DEFAULTS).gate
    assert (gone.good, gone.validated_at, gone.hopeless) == (0, None, 0)
    back = step(gone, boot(probe=probed(number=3)), NOW + 1, DEFAULTS)
    assert back.gate.phase is not Phase.OPEN
    assert StartProbe in kinds(back.actions)


def test_readings_that_differ_drop_the_verdict_without_a_new_probe() -> None:
    renumbered = seen((replace(NODES[0], minor=1), replace(NODES[1], minor=0), *NODES[2:]))
    after = step(opened(), boot(probe=probed(number=3), nodes=renumbered), NOW, DEFAULTS)
    assert after.gate.good == 0
    assert StartProbe in kinds(after.actions)


def test_a_validation_newer_than_the_reload_opens_again() -> None:
    reload_at = NOW - 1
    changes: dict[str, Any] = {"manager": seen(Manager("252", reload_at))}
    disturbed = step(opened(), boot(probe=probed(number=3), **changes), NOW, DEFAULTS)
    assert StartProbe in kinds(disturbed.actions)
    stale = boot(probe=probed(number=4, started_at=reload_at - 1), **changes)
    assert step(disturbed.gate, stale, NOW + 1, DEFAULTS).gate.phase is Phase.REVALIDATING
    fresh = boot(probe=probed(number=4, started_at=reload_at + 0.5), **changes)
    assert step(disturbed.gate, fresh, NOW + 1, DEFAULTS).gate.phase is Phase.OPEN


def test_probes_follow_each_other_soon_at_first_and_ever_more_rarely_later() -> None:
    pauses = []
    for count in (1, 2, 30, 61, 65, 90, 200, 900):
        after, at = failed(count)
        pauses.append(after.probe_after - at)
    assert pauses[:3] == [1.0, 1.0, 1.0]
    assert pauses == sorted(pauses)
    assert pauses[-1] == MAX_BACKOFF_S


def test_a_hang_is_followed_by_longer_pauses_from_the_start() -> None:
    now, at, pauses = gate(), START, []
    for number in range(1, 8):
        at += 60
        hung = probed(number=number, end=ProbeEnd.HUNG, gpus=(), detail="hung")
        now = step(now, boot(probe=hung), at, DEFAULTS).gate
        pauses.append(now.probe_after - at)
    assert pauses == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0, 60.0]


def test_a_fault_that_cannot_heal_is_still_probed_rarely() -> None:
    after, at = failed(2, 18)
    assert after.phase is Phase.BLOCKED
    assert after.probe_after - at == MAX_BACKOFF_S
    healed = step(after, boot(probe=probed(number=3, started_at=at)), at + 60, DEFAULTS).gate
    assert (healed.phase, healed.hopeless) == (Phase.SETTLING, 0)


def test_a_cause_that_may_heal_between_two_that_cannot_starts_the_agreement_again() -> None:
    now = gate()
    for number, code in enumerate((18, 999, 18), 1):
        now = step(now, boot(probe=failing(code, number=number)), NOW, DEFAULTS).gate
    assert (now.hopeless, now.phase) == (1, Phase.PROBING)


# name, before, changes, actions that must and must not be there
ACTIONS: list[tuple[str, Gate, dict[str, Any], set[type], set[type]]] = [
    (
        "first look",
        gate(),
        {"probe": seen(ProbeState())},
        {StartProbe, DropProbe},
        {Release, Learn},
    ),
    ("a probe runs", gate(), {"probe": seen(ProbeState(running_since=NOW))}, set(), {StartProbe}),
    (
        "remains of a probe",
        gate(),
        {"probe": seen(ProbeState(report(), None, Remains(7, "D", "", 1.0)))},
        set(),
        {StartProbe},
    ),
    (
        "paused",
        gate(),
        {"paused": seen(Mark("", 0.0)), "nodes": seen(NODES[:2])},
        {DropProbe},
        {StartProbe, MakeNodes},
    ),
    ("no driver", gate(), NO_DRIVER, {DropProbe}, {StartProbe}),
    ("no GPU", gate(), {"pci": seen(())}, {DropProbe}, {StartProbe}),
    ("nodes to add", gate(), {"nodes": seen(NODES[:2])}, {MakeNodes}, set()),
    (
        "open, learned already",
        opened(),
        {"probe": probed(number=3)},
        {DropProbe},
        {Learn, StartProbe},
    ),
    (
        "open, nothing learned",
        opened(),
        {"probe": probed(number=3), "learned": MISSING},
        {Learn},
        {StartProbe},
    ),
    (
        "settling",
        after_probes(2),
        {"probe": probed(number=2), "learned": MISSING},
        set(),
        {DropProbe, Learn},
    ),
    (
        "open for an interval",
        opened(probe_after=NOW),
        {"probe": probed(number=3)},
        {StartProbe},
        set(),
    ),
]


@pytest.mark.parametrize(
    ("name", "before", "changes", "wanted", "unwanted"), ACTIONS, ids=[r[0] for r in ACTIONS]
)
def test_actions(
    name: str, before: Gate, changes: dict[str, Any], wanted: set[type], unwanted: set[type]
) -> None:
    found = kinds(step(before, boot(**changes), NOW, DEFAULTS).actions)
    assert wanted <= found
    assert not unwanted & found


@pytest.mark.parametrize(
    ("asked_for", "there", "asks"),
    [
        ("mig gpu0/gi1/ci0", ("gpu0/gi1/ci0",), False),
        ("mig gpu0/gi1/ci0", ("gpu0/gi2/ci0",), True),
        ("mig gpu0/gi1/ci0", (), True),
        ("mig", ("gpu0/gi1/ci0",), True),
        ("", ("gpu0/gi1/ci0",), False),
    ],
)
def test_mig_instances_that_differ_from_the_last_probe(
    asked_for: str, there: tuple[str, ...], asks: bool
) -> None:
    before = opened(probe_after=NOW + 500, asked_for=asked_for)
    again = step(before, boot(probe=probed(number=3), mig_instances=seen(there)), NOW, DEFAULTS)
    assert (StartProbe in kinds(again.actions)) is asks
    assert again.gate.asked_for == (" ".join(("mig", *there)) if asks else asked_for)
    unread = step(before, boot(probe=probed(number=3)), NOW, DEFAULTS)
    assert StartProbe not in kinds(unread.actions)


def test_probe_processes_overlap_while_settling_and_none_remains_once_open() -> None:
    first = step(gate(), boot(probe=seen(ProbeState())), NOW, DEFAULTS)
    assert StartProbe(overlap=True) in first.actions
    later = step(opened(probe_after=NOW), boot(probe=probed(number=3)), NOW, DEFAULTS)
    assert StartProbe(overlap=False) in later.actions


@pytest.mark.parametrize(
    ("ids", "age", "asks"),
    [(UUIDS[:1], 29.0, False), (UUIDS[:1], 30.0, True), (UUIDS, 30.0, False), ((), 30.0, False)],
)
@pytest.mark.parametrize("since", [NOW - 10, NOW - 400], ids=["open", "held by the mender"])
def test_more_frequent_probes_while_some_gpus_are_listed(
    ids: Any, age: float, asks: bool, since: float
) -> None:
    """A GPU may be lost."""
    partly = {
        **REGISTERED,
        "probe": probed(number=3),
        "allocatable": seen((Devices("nvidia.com/gpu", ids),)),
    }
    held = (
        RepairState(held="some are listed", held_reason="PartlyRegistered")
        if since == NOW - 400
        else RepairState()
    )
    before = opened(validated_at=NOW - age, probe_after=NOW + 500, open_since=since, repair=held)
    done = step(before, diagnosed(**partly), NOW, DEFAULTS)
    assert (StartProbe in kinds(done.actions)) is asks
    if len(ids) == 1:
        assert done.gate.phase is (Phase.OPEN if since == NOW - 10 else Phase.BLOCKED)


def test_the_gpu_record_never_shrinks() -> None:
    done = step(
        opened(), boot(probe=probed(number=3), learned=seen(("0000:ff:00.0",))), NOW, DEFAULTS
    )
    assert [a.bus_ids for a in done.actions if isinstance(a, Learn)] == [(*BUSES, "0000:ff:00.0")]


@pytest.mark.parametrize(
    ("before", "changes", "wake_at"),
    [
        (gate(probe_after=NOW + 3), {"probe": failing(999)}, NOW + 1),  # the next probe
        (
            gate(),
            {**NO_DRIVER, "module_installed": seen("nvidia.ko")},
            NOW + 5,
        ),  # is the module refused?
        (
            gate(started_at=NOW - 176),
            {**NO_DRIVER, "module_installed": seen("n.ko")},
            NOW + 4,
        ),  # the deadline
        (
            opened(),
            {
                "probe": probed(number=3),
                "units": seen((unit("kubelet.service"),)),
                "allocatable": MISSING,
            },
            NOW + 2,
        ),  # a plugin registers silently
    ],
)
def test_when_the_next_cycle_runs(before: Gate, changes: dict[str, Any], wake_at: float) -> None:
    assert step(before, boot(**changes), NOW, DEFAULTS).wake_at == pytest.approx(wake_at, abs=0.05)


def test_the_end_of_the_standing_verdict_wakes() -> None:
    disturbed = boot(
        probe=seen(ProbeState(report(3), NOW)),
        manager=seen(Manager("252", NOW - 14)),
        units=seen(()),
    )
    assert (
        NOW + 1 < step(opened(validated_at=NOW - 20), disturbed, NOW, DEFAULTS).wake_at <= NOW + 1.1
    )


@pytest.mark.parametrize("missing", ["finding", "next step"])
def test_findings_for_links_without_a_rule(missing: str) -> None:
    """A diagnosis of another version, or of a test, may lack parts."""
    bare = replace(boot(probe=seen(ProbeState())), findings=())
    after = step(gate(hopeless=2 if missing == "next step" else 0), bare, NOW, DEFAULTS).gate
    assert "NVML was not asked" in after.why


def strange(rng: random.Random) -> Diagnosis:
    """A diagnosis from readings picked at random."""
    return boot(
        pci=rng.choice(
            [
                seen(tuple(function(b) for b in BUSES)),
                seen(()),
                DENIED,
                seen((function(BUSES[0]), function(BUSES[1], ""))),
            ]
        ),
        probe=rng.choice(
            [
                probed(number=rng.randrange(9)),
                failing(999, number=rng.randrange(9)),
                failing(15, number=rng.randrange(9)),
                probed(number=rng.randrange(9), gpus=GPUS[:1]),
                seen(ProbeState()),
                seen(ProbeState(running_since=NOW)),
            ]
        ),
        nodes=rng.choice([seen(NODES), seen(NODES[:2]), DENIED]),
        module_state=rng.choice([seen("live"), seen("coming"), MISSING]),
        driver_version=rng.choice([seen("550.54.15"), MISSING, DENIED]),
        module_installed=rng.choice([seen("nvidia.ko"), MISSING, DENIED]),
        manager=rng.choice([seen(Manager("252", rng.uniform(0, 3000))), DENIED]),
        allocatable=rng.choice([MISSING, seen(())]),
    )


@pytest.mark.parametrize("seed", range(20))
def test_invariants_over_random_worlds(seed: int) -> None:
    """With any readings in any order: no open gate on an incomplete set, no kubelet delayed beyond
    the deadline."""
    rng, now, at = random.Random(seed), gate(), START
    for _ in range(60):
        at += rng.uniform(0.01, 8)
        diagnosis = strange(rng)
        done = step(now, diagnosis, at, DEFAULTS)
        assert done == step(now, diagnosis, at, DEFAULTS), (
            "step is pure: the same input gives the same output"
        )
        after = done.gate
        assert not (now.released and after.released != now.released), (
            "once released, released for this boot"
        )
        assert after.released or at < after.deadline_at
        assert done.wake_at > at - 1e-9
        if after.phase is Phase.OPEN:
            assert after.good >= DEFAULTS.stable_probes
            assert diagnosis.scope is Scope.GPUS and diagnosis.may_probe
            broken = diagnosis.first_broken()
            assert broken is None or broken.link not in (1, 3, 5)
        if after.ready:
            assert after.phase in (Phase.OPEN, Phase.REVALIDATING, Phase.NOT_APPLICABLE)
        if not diagnosis.may_probe or diagnosis.probe_busy:
            assert StartProbe not in kinds(done.actions)
        now = after


def test_an_unknown_link_is_reported_before_a_later_broken_one() -> None:
    """Everything after the first link we know nothing of may only follow from it."""
    blind = replace(
        boot(),
        may_probe=False,
        findings=(
            Finding(2, "DriverLoaded", Verdict.UNKNOWN, "could not be read", "DriverUnreadable"),
            Finding(
                10,
                "PluginRegistered",
                Verdict.FAILS,
                "the kubelet lists none",
                "NotRegistered",
                heals=Heals.SOON,
            ),
        ),
    )
    assert step(gate(), blind, NOW, DEFAULTS).gate.why != "the kubelet lists none"
