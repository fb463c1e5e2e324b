"""The scheduling barrier's decisions: hysteresis, patches, their order, and random worlds in which
nothing slips."""

from __future__ import annotations

import random
from typing import Any

import pytest

from agent.barrier import decide
from agent.barrier.readiness import AgentReadiness, from_status, no_answer
from agent.barrier.view import NodeView, is_older, stamp, view
from agent.model.settings import Settings

LABEL, TAINT, CONDITION = "gpu-gate.io/ready", "example.com/gpu-not-ready", "GpuReady"
SETTINGS = Settings(node_taint=TAINT)
BOOT, EARLIER = "boot-2", "boot-1"
NOW = 1_700_000_000.0
YES = AgentReadiness(True, "Ready", "the kubelet lists 8 of 8 GPUs")
NO = AgentReadiness(False, "NotRegistered", "the kubelet lists no nvidia.com/*")
UNSURE = AgentReadiness(None, "Settling", "1 of 3 equal probes")


def node(
    label: str | None = None,
    tainted: bool = True,
    condition: str = "",
    boot: str = BOOT,
    reason: str = "Ready",
    heartbeat: float = NOW,
) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": "True", "lastHeartbeatTime": stamp(NOW)}]
    if condition:
        conditions.append(
            {
                "type": CONDITION,
                "status": condition,
                "reason": reason,
                "lastHeartbeatTime": stamp(heartbeat),
                "lastTransitionTime": stamp(NOW - 900),
            }
        )
    return {
        "kind": "Node",
        "metadata": {
            "name": "n",
            "resourceVersion": "7",
            "labels": {LABEL: label} if label else {},
        },
        "spec": {
            "taints": [
                {"key": "other", "effect": "NoExecute", "timeAdded": "x"},
                *([{"key": TAINT, "effect": "NoSchedule", "value": "v"}] if tainted else []),
            ]
        },
        "status": {
            "conditions": conditions,
            "nodeInfo": {"bootID": boot},
            "capacity": {"nvidia.com/gpu": "8"},
            "allocatable": {"nvidia.com/gpu": "8"},
        },
    }


OPEN = node("true", tainted=False, condition="True")


def state(readiness: AgentReadiness, at: float = 0.0) -> decide.BarrierState:
    """The state after the agent has reported the same for long."""
    found = decide.step(decide.stopped(), readiness, at, SETTINGS)
    return decide.step(found, readiness, at + 100, SETTINGS)


def wanted(found: decide.BarrierState, seen: dict[str, Any], **more: Any) -> list[tuple[bool, Any]]:
    return [
        (p.status, p.body) for p in decide.patches(found, view(seen), BOOT, NOW, SETTINGS, **more)
    ]


# --- the agent's readiness


def status(**gate: Any) -> dict[str, Any]:
    findings = gate.pop("findings", [])
    return {
        "gate": {"ready": False, "ready_why": "why", "phase": "OPEN", "reason": "", **gate},
        "cycle": {"age_s": 1.0, "overdue_after_s": 40.0},
        "findings": findings,
    }


def finding(link: int, verdict: str, reason: str, blocks: bool = True) -> dict[str, Any]:
    return {"link": link, "verdict": verdict, "reason": reason, "blocks": blocks}


@pytest.mark.parametrize(
    ("said", "ready", "reason"),
    [
        (status(ready=True), True, "Ready"),
        (status(findings=[finding(10, "fails", "NotRegistered")]), False, "NotRegistered"),
        (
            status(
                findings=[finding(5, "unknown", "NotProbed"), finding(10, "fails", "NotRegistered")]
            ),
            False,
            "NotRegistered",
        ),
        (
            status(findings=[finding(4, "fails", "PersistenceInactive", blocks=False)]),
            None,
            "NotVerified",
        ),
        (status(findings=[finding(11, "fails", "NodeShowsFewer")]), None, "NotVerified"),
        (status(findings=[finding(10, "unknown", "KubeletSilent")]), None, "KubeletSilent"),
        (status(phase="SETTLING", reason="Settling"), None, "Settling"),
        (status(phase="BLOCKED", reason="BudgetSpent"), False, "BudgetSpent"),
        (
            status(ready=True) | {"cycle": {"age_s": 41, "overdue_after_s": 40.0}},
            None,
            "CycleOverdue",
        ),
        (status(ready=True) | {"cycle": {"age_s": 1}}, None, "CycleOverdue"),
        (status(ready=True) | {"cycle": {}}, None, "CycleOverdue"),
        ({}, None, "CycleOverdue"),
        (status(ready="yes") | {"findings": "junk"}, None, "NotVerified"),
    ],
)
def test_readiness_from_the_agents_status(
    said: dict[str, Any], ready: bool | None, reason: str
) -> None:
    readiness = from_status(said)
    assert (readiness.ready, readiness.reason) == (ready, reason)


def test_the_readiness_message_is_one_printable_line() -> None:
    assert AgentReadiness(False, "X", "a\nb\x1b[31m").line == "X: a?b?[31m"
    assert YES.line == "the kubelet lists 8 of 8 GPUs"


# --- hysteresis


def test_no_closes_at_once_and_yes_opens_only_after_a_while() -> None:
    closed = decide.step(state(YES), NO, 200, SETTINGS)
    assert not closed.is_open and closed.status == "False"
    first = decide.step(closed, YES, 300, SETTINGS)
    assert not first.is_open
    assert first.readiness == NO, "the last reason is still published"
    assert not decide.step(first, YES, 304.9, SETTINGS).is_open
    assert decide.step(first, YES, 305, SETTINGS).is_open


def test_a_break_starts_the_count_again() -> None:
    first = decide.step(state(NO), YES, 300, SETTINGS)
    broken = decide.step(first, UNSURE, 302, SETTINGS)
    again = decide.step(broken, YES, 304, SETTINGS)
    assert not decide.step(again, YES, 306, SETTINGS).is_open


@pytest.mark.parametrize("before", [YES, NO])
def test_an_unknown_state_keeps_the_last_state_for_a_while(before: AgentReadiness) -> None:
    stood = state(before)
    found = decide.step(stood, no_answer("no answer"), 200, SETTINGS)
    found = decide.step(found, UNSURE, 219.9, SETTINGS)
    assert (found.is_open, found.status, found.readiness) == (stood.is_open, stood.status, before)
    gone = decide.step(found, UNSURE, 220, SETTINGS)
    assert (gone.is_open, gone.status, gone.readiness) == (False, "Unknown", UNSURE)


def test_a_restarted_agent_changes_nothing() -> None:
    found = state(YES)
    for at, readiness in ((200, no_answer("gone")), (203, UNSURE), (206, YES)):
        found = decide.step(found, readiness, at, SETTINGS)
        assert found.is_open
    assert wanted(found, OPEN) == []


# --- what is written


def test_opening_writes_the_condition_first_and_label_with_taint_in_one_patch() -> None:
    first, second = wanted(state(YES), node())
    assert first[0] is True
    said = first[1]["status"]["conditions"][0]
    assert (said["type"], said["status"], said["reason"]) == (CONDITION, "True", "Ready")
    assert second == (
        False,
        {
            "metadata": {"labels": {LABEL: "true"}, "resourceVersion": "7"},
            "spec": {"taints": [{"key": "other", "effect": "NoExecute", "timeAdded": "x"}]},
        },
    )


def test_closing_changes_label_and_taint_first() -> None:
    first, second = wanted(state(NO), OPEN)
    assert first == (
        False,
        {
            "metadata": {"labels": {LABEL: None}, "resourceVersion": "7"},
            "spec": {
                "taints": [
                    {"key": "other", "effect": "NoExecute", "timeAdded": "x"},
                    {"key": TAINT, "effect": "NoSchedule"},
                ]
            },
        },
    )
    said = second[1]["status"]["conditions"][0]
    assert (said["status"], said["reason"], said["message"]) == ("False", NO.reason, NO.message)
    assert said["lastTransitionTime"] == stamp(NOW)


def test_nothing_is_written_if_the_node_is_up_to_date() -> None:
    assert wanted(state(YES), OPEN) == []
    assert wanted(state(NO), node(condition="False", reason="NotRegistered")) == []


def test_the_condition_has_a_heartbeat_and_a_reason_that_flaps_is_written_rarely() -> None:
    assert wanted(state(YES), node("true", False, "True", heartbeat=NOW - 299)) == []
    (beat,) = wanted(state(YES), node("true", False, "True", heartbeat=NOW - 300))
    assert beat[1]["status"]["conditions"][0]["lastTransitionTime"] == stamp(NOW - 900)
    assert wanted(state(NO), node(condition="False", reason="Other", heartbeat=NOW - 14)) == []
    assert len(wanted(state(NO), node(condition="False", reason="Other", heartbeat=NOW - 15))) == 1
    assert len(wanted(state(YES), node("true", False, "True", heartbeat=NOW + 900))) == 1, (
        "the clock was set back"
    )


def test_a_label_of_an_earlier_boot_is_removed_even_if_the_agent_is_ready() -> None:
    seen = node("true", tainted=False, condition="True", boot=EARLIER)
    first, second = wanted(state(YES), seen)
    assert first[1]["metadata"]["labels"] == {LABEL: None}
    assert second[1]["status"]["conditions"][0]["reason"] == "KubeletNotReported"
    assert not decide.adopt(view(seen), BOOT, SETTINGS).is_open


def test_state_of_an_earlier_barrier_stays_but_opens_nothing() -> None:
    found = decide.adopt(view(OPEN), BOOT, SETTINGS)
    assert found.is_open
    assert wanted(found, OPEN) == []
    half = node("true", tainted=True, condition="True")  # somebody put the taint back
    assert wanted(decide.adopt(view(half), BOOT, SETTINGS), half) == []
    assert wanted(decide.step(found, UNSURE, 1, SETTINGS), half) == []
    assert not decide.adopt(view(node()), BOOT, SETTINGS).is_open
    assert decide.adopt(view(node(condition="False")), BOOT, SETTINGS).status == "False"


def test_a_label_with_another_value_is_removed() -> None:
    assert wanted(state(NO), node("false", condition="False", reason=NO.reason))[0][1] == {
        "metadata": {"labels": {LABEL: None}}
    }


def test_without_the_right_to_taint_the_label_is_kept_alone() -> None:
    opening = wanted(state(YES), node(), may_taint=False)
    assert opening[1][1] == {"metadata": {"labels": {LABEL: "true"}}}


@pytest.mark.parametrize("off", [{"node_label": ""}, {"node_condition": ""}, {"node_taint": ""}])
def test_each_part_of_the_barrier_can_be_disabled(off: dict[str, str]) -> None:
    settings = Settings(**{"node_taint": TAINT, **off})
    words = str([p.body for p in decide.patches(state(YES), view(node()), BOOT, NOW, settings)])
    for name, word in (
        ("node_label", LABEL),
        ("node_condition", CONDITION),
        ("node_taint", "taints"),
    ):
        assert (word in words) is (name not in off)


@pytest.mark.parametrize(
    "junk",
    [
        {},
        {"metadata": 1, "spec": None, "status": []},
        {"status": {"conditions": [1, {}], "nodeInfo": "x"}, "spec": {"taints": {"a": 1}}},
    ],
)
def test_a_node_of_another_shape_does_not_open_the_barrier(junk: dict[str, Any]) -> None:
    assert not decide.adopt(view(junk), BOOT, SETTINGS).is_open
    assert not any(p.opens for p in decide.patches(state(YES), view(junk), BOOT, NOW, SETTINGS))


def test_resource_versions() -> None:
    assert (
        is_older("9", "10")
        and not is_older("10", "9")
        and not is_older("a", "b")
        and not is_older("", "1")
    )


# --- random worlds


def may_bind(seen: NodeView, selects: bool) -> bool:
    """A scheduler's view of a pod that selects the label, or of one that knows nothing of all
    this."""
    return (not selects or seen.labels.get(LABEL) == "true") and not seen.has_taint(TAINT)


def applied(raw: dict[str, Any], patch: decide.Patch) -> None:
    meta, spec, conditions = (
        patch.body.get("metadata", {}),
        patch.body.get("spec"),
        patch.body.get("status", {}).get("conditions", []),
    )
    for name, value in meta.get("labels", {}).items():
        raw["metadata"]["labels"] = {
            k: v for k, v in raw["metadata"]["labels"].items() if k != name
        }
        if value is not None:
            raw["metadata"]["labels"][name] = value
    if spec:
        raw["spec"]["taints"] = spec["taints"] or []
    for one in conditions:
        raw["status"]["conditions"] = [
            c for c in raw["status"]["conditions"] if c["type"] != one["type"]
        ] + [one]


@pytest.mark.parametrize("seed", range(60))
def test_no_pod_slips_in_a_random_world(seed: int) -> None:
    """The agent's readiness changes at random, writes fail or their answers are lost, the barrier
    is killed, the node reboots, others write. A write opens only after a verified yes of this boot,
    and a lasting no closes."""
    dice = random.Random(seed)
    raw, boot, now = node(), BOOT, 0.0
    readiness = UNSURE
    yes_since: float | None = None
    no_since: float | None = None
    held: decide.BarrierState | None = None
    for _ in range(400):
        now += 2.0
        if dice.random() < 0.15:
            readiness = dice.choice([YES, YES, YES, NO, UNSURE])
        yes_since = (yes_since if yes_since is not None else now) if readiness.ready else None
        no_since = (no_since if no_since is not None else now) if readiness.ready is False else None
        event = dice.random()
        if event < 0.01:  # a reboot: the object keeps everything, the kubelet reports later
            boot, held, readiness = f"boot-{now}", None, UNSURE
            yes_since = no_since = None
        elif event < 0.05:
            raw["status"]["nodeInfo"]["bootID"] = boot
        elif event < 0.07:
            held = None
        elif event < 0.09:
            raw["spec"]["taints"] = [
                {"key": "foreign", "effect": "NoSchedule"},
                *raw["spec"]["taints"],
            ][:5]
        seen = view(raw)
        held = decide.adopt(seen, boot, SETTINGS) if held is None else held
        held = decide.step(held, readiness, now, SETTINGS)
        before = view(raw)
        working = dice.random() < 0.7
        for patch in decide.patches(held, seen, boot, NOW + now, SETTINGS) if working else ():
            applied(raw, patch)
            after = view(raw)
            if patch.opens:
                assert readiness.ready and after.boot_id == boot
                assert now - (yes_since or 0) >= SETTINGS.node_ready_for_s
            for selects in (True, False):
                assert (
                    not may_bind(after, selects)
                    or patch.opens
                    or patch.status
                    or may_bind(before, selects)
                )
            if dice.random() < 0.1:
                break  # the answer was lost, and with it the patches after it
        if working and no_since is not None:
            assert not may_bind(view(raw), True) and not may_bind(view(raw), False)
