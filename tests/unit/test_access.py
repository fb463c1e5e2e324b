"""Which containers hold GPUs, which verdicts are valid, the effect of a reload, and the report of a
loss."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agent.core.access import containers
from agent.core.access.containers import UNUSED_DEVICE, questions, remember, valid_verdict, view
from agent.core.access.holders import holders
from agent.core.diagnose import diagnose
from agent.model.access import CurrentAccess, Device, Entitlement, LossCause, ReloadRisk, Verdict
from agent.model.finding import Verdict as JournalEvent
from agent.model.kernel import KernelEntry, KernelEvent
from agent.model.reading import Refusal, Why
from agent.model.runtime import ContainerState, Runtime
from agent.model.settings import Settings
from agent.model.snapshot import DeviceNode, Manager, Snapshot

from .access_snapshots import (
    CTL,
    GIVEN,
    GPU0,
    GPU1,
    ID,
    LIST,
    RULES,
    UNIT,
    UVM,
    access_scene,
    process,
    scope,
    sighting,
    verdict,
)
from .snapshots import DEFAULTS, NOW, changed, container, finding, sandbox, seen, sight

OTHERS = "programs 7,12"
NAMED = (*LIST, *((d.path, "rw") for d in GIVEN))


def held(snapshot: Snapshot) -> Any:
    (one,) = holders(view(snapshot, DEFAULTS))
    return one


def test_an_allocated_gpu_entitles_the_container() -> None:
    one = held(access_scene())
    assert {d.device: d.claims for d in one.devices} == dict.fromkeys(
        GIVEN, (Entitlement.ALLOCATED,)
    )
    assert (one.namespace, one.pod, one.name, one.pod_uid, one.unit) == (
        "ml",
        "train-0",
        "main",
        "77aa",
        UNIT,
    )
    assert [d.access for d in one.devices] == [CurrentAccess.ALLOWED] * 3


def test_other_devices_count_once_they_were_seen_allowed() -> None:
    """A monitor without an allocation: only devices that were allowed earlier, or that its spec
    lists."""
    assert holders(view(access_scene(gpus=()), DEFAULTS)) == ()
    seen_before = held(access_scene(gpus=(), sightings=(sighting(GPU1),)))
    assert [(d.device, d.claims, d.access) for d in seen_before.devices] == [
        (GPU1, (Entitlement.SEEN,), CurrentAccess.DENIED)
    ]
    named = held(
        access_scene(
            (
                process(
                    spec=(
                        (Device("c", 195, -1), "rw"),
                        (Device("c", 1, 3), "rwm"),
                        (Device("c", 511, 0), "m"),
                    )
                ),
            ),
            gpus=(),
        )
    )
    assert {d.device for d in named.devices} == {GPU0, GPU1, CTL}


def test_the_spec_of_a_privileged_container_gives_it_no_gpu() -> None:
    everything = ((Device("c", -1, -1), "rwm"), (Device("c", 195, 0), "rwm"))
    assert holders(view(access_scene((process(spec=everything),), gpus=()), DEFAULTS)) == ()


@pytest.mark.parametrize(
    "changes", [{"state": ContainerState.EXITED}, {"state": ContainerState.CREATED}]
)
def test_a_container_that_is_not_running_holds_no_gpu(changes: dict[str, Any]) -> None:
    snapshot = access_scene()
    pods, (box,) = snapshot.plugin.runtime.value.sandboxes, snapshot.plugin.runtime.value.containers  # type: ignore[union-attr]
    ended = Runtime(pods, (container(box.id, box.sandbox_id, name="main", **changes),))
    assert holders(view(changed(snapshot, runtime=seen(ended)), DEFAULTS)) == ()


def test_an_ended_pod_and_an_ended_process_hold_no_gpu() -> None:
    snapshot = access_scene()
    ended = sandbox("pod-2", name="train-0", namespace="ml", is_ready=False)
    runtime = Runtime((ended,), snapshot.plugin.runtime.value.containers)  # type: ignore[union-attr]
    assert holders(view(changed(snapshot, runtime=seen(runtime)), DEFAULTS)) == ()
    assert holders(view(access_scene((process(started=""),)), DEFAULTS)) == ()


@pytest.mark.parametrize(
    ("of", "said", "stands"),
    [
        ({}, {}, True),
        ({"rules": OTHERS}, {}, False),
        ({"started": "100"}, {}, False),
        ({"pid": 4712}, {}, False),
        ({}, {"at": NOW - 9999}, True),  # a program in the kernel never changes
        ({"is_fixed": False}, {"at": NOW - 10}, True),
        ({"is_fixed": False}, {"at": NOW - 61}, False),
        ({"rules": ""}, {"at": NOW - 10}, True),  # unread here, proven by the program
        ({"rules": ""}, {"at": NOW - 61}, False),
        ({}, {"answers": ((GPU0, CurrentAccess.UNKNOWN),), "at": NOW - 61}, False),
    ],
)
def test_when_a_verdict_stands(of: dict[str, Any], said: dict[str, Any], stands: bool) -> None:
    snapshot = access_scene((process(**of),), verdicts=(verdict(**said),))
    assert (valid_verdict(view(snapshot, DEFAULTS), process(**of)) is not None) is stands
    assert bool(questions(view(snapshot, DEFAULTS))) is not stands or "answers" in said


def test_disagreeing_readings_are_unknown_and_retries_are_limited() -> None:
    snapshot = access_scene((process(),), verdicts=(verdict(rules=OTHERS),))
    assert questions(view(snapshot, DEFAULTS)) == ()
    assert {d.access for d in held(snapshot).devices} == {CurrentAccess.UNKNOWN}


def test_a_check_covers_every_node_of_the_host_and_an_unused_number() -> None:
    snapshot = access_scene(verdicts=())
    (question,) = questions(view(snapshot, DEFAULTS))
    assert set(question.devices) == {GPU0, GPU1, CTL, UVM, Device("c", 511, 1), UNUSED_DEVICE}
    assert (question.rules, question.pid) == (RULES, 4711)
    assert diagnose(snapshot, DEFAULTS).access_check is not None


def test_old_verdicts_are_shown_for_a_limited_time() -> None:
    fresh = process(rules=OTHERS, other_until=NOW - 2)
    assert {d.access for d in held(access_scene((fresh,))).devices} == {CurrentAccess.ALLOWED}
    assert held(access_scene((fresh,))).verdict is None
    late = process(rules=OTHERS, other_until=NOW - 60)
    assert {d.access for d in held(access_scene((late,))).devices} == {CurrentAccess.UNKNOWN}


@pytest.mark.parametrize(
    ("scopes", "risk"),
    [
        ((scope(),), ReloadRisk.YES),
        ((scope(NAMED),), ReloadRisk.NO),
        ((scope((*LIST, ("char-nvidia*", "rw"))),), ReloadRisk.NO),
        ((scope((*LIST, *((d.path, "r") for d in GIVEN))),), ReloadRisk.YES),
        ((scope((), "auto"),), ReloadRisk.NO),
        ((scope((("/dev/char/1:3", "rw"),), "auto"),), ReloadRisk.YES),
        ((scope(LIST, "closed"),), ReloadRisk.YES),
        ((scope(problem="timed out"),), ReloadRisk.UNKNOWN),
        ((scope(rules=OTHERS),), ReloadRisk.UNKNOWN),
        ((), ReloadRisk.UNKNOWN),
    ],
)
def test_after_the_next_reload(scopes: tuple[Any, ...], risk: ReloadRisk) -> None:
    assert {d.risk for d in held(access_scene(scopes=scopes)).devices} == {risk}


def test_a_reload_does_not_affect_a_container_outside_units() -> None:
    one = held(access_scene((process(cgroup_v2=f"/kubepods/pod1/{ID}"),), scopes=()))
    assert {d.risk for d in one.devices} == {ReloadRisk.NO}
    assert {d.risk for d in held(access_scene((process(cgroup_v2="/"),), scopes=())).devices} == {
        ReloadRisk.UNKNOWN
    }


LOST = {"verdicts": (verdict((), at=NOW - 3),)}


@pytest.mark.parametrize(
    ("sightings", "cause", "says"),
    [
        (
            (sighting(allowed_at=NOW - 40, denied_at=NOW - 3, reload_at=NOW - 5),),
            LossCause.RELOAD,
            "units anew",
        ),
        (
            (sighting(allowed_at=NOW - 40, denied_at=NOW - 3, reload_at=NOW - 50),),
            LossCause.UPDATE,
            "no reload",
        ),
        ((), LossCause.NEVER_HAD, "never saw it allowed"),
    ],
)
def test_the_cause_of_a_loss_is_observed(
    sightings: tuple[Any, ...], cause: LossCause, says: str
) -> None:
    one = held(
        access_scene(
            sightings=sightings, asked_by=((NOW - 5, "client PID 7 ('systemctl')"),), **LOST
        )
    )
    assert one.loss is cause and says in one.loss_why
    assert ("client PID 7" in one.loss_why) is (cause is LossCause.RELOAD)
    assert "CDI" in one.cure


def test_a_node_of_the_spec_that_systemd_does_not_know() -> None:
    spec = tuple((d, "rw") for d in GIVEN)
    one = held(access_scene((process(spec=spec),)))
    assert "1.1.3" in one.risk_why and "1.1.7" in one.cure
    behind = held(access_scene())
    assert "legacy" in behind.risk_why and "CDI" in behind.cure


def test_findings() -> None:
    fine = diagnose(access_scene(scopes=(scope(NAMED),)), DEFAULTS)
    assert finding(fine, "WorkloadAccess").verdict is JournalEvent.HOLDS
    assert not [f for f in fine.findings if f.condition == "AccessAfterReload"]
    risky = finding(diagnose(access_scene(), DEFAULTS), "AccessAfterReload")
    assert (risky.reason, risky.blocks) == (
        "AccessAtRisk",
        False,
    ) and "ml/train-0 main" in risky.because
    lost = finding(diagnose(access_scene(**LOST), DEFAULTS), "WorkloadAccess")
    assert (lost.reason, lost.blocks) == ("AccessDenied", False) and "/dev/nvidia0" in lost.because
    assert finding(
        diagnose(access_scene(**LOST), Settings(strict_access=True)), "WorkloadAccess"
    ).blocks
    for unread in (
        access_scene(()),
        access_scene((process(rules="", problem="No."),), verdicts=()),
    ):
        assert (
            finding(diagnose(unread, Settings(strict_access=True)), "WorkloadAccess").verdict
            is JournalEvent.UNKNOWN
        )
    silent = changed(access_scene(), processes=Refusal(Why.TIMED_OUT, "1 s"))
    assert finding(diagnose(silent, DEFAULTS), "WorkloadAccess").verdict is JournalEvent.UNKNOWN


def test_remembering() -> None:
    first = remember((), verdict(), 0.0, 0.0)
    assert {s.device for s in first} == set(GIVEN)
    lost = remember(first, verdict((), at=NOW), NOW - 1, NOW - 0.5)
    assert {(s.device, s.allowed_at, s.denied_at, s.reload_at) for s in lost} == {
        (d, NOW - 1, NOW, NOW - 0.5) for d in GIVEN
    }
    still = remember(lost, verdict((), at=NOW + 50), NOW + 49, NOW + 49)
    assert still == lost
    again = remember(lost, verdict(at=NOW + 60), 0.0, 0.0)
    assert {(s.allowed_at, s.denied_at) for s in again} == {(NOW + 60, 0.0)}
    assert remember((), verdict((*GIVEN, UNUSED_DEVICE)), 0.0, 0.0) == ()
    unknown = verdict(answers=tuple((d, CurrentAccess.UNKNOWN) for d in GIVEN))
    assert remember(first, unknown, 0.0, 0.0) == first


@pytest.mark.parametrize("ids", [("GPU-of-another-node",), ("",), ("MIG-1",), ("nvidia9999/vgpu",)])
def test_unresolved_ids_leave_the_control_device_nodes(ids: tuple[str, ...]) -> None:
    assert {d.device for d in held(access_scene(gpus=ids)).devices} == {CTL, UVM}


def test_gke_names_gpus_after_their_device_node() -> None:
    assert GPU1 in {d.device for d in held(access_scene(gpus=("nvidia1/vgpu0",))).devices}


def test_capability_nodes_are_checked_only_if_a_container_is_entitled_to_them() -> None:
    many = tuple(DeviceNode(f"/dev/nvidia-caps/nvidia-cap{n}", 511, n + 2) for n in range(500))
    snapshot = access_scene(verdicts=())
    snapshot = changed(snapshot, nodes=seen((*snapshot.hardware.nodes.value, *many)))  # type: ignore[union-attr]
    (question,) = questions(view(snapshot, DEFAULTS))
    assert len(question.devices) <= containers.MOST_NODES + len(GIVEN) + 1
    assert set(GIVEN) <= set(question.devices)


def test_a_plugin_that_lost_access_while_everything_is_listed() -> None:
    denied = diagnose(changed(access_scene(), plugins=(sight(access=False),)), DEFAULTS)
    well = finding(denied, "PluginHealthy")
    assert (well.reason, well.blocks) == ("PluginAccessDenied", True)
    assert denied.repair_facts is not None and denied.repair_facts.fault is not None
    assert denied.repair_facts.fault.access_denied and not denied.repair_facts.fault.hup_answers
    fine = diagnose(changed(access_scene(), plugins=(sight(access=True),)), DEFAULTS)
    assert finding(fine, "PluginHealthy").verdict is JournalEvent.HOLDS


def test_a_reload_causes_a_second_snapshot() -> None:
    snapshot = changed(access_scene(), manager=seen(Manager("252", NOW - 1)))
    assert diagnose(snapshot, DEFAULTS).access_due == NOW + 4
    assert diagnose(access_scene(()), DEFAULTS).access_due == NOW + 1.0
    assert diagnose(access_scene(), DEFAULTS).access_due is None


def test_an_unknown_answer_is_never_fine() -> None:
    def of(now: CurrentAccess) -> Verdict:
        return verdict(
            answers=tuple((d, now) for d in (*GIVEN, GPU1, Device("c", 511, 1), UNUSED_DEVICE))
        )

    one = held(access_scene(verdicts=(of(CurrentAccess.UNKNOWN),)))
    assert {d.access for d in one.devices} == {CurrentAccess.UNKNOWN} and one.denied == ()


@pytest.mark.parametrize("strict", [False, True])
def test_a_workload_older_than_the_driver_is_reported(strict: bool) -> None:
    """The module was loaded again at 500 s after the boot; the container is from 100 s."""
    settings = replace(DEFAULTS, strict_access=strict)

    def says(loaded_at: float, snapshot: Snapshot) -> list[Any]:
        snapshot = changed(
            snapshot,
            kernel=seen((KernelEntry(loaded_at, KernelEvent.LOADED, "NVRM: loading NVIDIA"),)),
        )
        return [f for f in diagnose(snapshot, settings).findings if f.condition == "WorkloadDriver"]

    (found,) = says(500.0, access_scene())
    assert (
        found.verdict is JournalEvent.FAILS
        and found.blocks is strict
        and "ml/train-0 main" in found.because
    )
    assert found.missing == ("ml/train-0 main",) and found.next_step == "start these pods anew"
    assert says(99.0, access_scene()) == []
    assert says(500.0, access_scene(gpus=())) == [], "it holds no GPU"
