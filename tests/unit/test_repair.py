"""Whether and how to restart the plugin now, and the outcome: as a table, as invariants over random
worlds, and as runs in a tiny world in which the agent loses its memory at any time."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from agent.core.diagnose import diagnose
from agent.core.gate.states import Phase
from agent.core.plugin.ledger import CURED, LASTS_S
from agent.core.plugin.repair import (
    AGREE_S,
    HUP_WITHIN_S,
    REFUSED_S,
    RepairState,
    RepairStep,
    refuse,
    step,
)
from agent.model.actions import (
    DISRUPTIVE,
    NoteNvmlFailed,
    NoteOutcome,
    Rebuild,
    RestartUnit,
    SendHup,
)
from agent.model.fault import Cure
from agent.model.finding import Diagnosis, Verdict
from agent.model.mark import Mark
from agent.model.reading import Refusal, Seen
from agent.model.runtime import ContainerState, LedgerEntry, SocketOwner
from agent.model.settings import Settings
from agent.model.snapshot import Clock, Devices, Snapshot

from .plugin_world import REBUILT_S, World, open_world
from .snapshots import (
    BOOT_ID,
    DEFAULTS,
    DENIED,
    FAILED,
    FAILED_LOG,
    MISSING,
    NOW,
    OFFSET,
    TIMED_OUT,
    UUIDS,
    WELL_LOG,
    changed,
    container,
    diagnosed,
    entry,
    seen,
    sight,
    snapshot,
    unit,
)

OPEN_SINCE = 500.0
NONE_LISTED: dict[str, Any] = {"allocatable": seen(())}
PLUGIN_UNIT = "nvidia-device-plugin.service"
NO_LIBRARY = b"2021/06/27 10:12:47 Failed to initialize NVML: could not load NVML library.\n"
OLD_LIBRARY = b"2021/06/27 10:12:47 Failed to initialize NVML: Driver/library version mismatch.\n"
ASKING_LOG = b"2021/06/27 10:12:47 Retreiving plugins.\n"
TAKEN_OUT = (
    b"2021/06/27 10:12:47 XidCriticalError: Xid=79 on Device=GPU-x; marking device as unhealthy.\n"
)
CAUSE = "PluginInitFailed kube-system/nvidia-device-plugin-node/nvidia-device-plugin-ctr kubelet "
"""Of a plugin whose NVML failed, under a kubelet without an invocation."""
BROKEN: dict[str, Any] = {**NONE_LISTED, "plugins": (sight(FAILED_LOG),)}
"""The incident: it runs, its log shows an NVML failure, and the kubelet lists nothing."""


def look(
    changes: dict[str, Any],
    settings: Settings = DEFAULTS,
    repair: RepairState | None = None,
    at: float = NOW,
    open_since: float | None = OPEN_SINCE,
    in_a_row: int = 0,
) -> RepairStep:
    """`in_a_row`: answers of the kubelet that list everything."""
    return step(
        repair or RepairState(), diagnosed(settings, **changes), open_since, in_a_row, at, settings
    )


def twice(
    changes: dict[str, Any],
    settings: Settings = DEFAULTS,
    apart: float = AGREE_S,
    open_since: float | None = OPEN_SINCE,
) -> RepairStep:
    """The second of two equal snapshots."""
    first = look(changes, settings, open_since=open_since)
    assert disruptive(first) is None, "never at the first look"
    return look(changes, settings, first.repair, NOW + apart, open_since)


def disruptive(done: RepairStep) -> Any:
    found = [a for a in done.actions if isinstance(a, DISRUPTIVE)]
    assert len(found) <= 1, "one at a time"
    return found[0] if found else None


def started(ago_s: float) -> Any:
    return container(created_at=OFFSET + NOW - ago_s)


def kubelet(since: float | None = 50.0, **changes: Any) -> Any:
    return replace(unit("kubelet.service", since=since), **changes)


EIGHT = sight(FAILED_LOG, True, image="plugin:v0.14.1")
UNIT_NODE: dict[str, Any] = {
    **NONE_LISTED,
    "plugins": (),
    "units": seen((kubelet(), replace(unit(PLUGIN_UNIT), invocation_id="beef"))),
}
AS_UNIT = {"plugin_unit": PLUGIN_UNIT}
# name, what is seen twice, settings, the action, why not (reason word)
DECISIONS: list[tuple[str, dict[str, Any], dict[str, Any], type | None, str]] = [
    ("the incident", BROKEN, {}, Rebuild, ""),
    ("it answers SIGHUP", {**NONE_LISTED, "plugins": (EIGHT,)}, {}, SendHup, ""),
    ("access denied", {**NONE_LISTED, "plugins": (sight(WELL_LOG, False),)}, {}, Rebuild, ""),
    (
        "access denied, and 1 of 2 listed",
        {
            "plugins": (sight(WELL_LOG, False),),
            "allocatable": seen((Devices("nvidia.com/gpu", UUIDS[:1]),)),
        },
        {},
        Rebuild,
        "",
    ),
    (
        "1 of 2 listed",
        {"allocatable": seen((Devices("nvidia.com/gpu", UUIDS[:1]),))},
        {},
        None,
        "PartlyRegistered",
    ),
    (
        "1 of 2 listed, opted in",
        {"allocatable": seen((Devices("nvidia.com/gpu", UUIDS[:1]),))},
        {"repair_partial": True},
        Rebuild,
        "",
    ),
    (
        "1 of 2 listed and failed",
        {**BROKEN, "allocatable": seen((Devices("nvidia.com/gpu", UUIDS[:1]),))},
        {},
        None,
        "PartlyRegistered",
    ),
    ("all listed", {"plugins": (sight(FAILED_LOG),)}, {}, None, ""),
    (
        "no library",
        {**NONE_LISTED, "plugins": (sight(NO_LIBRARY),)},
        {},
        None,
        "PluginLacksLibrary",
    ),
    (
        "the only GPUs were taken out after an Xid",
        {**NONE_LISTED, "plugins": (sight(TAKEN_OUT),)},
        {},
        None,
        "PluginSawUnhealthy",
    ),
    (
        "a GPU was taken out after an Xid, opted in",
        {
            "plugins": (sight(TAKEN_OUT),),
            "allocatable": seen((Devices("nvidia.com/gpu", UUIDS[:1]),)),
        },
        {"repair_partial": True},
        None,
        "PluginSawUnhealthy",
    ),
    (
        "its status cannot be read",
        {**NONE_LISTED, "plugins": (replace(sight(FAILED_LOG), detail=TIMED_OUT),)},
        {},
        None,
        "",
    ),
    (
        "its log cannot be read",
        {**NONE_LISTED, "plugins": (sight(TIMED_OUT),)},
        {},
        None,
        "PluginLogUnread",
    ),
    (
        "its log cannot be read, and it is young",
        {**NONE_LISTED, "plugins": (sight(TIMED_OUT, of=started(1.0)),)},
        {},
        None,
        "",
    ),
    (
        "its log cannot be read, its access is denied",
        {**NONE_LISTED, "plugins": (sight(TIMED_OUT, False),)},
        {},
        Rebuild,
        "",
    ),
    (
        "an older driver's library",
        {**NONE_LISTED, "plugins": (sight(OLD_LIBRARY, True, image="plugin:v0.17.1"),)},
        {},
        Rebuild,
        "",
    ),
    (
        "two plugins",
        {**NONE_LISTED, "plugins": (sight(FAILED_LOG), sight(FAILED_LOG, of=container("c2")))},
        {},
        None,
        "TwoPlugins",
    ),
    ("no plugin", {**NONE_LISTED, "plugins": ()}, {}, None, ""),
    (
        "crash loop",
        {**NONE_LISTED, "plugins": (sight(FAILED_LOG, of=container(state=ContainerState.EXITED)),)},
        {},
        None,
        "",
    ),
    (
        "created, long ago",
        {**NONE_LISTED, "plugins": (sight(of=container(state=ContainerState.CREATED)),)},
        {},
        Rebuild,
        "",
    ),
    ("forgotten, long ago", NONE_LISTED, {}, Rebuild, ""),
    (
        "forgotten, its container is young",
        {**NONE_LISTED, "plugins": (sight(of=started(29.0)),)},
        {},
        None,
        "",
    ),
    (
        "forgotten, old enough at the first look",
        {**NONE_LISTED, "plugins": (sight(of=started(30.0)),)},
        {},
        Rebuild,
        "",
    ),
    (
        "forgotten, the kubelet is young",
        {**NONE_LISTED, "units": seen((kubelet(NOW - 20),))},
        {},
        None,
        "",
    ),
    (
        "forgotten, its owner waits longer",
        {**NONE_LISTED, "plugins": (sight(of=started(100.0)),)},
        {"register_within_s": 200.0},
        None,
        "",
    ),
    (
        "failed, and young",
        {**NONE_LISTED, "plugins": (sight(FAILED_LOG, of=started(1.0)),)},
        {},
        Rebuild,
        "",
    ),
    (
        "started in the future: the clock was set back",
        {**NONE_LISTED, "plugins": (sight(of=started(-7200.0)),)},
        {},
        Rebuild,
        "",
    ),
    ("paused", {**BROKEN, "paused": seen(Mark("", 0.0))}, {}, None, ""),
    ("report only", BROKEN, {"repair": "report"}, None, "RepairOff"),
    ("the ledger cannot be read", {**BROKEN, "ledger": FAILED}, {}, None, "LedgerUnreadable"),
    ("the ledger may not be read", {**BROKEN, "ledger": DENIED}, {}, None, "LedgerUnreadable"),
    ("the kubelet is silent", {**BROKEN, "allocatable": TIMED_OUT}, {}, None, ""),
    ("the kubelet's API is away", {**BROKEN, "allocatable": MISSING}, {}, None, ""),
    (
        "the kubelet's answer is older than it",
        {**BROKEN, "units": seen((kubelet(NOW + 0.5),))},
        {},
        None,
        "",
    ),
    ("the kubelet is down", {**BROKEN, "units": seen((kubelet(active="inactive"),))}, {}, None, ""),
    ("systemd is silent", {**BROKEN, "units": TIMED_OUT}, {}, None, ""),
    ("no kubelet", {**BROKEN, "units": seen(())}, {}, None, ""),
    ("the runtime is silent", {**BROKEN, "runtime": TIMED_OUT, "plugins": ()}, {}, None, ""),
    (
        "the same cause in another container",
        {**BROKEN, "ledger": seen((entry(cause=CAUSE),))},
        {},
        None,
        "SameCauseAgain",
    ),
    (
        "the same cause in this container, long ago: it was not done",
        {**BROKEN, "ledger": seen((entry(cause=CAUSE, target="c1"),))},
        {},
        Rebuild,
        "",
    ),
    (
        "the same cause in this container, just now",
        {**BROKEN, "ledger": seen((entry(cause=CAUSE, target="c1", at=OFFSET + NOW - 10),))},
        {},
        None,
        "BudgetSpent",
    ),
    (
        "the same cause in another boot",
        {**BROKEN, "ledger": seen((entry(cause=CAUSE, boot_id="before"),))},
        {},
        Rebuild,
        "",
    ),
    ("another cause", {**BROKEN, "ledger": seen((entry(),))}, {}, Rebuild, ""),
    (
        "SIGHUP was tried",
        {
            **NONE_LISTED,
            "plugins": (EIGHT,),
            "ledger": seen((entry(what="hup", cause=CAUSE, target="c1"),)),
        },
        {},
        Rebuild,
        "",
    ),
    (
        "SIGHUP was tried for another container",
        {
            **NONE_LISTED,
            "plugins": (EIGHT,),
            "ledger": seen((entry(what="hup", cause="another", target="c0"),)),
        },
        {},
        SendHup,
        "",
    ),
    (
        "budget of the boot",
        {**BROKEN, "ledger": seen((entry(cause="another"),))},
        {"repairs_per_boot": 1},
        None,
        "BudgetSpent",
    ),
    (
        "budget of the hour",
        {**BROKEN, "ledger": seen((entry(cause="another"),))},
        {"repairs_per_hour": 1},
        None,
        "BudgetSpent",
    ),
    ("a unit", UNIT_NODE, AS_UNIT, RestartUnit, ""),
    (
        "a unit that is down",
        {**NONE_LISTED, "plugins": (), "units": seen((kubelet(), unit(PLUGIN_UNIT, "failed")))},
        AS_UNIT,
        None,
        "",
    ),
    ("a container where a unit is configured", BROKEN, AS_UNIT, Rebuild, ""),
    (
        "its pod would not start it again",
        {**BROKEN, "plugins": (replace(sight(FAILED_LOG), restart_policy="Never"),)},
        {},
        None,
        "NeverStartedAgain",
    ),
    (
        "its pod would not start it again, and it is young",
        {**NONE_LISTED, "plugins": (replace(sight(of=started(1.0)), restart_policy="Never"),)},
        {},
        None,
        "",
    ),
    (
        "another serves its socket",
        {**BROKEN, "socket_owners": (SocketOwner("nvidia-gpu.sock", 7, "c9", ""),)},
        {},
        None,
        "AnotherServes",
    ),
]


@pytest.mark.parametrize(
    ("changes", "settings", "action", "held"),
    [row[1:] for row in DECISIONS],
    ids=[row[0] for row in DECISIONS],
)
def test_decisions_after_two_snapshots(
    changes: dict[str, Any], settings: dict[str, Any], action: type | None, held: str
) -> None:
    done = twice(changes, Settings(**settings))
    found = disruptive(done)
    assert (type(found) if found else None) == action
    assert done.repair.held_reason == held
    assert bool(done.repair.held) is bool(held)
    if found:
        assert done.repair.acting == found.cause
        assert done.repair.settle_by > NOW


@pytest.mark.parametrize(
    ("changes", "may"),
    [
        ({}, True),
        ({"units": seen((kubelet(None),))}, True),
        ({"units": seen((kubelet(active="reloading"),))}, True),
        ({"units": seen((kubelet(NOW),))}, True),
        ({"units": seen((kubelet(NOW + 0.1),))}, False),
        ({"units": seen((kubelet(active="activating"),))}, False),
        ({"units": DENIED}, False),
        ({"allocatable": TIMED_OUT}, False),
        ({"allocatable": MISSING}, False),
    ],
)
def test_the_kubelet_must_have_answered_in_this_snapshot(
    changes: dict[str, Any], may: bool
) -> None:
    view = diagnosed(**changes).repair_facts
    assert view is not None and view.may_act is may


def test_an_action_names_its_target() -> None:
    rebuild = disruptive(twice({**BROKEN, "ledger": seen((entry(number=7),))}))
    assert (rebuild.container_id, rebuild.number, rebuild.cause) == ("c1", 8, CAUSE)
    assert "Failed to initialize NVML" in rebuild.because and "c1" in rebuild.sentence
    hup = disruptive(twice({**NONE_LISTED, "plugins": (EIGHT,)}))
    assert (hup.container_id, hup.pid) == ("c1", 4711)
    restart = disruptive(twice(UNIT_NODE, Settings(**AS_UNIT)))
    assert (restart.unit, restart.invocation) == (PLUGIN_UNIT, "beef")


def test_a_blocked_repair_has_a_reason_and_a_next_step() -> None:
    again = twice({**BROKEN, "ledger": seen((entry(cause=CAUSE),))}).repair.held
    assert "did not cure it" in again and "/evidence/1" in again
    assert "RuntimeClass" in twice({**NONE_LISTED, "plugins": (sight(NO_LIBRARY),)}).repair.held
    assert (
        "[Plugin] Containers="
        in twice({**NONE_LISTED, "plugins": (sight(), sight(of=container("c2")))}).repair.held
    )
    assert (
        "is allowed in"
        in twice({**BROKEN, "ledger": seen((entry(cause="x", at=OFFSET + NOW - 10),))}).repair.held
    )
    assert (
        "RepairPartial=yes"
        in twice({"allocatable": seen((Devices("nvidia.com/gpu", UUIDS[:1]),))}).repair.held
    )


def test_a_cause_is_its_reason_the_pods_container_and_the_kubelets_start() -> None:
    """Another kubelet makes another cause: what a rebuild cured before may be broken again by its
    restart."""
    later = {
        **BROKEN,
        "units": seen((kubelet(invocation_id="0123456789abcdef"),)),
        "ledger": seen((entry(cause=CAUSE),)),
    }
    assert disruptive(twice(later)).cause == CAUSE + "0123456789ab"


# what the second look sees otherwise, and how much later it is
DISAGREE: list[tuple[str, dict[str, Any], float]] = [
    ("too soon", BROKEN, 0.99),
    ("another container", {**BROKEN, "plugins": (sight(FAILED_LOG, of=container("c2")),)}, 5.0),
    ("another reason", {**BROKEN, "plugins": (sight(WELL_LOG),)}, 5.0),
    ("another kubelet", {**BROKEN, "units": seen((kubelet(60.0, invocation_id="ab"),))}, 5.0),
    (
        "another pod",
        {**BROKEN, "plugins": (sight(FAILED_LOG, of=container(name="nvidia-device-plugin")),)},
        5.0,
    ),
]


@pytest.mark.parametrize(
    ("second", "later"), [row[1:] for row in DISAGREE], ids=[row[0] for row in DISAGREE]
)
def test_snapshots_that_do_not_agree_cause_no_repair(second: dict[str, Any], later: float) -> None:
    first = look(BROKEN)
    assert disruptive(look(second, repair=first.repair, at=NOW + later)) is None


@pytest.mark.parametrize(
    "between",
    [
        {**BROKEN, "allocatable": TIMED_OUT},
        {"plugins": (sight(FAILED_LOG),)},
        {**BROKEN, "paused": seen(Mark("", 0.0))},
        {**BROKEN, "plugins": ()},
        {**BROKEN, "runtime": TIMED_OUT, "plugins": ()},
    ],
)
def test_two_consecutive_snapshots_must_agree(between: dict[str, Any]) -> None:
    """A snapshot without the fault restarts the count of agreeing snapshots."""
    first = look(BROKEN)
    other = look(between, repair=first.repair, at=NOW + 1)
    third = look(BROKEN, repair=other.repair, at=NOW + 2)
    assert disruptive(third) is None
    assert disruptive(look(BROKEN, repair=third.repair, at=NOW + 3))


def test_no_repair_while_nvml_is_not_stable() -> None:
    assert not twice(BROKEN, open_since=None).actions


@pytest.mark.parametrize(("since", "acts"), [(NOW - 20, False), (NOW - 31, True)])
def test_silence_counts_from_when_nvml_was_stable(since: float, acts: bool) -> None:
    assert bool(disruptive(twice(NONE_LISTED, open_since=since))) is acts


def test_when_the_next_cycle_runs() -> None:
    assert look(BROKEN).wake_at == NOW + AGREE_S
    young = look({**NONE_LISTED, "plugins": (sight(of=started(10.0)),)})
    assert young.wake_at == pytest.approx(NOW + 20.0)
    spent = twice({**BROKEN, "ledger": seen((entry(cause="x", at=OFFSET + NOW - 10),))})
    assert spent.wake_at == pytest.approx(NOW + 50.0)


FAILED_SINCE = entry(what="nvml-failed")


def test_the_same_cause_again_needs_news() -> None:
    again = {**BROKEN, "ledger": seen((entry(cause=CAUSE),))}
    assert twice(again).repair.held_reason == "SameCauseAgain"
    older = replace(FAILED_SINCE, number=0)
    assert (
        twice({**BROKEN, "ledger": seen((older, entry(cause=CAUSE)))}).repair.held_reason
        == "SameCauseAgain"
    )
    assert disruptive(twice({**BROKEN, "ledger": seen((entry(cause=CAUSE), FAILED_SINCE))}))


# the last failing probe, the ledger: is it written down that NVML failed since the last action (of
# 100 s ago)?
NEWS: list[tuple[float | None, tuple[LedgerEntry, ...], bool]] = [
    (None, (entry(),), False),
    (NOW - 200, (entry(),), False),
    (NOW - 50, (entry(),), True),
    (NOW - 50, (entry(), FAILED_SINCE), False),
    (NOW - 50, (), False),
    (NOW - 50, (entry(boot_id="before"),), False),
    (NOW - 50, (entry(at=OFFSET + NOW - 900), FAILED_SINCE, entry(2)), True),
]


@pytest.mark.parametrize(("failed_at", "entries", "noted"), NEWS)
@pytest.mark.parametrize("acting", ["", "some cause"])
def test_an_nvml_failure_is_remembered_across_restarts_of_the_agent(
    failed_at: float | None, entries: tuple[LedgerEntry, ...], noted: bool, acting: str
) -> None:
    """Also while NVML is not stable, and while an action is not settled."""
    repair = RepairState(bad_probe_at=failed_at, acting=acting, settle_by=NOW + 60)
    done = look({**BROKEN, "ledger": seen(entries)}, repair=repair, open_since=None)
    found = [a.number for a in done.actions if isinstance(a, NoteNvmlFailed)]
    assert found == [e.number for e in entries[-1:]] * noted


def test_a_unit_is_not_restarted_again_after_a_failed_restart() -> None:
    cause = f"NotRegistered {PLUGIN_UNIT} kubelet "
    before = entry(what="restart-unit", cause=cause, target=f"{PLUGIN_UNIT} dead")
    assert (
        twice({**UNIT_NODE, "ledger": seen((before,))}, Settings(**AS_UNIT)).repair.held_reason
        == "SameCauseAgain"
    )
    killed = replace(
        before, target=f"{PLUGIN_UNIT} beef"
    )  # the agent was killed before it was done
    assert disruptive(twice({**UNIT_NODE, "ledger": seen((killed,))}, Settings(**AS_UNIT)))


# --- after an action

ACTED = RepairState(acting=CAUSE, acted_at=NOW, settle_by=NOW + 60)
DONE = (entry(number=3, at=OFFSET + NOW, cause=CAUSE),)
HUPPED = (replace(DONE[0], what="hup", target="c1"),)
NOT_TAKEN = entry(number=3, what="outcome", outcome="failed: no answer within 15.0 s")
LISTED: dict[str, Any] = {"ledger": seen(DONE)}


def notes(done: RepairStep) -> list[str]:
    return [a.outcome for a in done.actions if isinstance(a, NoteOutcome)]


def test_two_answers_that_list_everything_settle_an_action() -> None:
    first = look(LISTED, repair=ACTED, at=NOW + 1, in_a_row=1)
    assert (first.repair.acting, notes(first)) == (CAUSE, [])
    second = look(LISTED, repair=first.repair, at=NOW + 2, in_a_row=2)
    assert (second.repair.acting, notes(second)) == ("", ["the kubelet lists every GPU"])


# what the ledger says, the plugin now, seconds since the act: is it known to be in vain?
VAIN: list[tuple[str, tuple[LedgerEntry, ...], dict[str, Any], float, bool]] = [
    (
        "the hand failed, the same container runs on",
        (replace(DONE[0], target="c1"), NOT_TAKEN),
        {},
        15.0,
        True,
    ),
    ("the hand failed, another one runs", (*DONE, NOT_TAKEN), {}, 15.0, False),
    (
        "the hand failed, and it ended all the same",
        (replace(DONE[0], target="c1"), NOT_TAKEN),
        {"plugins": (sight(FAILED_LOG, of=container(state=ContainerState.EXITED)),)},
        15.0,
        False,
    ),
    (
        "the hand failed, the runtime is silent",
        (replace(DONE[0], target="c1"), NOT_TAKEN),
        {"runtime": TIMED_OUT, "plugins": ()},
        15.0,
        False,
    ),
    ("nobody said how it went", (replace(DONE[0], target="c1"),), {}, 15.0, False),
    ("SIGHUP, just now", HUPPED, {}, 1.9, False),
    ("SIGHUP, and NVML failed it again", HUPPED, {}, 2.0, True),
    ("SIGHUP, and it asks NVML", HUPPED, {"plugins": (sight(ASKING_LOG),)}, 9.0, False),
    ("SIGHUP ended it", HUPPED, {"plugins": (sight(FAILED_LOG, of=container("c2")),)}, 9.0, False),
]


@pytest.mark.parametrize(
    ("entries", "changes", "after_s", "vain"), [r[1:] for r in VAIN], ids=[r[0] for r in VAIN]
)
def test_a_failed_action_is_settled_at_once(
    entries: tuple[LedgerEntry, ...], changes: dict[str, Any], after_s: float, vain: bool
) -> None:
    done = look({**BROKEN, **changes, "ledger": seen(entries)}, repair=ACTED, at=NOW + after_s)
    assert (done.repair.acting == "") is vain
    assert notes(done) == (["not cured"] if vain and NOT_TAKEN not in entries else [])


@pytest.mark.parametrize(("in_a_row", "noted"), [(1, []), (2, ["the kubelet lists every GPU"])])
def test_an_action_without_effect_may_succeed_later(in_a_row: int, noted: list[str]) -> None:
    assert notes(look({"ledger": seen((*DONE, NOT_TAKEN))}, in_a_row=in_a_row)) == noted


@pytest.mark.parametrize(
    ("ago_s", "changes", "repair", "noted"),
    [
        (40, {}, RepairState(), True),
        (39, {}, RepairState(), False),
        (40, {"what": "hup"}, RepairState(), False),
        (40, {"target": "c0"}, RepairState(), False),
        (40, {}, ACTED, False),
        (40, {"boot_id": "before"}, RepairState(), False),
    ],
)
def test_an_agent_that_was_killed_before_it_could_act(
    ago_s: float, changes: dict[str, Any], repair: RepairState, noted: bool
) -> None:
    """What it was to end runs on: that is seen, and costs no budget."""
    last = replace(entry(target="c1", cause=CAUSE, at=OFFSET + NOW - ago_s), **changes)
    done = look({**BROKEN, "ledger": seen((last,))}, repair=repair)
    assert [said.startswith("failed") for said in notes(done)] == [True] * noted
    said = replace(NOT_TAKEN, number=1)
    assert not notes(look({**BROKEN, "ledger": seen((last, said))}))


def test_an_action_without_effect_is_retried_later_and_reported() -> None:
    last = entry(target="c1", cause=CAUSE, at=OFFSET + NOW - 20)
    said = replace(NOT_TAKEN, number=1)
    done = twice(
        {**BROKEN, "ledger": seen((last, said))}, Settings(repairs_per_hour=1, repairs_per_boot=1)
    )
    assert done.repair.held_reason == "RepairFailed"
    assert (
        "repair 1 failed: no answer within 15.0 s" in done.repair.held
        and "next step: " in done.repair.held
    )
    old = (replace(last, at=OFFSET + NOW - 60), said)
    assert disruptive(
        twice({**BROKEN, "ledger": seen(old)}, Settings(repairs_per_hour=1, repairs_per_boot=1))
    )


def test_in_vain() -> None:
    early = look({**BROKEN, "ledger": seen(DONE)}, repair=ACTED, at=NOW + 59)
    assert early.repair.acting and not early.actions
    late = look({**BROKEN, "ledger": seen(DONE)}, repair=ACTED, at=NOW + 60)
    assert (late.repair.acting, notes(late)) == ("", ["not cured"])


def test_the_verification_time_counts_from_the_end_of_the_action() -> None:
    """VerifyWithinSec= may be shorter than the CRI stop that it is to judge."""
    settings, repair = Settings(verify_within_s=5.0), replace(ACTED, settle_by=ACTED.acted_at + 5.0)
    begun = (replace(DONE[0], target="c1"),)
    for late in (4.0, 9.0, 14.0):  # the same container runs on
        done = look({**BROKEN, "ledger": seen(begun)}, settings, repair, ACTED.acted_at + late)
        repair = done.repair
        assert repair.acting and not notes(done) and repair.settle_by == ACTED.acted_at + late + 5.0
    new = {**BROKEN, "plugins": (sight(FAILED_LOG, of=container("c2")),), "ledger": seen(begun)}
    assert look(new, settings, repair, ACTED.acted_at + 18.0).repair.acting
    assert notes(look(new, settings, repair, ACTED.acted_at + 19.0)) == ["not cured"]
    # no hand takes so long: nobody ended it
    assert notes(
        look({**BROKEN, "ledger": seen(begun)}, settings, repair, ACTED.acted_at + 40.0)
    ) == ["not cured"]


@pytest.mark.parametrize(
    "changes", [BROKEN, {**BROKEN, "paused": seen(Mark("", 0.0))}, {"units": seen(())}]
)
def test_no_other_action_while_one_is_not_settled(changes: dict[str, Any]) -> None:
    for n in range(60):
        assert disruptive(look(changes, repair=ACTED, at=NOW + n)) is None


def test_the_kubelet_ended_before_it_answered() -> None:
    gone = look(
        {"units": seen(()), "allocatable": MISSING, "ledger": seen(DONE)}, repair=ACTED, at=NOW + 61
    )
    assert (gone.repair.acting, gone.actions) == ("", ())


# what a new agent sees of an action whose end nobody saw; is the outcome noted?
UNSEEN: list[tuple[str, dict[str, Any], bool]] = [
    ("everything is listed", {}, True),
    ("the runtime is silent", {**NONE_LISTED, "runtime": TIMED_OUT, "plugins": ()}, False),
    ("the kubelet is silent", {"allocatable": TIMED_OUT}, False),
    ("nothing is listed", NONE_LISTED, False),
    (
        "noted before",
        {"ledger": seen((*DONE, entry(number=3, what="outcome", outcome="not cured")))},
        False,
    ),
    ("of another boot", {"ledger": seen((replace(DONE[0], boot_id="before"),))}, False),
    ("no action at all", {"ledger": seen(())}, False),
]


@pytest.mark.parametrize(
    ("changes", "noted"), [row[1:] for row in UNSEEN], ids=[row[0] for row in UNSEEN]
)
def test_a_new_agent_notes_a_cure_it_sees(changes: dict[str, Any], noted: bool) -> None:
    repair, said = RepairState(), []
    for n in range(4):
        done = look(
            {"ledger": seen(DONE), **changes},
            repair=repair,
            at=NOW + n,
            in_a_row=0 if "allocatable" in changes else n + 1,
        )
        repair, said = done.repair, said + notes(done)
        assert n or not said, "twice, not once"
    assert set(said) == ({"the kubelet lists every GPU"} if noted else set())


def test_a_failed_action_is_retried_only_after_a_pause() -> None:
    repair = refuse(replace(ACTED, suspect="x"), "the ledger cannot be written", NOW)
    assert (repair.acting, repair.held_reason, repair.held) == (
        "",
        "RepairRefused",
        "the ledger cannot be written",
    )
    for later in (0.1, 1, 30, REFUSED_S - 0.1):
        done = look(BROKEN, repair=repair, at=NOW + later)
        assert not done.actions and done.repair.held and done.wake_at == NOW + REFUSED_S
    first = look(BROKEN, repair=repair, at=NOW + REFUSED_S)
    assert disruptive(look(BROKEN, repair=first.repair, at=NOW + REFUSED_S + 1))


@pytest.mark.parametrize(
    ("changes", "settings"),
    [
        (BROKEN, {"repair": "report"}),
        ({**BROKEN, "ledger": seen((entry(cause=CAUSE),))}, {}),
        ({**BROKEN, "ledger": FAILED}, {}),
        ({**NONE_LISTED, "plugins": (sight(NO_LIBRARY),)}, {}),
    ],
)
def test_a_blocked_repair_is_not_recorded(
    changes: dict[str, Any], settings: dict[str, Any]
) -> None:
    """Recording costs time: only a snapshot that may lead to an action is recorded."""
    done = twice(changes, Settings(**settings))
    for n in range(2, 9):
        assert done.repair.held and not done.repair.is_armed
        done = look(changes, Settings(**settings), done.repair, NOW + n)


def test_a_repair_is_decided_on_a_recorded_snapshot() -> None:
    """The obstacle is gone, and no tape has that: the next snapshot is recorded, and leads to the
    repair."""
    held = twice(BROKEN, Settings(repair="report")).repair
    free = look(BROKEN, repair=held, at=NOW + 9)
    assert not free.actions and free.repair.is_armed and free.repair.held, (
        "and until then it is held"
    )
    assert disruptive(look(BROKEN, repair=free.repair, at=NOW + 9.1))


@pytest.mark.parametrize("apart", [0.1, AGREE_S - 0.1])
def test_one_snapshot_is_not_enough_to_need_an_operator(apart: float) -> None:
    two = {**NONE_LISTED, "plugins": (sight(), sight(of=container("c2")))}
    first = look(two)
    assert not first.repair.held and first.wake_at == NOW + AGREE_S
    early = look(two, repair=first.repair, at=NOW + apart)
    assert (
        not early.repair.held and not look(NONE_LISTED, repair=early.repair, at=NOW + 1).repair.held
    )
    assert look(two, repair=early.repair, at=NOW + AGREE_S).repair.held_reason == "TwoPlugins"


def test_a_plugin_that_came_by_itself_clears_a_refusal() -> None:
    assert look({}, repair=refuse(RepairState(), "no disk", NOW), at=NOW + 1).repair.held == ""


def test_sighup_settles_sooner_than_a_rebuild() -> None:
    hup = twice({**NONE_LISTED, "plugins": (EIGHT,)}).repair
    assert hup.settle_by == NOW + 1 + HUP_WITHIN_S < twice(BROKEN).repair.settle_by


# --- laws, over worlds at random


class Dice:
    """A random node that reacts to actions. Most of its state stays the same between snapshots."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.faces: dict[str, Any] = {}
        self.settings = Settings(
            repair=self.rng.choice(["yes", "yes", "yes", "report"]),
            repair_partial=self.rng.random() < 0.3,
            repairs_per_hour=self.rng.choice([1, 2, 3]),
            repairs_per_boot=self.rng.choice([1, 3, 6]),
            register_within_s=self.rng.choice([5.0, 30.0]),
            verify_within_s=self.rng.choice([5.0, 60.0]),
        )
        self.entries: list[LedgerEntry] = []
        self.now, self.container = NOW, 1
        self.bad_probe_at: float | None = None

    def thrown(self, name: str, usual: Any, *others: Any) -> Any:
        if name not in self.faces or self.rng.random() < 0.12:
            self.faces[name] = self.rng.choice([usual] * 5 + list(others))
        return self.faces[name]

    def snapshot(self) -> Snapshot:
        thrown, now = self.thrown, self.now
        of = container(
            f"c{self.container}",
            created_at=OFFSET + now - thrown("age", 4000.0, 1.0, 40.0),
            state=thrown(
                "state", ContainerState.RUNNING, ContainerState.EXITED, ContainerState.CREATED
            ),
        )
        one = sight(
            thrown("log", FAILED_LOG, WELL_LOG, NO_LIBRARY, b""),
            thrown("access", True, None, False),
            of=of,
            image=thrown("image", "p:v0.9.0", *["p:v0.17.0"] * 5),
        )
        ids = thrown("listed", (), UUIDS[:1], UUIDS)
        answer = seen(
            (Devices("nvidia.com/gpu", ids),) if ids else (),
            now - thrown("answered", 0.0, 0.3, 100.0),
        )
        up = seen((kubelet(now - thrown("up", 900.0, 10.0), invocation_id="k1"),), now)
        return changed(
            snapshot(),
            clock=Clock(now, now, OFFSET + now),
            plugins=thrown("plugins", 1, 0, 2) * (one,),
            allocatable=thrown("kubelet", None, TIMED_OUT, MISSING) or answer,
            units=thrown("units", None, seen((kubelet(active="inactive"),)), DENIED) or up,
            runtime=thrown("runtime", snapshot().plugin.runtime, TIMED_OUT),
            paused=thrown("paused", MISSING, seen(Mark("", 0.0))),
            ledger=FAILED if thrown("ledger", False, True) else seen(tuple(self.entries), now),
        )

    def note(self, action: Any) -> None:
        target = action.container_id if not isinstance(action, RestartUnit) else action.unit
        what = {Rebuild: "rebuild", SendHup: "hup", RestartUnit: "restart-unit"}[type(action)]
        self.entries.append(
            LedgerEntry(self.now + OFFSET, BOOT_ID, action.number, what, target, action.cause, "/e")
        )
        if isinstance(action, Rebuild) and self.rng.random() < 0.8:
            self.container += 1


def seen_by(found: Snapshot, diagnosis: Diagnosis) -> tuple[str, ...] | None:
    """What two snapshots must agree on: reason, container and kubelet; None if there is no
    conclusion."""
    view = diagnosis.repair_facts
    if view is None or view.fault is None or not found.plugin.plugins:
        return None
    return view.fault.reason, found.plugin.plugins[0].container.id, view.kubelet_invocation


def laws(
    found: Snapshot, dice: Dice, action: Any, before: RepairState, agreed_s: float, stable: bool
) -> None:
    """What must be true of a snapshot that leads to a disruptive action; judged from the snapshot
    itself, without the repair code."""
    assert stable and dice.settings.repair == "yes"
    assert isinstance(found.plugin.ledger, Seen) and not isinstance(found.boot.paused, Seen)
    assert isinstance(found.plugin.runtime, Seen) and len(found.plugin.plugins) == 1
    assert isinstance(found.boot.units, Seen) and isinstance(found.kubelet.allocatable, Seen)
    (unit_,) = found.boot.units.value
    assert (
        unit_.is_active
        and unit_.active_since is not None
        and found.kubelet.allocatable.at >= unit_.active_since
    )
    assert agreed_s >= AGREE_S, "two looks in a row, a second apart, saw the same"
    assert before.acting == "", "one at a time"
    (one,) = found.plugin.plugins
    of, ids = one.container, {i for d in found.kubelet.allocatable.value for i in d.ids}
    assert of.state is not ContainerState.EXITED
    denied = isinstance(one.access, Seen) and not one.access.value.allowed
    assert not ids or dice.settings.repair_partial or denied
    assert len(ids) < len(UUIDS) or denied
    if isinstance(action, SendHup):
        assert (
            isinstance(one.access, Seen)
            and one.access.value.allowed
            and "v0.17" in one.detail.value.image
        )
    past = [e for e in dice.entries if e.what != "nvml-failed"]
    rung = bool(past) and (past[-1].what, past[-1].target, past[-1].cause) == (
        "hup",
        of.id,
        action.cause,
    )
    tries = [
        e
        for e, after in zip(past, (*past, None)[1:], strict=True)
        if after is None
        or not (e.what == "hup" and (e.target, e.cause) == (after.target, after.cause))
    ]
    assert rung or len(tries) < dice.settings.repairs_per_boot
    hour = [e for e in tries if e.at > dice.now + OFFSET - 3600]
    assert rung or len(hour) < dice.settings.repairs_per_hour
    same = [e for e in past if e.cause == action.cause]
    if same and same[-1].target != of.id:
        cured = [e.at for e in dice.entries if e.number == same[-1].number and e.outcome == CURED]
        failed = dice.bad_probe_at is not None and dice.bad_probe_at + OFFSET > same[-1].at
        assert failed or (cured and cured[-1] + LASTS_S <= dice.now + OFFSET)


def play(seed: int) -> list[Any]:
    """Sixty snapshots of one random node, under the invariants; returns the actions."""
    dice, done = Dice(seed), []
    repair, before_saw, saw_since = RepairState(), None, NOW
    for _ in range(60):
        dice.now += dice.rng.choice([0.05, 0.5, 1.0, 1.5, 1.5, 30.0, 1000.0])
        open_since = dice.now - 400 if dice.thrown("stable", True, False) else None
        if dice.rng.random() < 0.05:
            dice.bad_probe_at = dice.now
            repair = replace(repair, bad_probe_at=dice.bad_probe_at)
        found = dice.snapshot()
        diagnosis = diagnose(found, dice.settings)
        saw = seen_by(found, diagnosis)
        saw_since = saw_since if saw == before_saw else dice.now
        decided = step(repair, diagnosis, open_since, 0, dice.now, dice.settings)
        assert decided == step(repair, diagnosis, open_since, 0, dice.now, dice.settings), "pure"
        assert decided.wake_at is None or decided.wake_at >= dice.now
        action = disruptive(decided)
        if action is not None:
            laws(found, dice, action, repair, dice.now - saw_since, open_since is not None)
            dice.note(action)
            done.append(action)
        repair = decided.repair
        for noted in decided.actions:
            if isinstance(noted, NoteNvmlFailed) and not isinstance(found.plugin.ledger, Refusal):
                dice.entries.append(
                    LedgerEntry(dice.now + OFFSET, BOOT_ID, noted.number, "nvml-failed", "", "", "")
                )
        if action is not None and dice.rng.random() < 0.1:
            repair = refuse(repair, "no disk", dice.now)
        if dice.rng.random() < 0.02:
            repair = RepairState()
        before_saw = saw
    return done


@pytest.mark.parametrize(
    "block", [0, *(pytest.param(n, marks=pytest.mark.exhaustive) for n in range(1, 10))]
)
def test_invariants_of_disruptive_actions(block: int) -> None:
    done = [action for seed in range(block * 20, block * 20 + 20) for action in play(seed)]
    assert {type(a) for a in done} == {Rebuild, SendHup}, (
        "these worlds do reach what the laws are about"
    )


# --- lives, in a tiny world

ALWAYS: Callable[[int], bool] = lambda built: built > 0  # noqa: E731
NEVER: Callable[[int], bool] = lambda built: False  # noqa: E731


def test_the_incident_is_cured_once() -> None:
    world = open_world().live(60)
    assert (world.registered, world.gate.phase, world.gate.ready) == (True, Phase.OPEN, True)
    assert [e.what for e in world.actions] == ["rebuild"]
    assert world.outcomes == ["the kubelet lists every GPU"]


def test_a_failed_rebuild_is_blocked() -> None:
    world = open_world(cures=NEVER).live(4000)
    assert (world.gate.phase, world.gate.reason) == (Phase.BLOCKED, "SameCauseAgain")
    assert "/e/1" in world.gate.why
    assert len(world.actions) == 1 and world.outcomes == ["not cured"]


@pytest.mark.parametrize(
    ("hup_cures", "whats", "within_s"), [(True, ["hup"], 6), (False, ["hup", "rebuild"], 8)]
)
def test_the_ladder(hup_cures: bool, whats: list[str], within_s: float) -> None:
    world = open_world(version="v0.17.1", hup_cures=hup_cures).live(within_s)
    assert world.registered
    assert [e.what for e in world.actions] == whats
    assert world.built == whats.count("rebuild"), "SIGHUP leaves the container as it is"


def test_nvml_that_fails_again_is_a_new_cause() -> None:
    """The rebuilt plugin failed too, because NVML did: once NVML is stable again, one more
    repair."""
    world = open_world(cures=lambda built: built > 1).live(200)
    assert world.gate.reason == "SameCauseAgain"
    world.gate = replace(world.gate, repair=replace(world.gate.repair, bad_probe_at=world.now))
    world.look()
    world.forget()
    world.live(300)
    assert world.registered and len(world.actions) == 2


@pytest.mark.parametrize("deaf", [True, False])
def test_each_kubelet_restart_causes_one_repair_of_a_deaf_plugin_only(deaf: bool) -> None:
    world = open_world(registered=True, log=WELL_LOG, deaf=deaf)
    for restart in range(1, 4):
        world.live(400)
        world.restart_kubelet()
        world.live(100)
        assert world.registered
        assert len(world.actions) == (restart if deaf else 0)
        world.now += 3600


@pytest.mark.parametrize(("log", "within_s"), [(FAILED_LOG, 0.0), (WELL_LOG, 30.0), (b"", 30.0)])
def test_how_soon(log: bytes, within_s: float) -> None:
    """Two snapshots a second apart, once it is a fault; and it is listed again as soon as the
    rebuild allows."""
    world = open_world(log=log)
    began = world.now
    world.live(60, lambda w: w.gate.ready)
    ((decided_at, _),) = world.decided
    assert decided_at - began <= within_s + AGREE_S + 0.5
    assert world.now - decided_at <= REBUILT_S + 2.0


def cured(world: World) -> bool:
    return world.registered and world.gate.ready


LIVES: list[tuple[str, dict[str, Any], int]] = [
    ("a rebuild cures", {}, 1),
    ("nothing cures", {"cures": NEVER}, 1),
    ("SIGHUP cures", {"version": "v0.17.1", "hup_cures": True}, 1),
    ("SIGHUP does not, a rebuild does", {"version": "v0.17.1"}, 2),
    ("forgotten by the kubelet", {"log": WELL_LOG}, 1),
]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "acted", [True, False], ids=["dropped after the act", "dropped before the act"]
)
@pytest.mark.parametrize(
    ("changes", "most"), [row[1:] for row in LIVES], ids=[row[0] for row in LIVES]
)
def test_memory_may_be_dropped_at_any_moment(
    changes: dict[str, Any], most: int, acted: bool
) -> None:
    """After any snapshot, also between the ledger entry and the action: the same end as without the
    kill, with at most one more action if the interrupted one never happened."""
    plain = World(**changes).live(150)
    for at_look in [*range(14), *range(14, plain.looks, 9)]:
        world = World(**changes)
        while world.looks < at_look:
            world.acts = acted or world.looks != at_look - 1
            world.live(1e9, lambda w, before=world.looks: w.looks > before)
        world.acts = True
        world.forget()
        world.live(200)
        assert cured(world) is cured(plain), f"dropped after look {at_look}: {world.gate}"
        undone = 0 if acted else 1
        assert len(world.actions) <= most + undone, f"dropped after look {at_look}: {world.actions}"
        assert world.built <= plain.built + (0 if acted else 1)
        if cured(plain):
            assert world.outcomes[-1:] == ["the kubelet lists every GPU"]
        else:
            assert world.gate.reason == "SameCauseAgain"


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(n, marks=pytest.mark.exhaustive) for n in range(1, 20))]
)
def test_memory_that_is_dropped_again_and_again(seed: int) -> None:
    rng = random.Random(seed)
    world = World(
        cures=lambda built: built >= rng.choice([1, 1, 2]),
        version=rng.choice(["v0.9.0", "v0.17.1"]),
        hup_cures=rng.random() < 0.5,
        log=rng.choice([FAILED_LOG, WELL_LOG]),
    )
    for _ in range(200):
        world.acts = rng.random() < 0.8
        world.live(rng.uniform(0.1, 20))
        if rng.random() < 0.3:
            world.forget()
        if rng.random() < 0.02:
            world.restart_kubelet()
    tries = [
        e
        for e, after in zip(world.actions, (*world.actions, None)[1:], strict=True)
        if after is None or e.what != "hup" or (e.target, e.cause) != (after.target, after.cause)
    ]
    assert len(tries) <= world.settings.repairs_per_boot
    hours = [sum(1 for other in tries if 0 <= other.at - e.at < 3600) for e in tries]
    assert max(hours, default=0) <= world.settings.repairs_per_hour


def test_a_cure_of_every_kind_is_tried() -> None:
    cures = {
        look(changes).repair and diagnosed(Settings(**settings), **changes).repair_facts.fault.cure
        for _, changes, settings, _, _ in DECISIONS
        if (view := diagnosed(Settings(**settings), **changes).repair_facts) and view.fault
    }
    assert cures == set(Cure)


def test_a_registration_that_holds_is_no_fault() -> None:
    assert diagnosed().registered.verdict is Verdict.HOLDS
    assert diagnosed().repair_facts.fault is None
