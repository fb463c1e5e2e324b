"""Additions to a scope's device list: all devices at risk, the lost ones, and none that the
container never had."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.core.access.device_list import ANY, grants, rights_of
from agent.core.access.grants import due, entries, exposed, guarded, may_all, verify
from agent.model.access import (
    CurrentAccess,
    Device,
    Driver,
    Entitlement,
    GivenDevice,
    GpuContainer,
    GrantResult,
    Process,
    ReloadRisk,
    ScopeDevices,
)
from agent.model.reading import Refusal, Seen, Why

RUNC = (("/dev/char/1:3", "rwm"), ("char-pts", "rwm"), ("char-*", "m"), ("block-*", "m"))
MAJORS = {"pts": 136, "nvidia": 195}
CTL, GPU0, FUSE = Device("c", 195, 255), Device("c", 195, 0), Device("c", 10, 229)


def rights(**words: str):
    """c_195_0="rw", c_136_x="rwm": x is every."""

    def number(word: str):
        kind, major, minor = word.split("_")
        return kind, ANY if major == "x" else int(major), ANY if minor == "x" else int(minor)

    return {number(word): frozenset(value) for word, value in words.items()}


BASE = {"c_x_x": "m", "b_x_x": "m", "c_1_3": "rwm", "c_136_x": "rwm"}

NAMED = [
    # now, to be given back, what is named
    ({}, (), {}),
    (
        {"c_195_0": "rwm", "c_195_255": "rwm"},
        (),
        {"/dev/char/195:0": "rwm", "/dev/char/195:255": "rwm"},
    ),
    ({"c_195_0": "rw"}, (), {"/dev/char/195:0": "rw"}),
    (
        {"c_10_229": "rwm", "c_195_0": "rw"},
        (),
        {"/dev/char/10:229": "rwm", "/dev/char/195:0": "rw"},
    ),  # any vendor's
    ({"b_7_0": "r"}, (), {"/dev/block/7:0": "r"}),
    ({"c_189_x": "rw"}, (), {"char-189": "rw"}),  # a whole major
    ({}, (GPU0,), {"/dev/char/195:0": "rwm"}),  # the container may make it already
    (
        {"c_10_229": "rw"},
        (GPU0, CTL),
        {"/dev/char/10:229": "rw", "/dev/char/195:0": "rwm", "/dev/char/195:255": "rwm"},
    ),
]


@pytest.mark.parametrize(("now", "give", "wanted"), NAMED)
def test_entries_that_a_grant_adds(now, give, wanted):
    assert dict(entries("strict", RUNC, rights(**BASE, **now), give, MAJORS)) == wanted


def test_an_entry_of_the_same_path_never_shrinks():
    """systemd replaces an entry of the same path: "rw" over "rwm" would take "m" away."""
    listed = (("/dev/char/195:0", "m"), ("/dev/char/1:3", "rwm"))
    assert entries("strict", listed, rights(c_195_0="rw", c_1_3="rwm"), (), {}) == (
        ("/dev/char/195:0", "rwm"),
    )


@pytest.mark.parametrize(("now", "give", "wanted"), NAMED)
@pytest.mark.parametrize("policy", ["strict", "closed"])
def test_after_the_call_the_list_contains_all_earlier_entries(policy, now, give, wanted):
    """Whatever systemd does with the list, no device is lost, and none is granted without need."""
    before = rights(**BASE, **now)
    named = dict(entries(policy, RUNC, before, give, MAJORS))
    after = grants(policy, tuple({**dict(RUNC), **named}.items()), MAJORS)
    assert verify(before, after, give) == verify(
        before, before | {(d.kind, d.major, d.minor): frozenset("rw") for d in give}, give
    )
    allowed_before = grants(policy, RUNC, MAJORS)
    for number in after:
        extra = (
            rights_of(after, number) - rights_of(allowed_before, number) - rights_of(before, number)
        )
        assert not extra or Device(*number) in give, (number, extra)


@pytest.mark.parametrize(
    ("after", "lost", "missing"),
    [
        ({"c_1_3": "rwm", "c_195_0": "rw"}, [], []),
        ({"c_1_3": "rw", "c_195_0": "rw"}, [("c", 1, 3)], []),
        ({"c_195_0": "rw"}, [("c", 1, 3)], []),
        ({"c_1_3": "rwm", "c_195_0": "r"}, [], [("c", 195, 0)]),
        ({"c_x_x": "rwm"}, [], []),
    ],
)
def test_a_grant_is_verified(after, lost, missing):
    verified = verify(rights(c_1_3="rwm"), rights(**after), (GPU0,))
    assert (list(verified.lost), list(verified.missing)) == (lost, missing)


def test_a_container_that_may_open_everything_needs_no_entry():
    assert may_all(rights(c_x_x="rwm"))
    assert may_all(rights(b_x_x="r"))
    assert not may_all(rights(**BASE))


def scope_of(policy: str, *allow: tuple[str, str]) -> Seen:
    return Seen(ScopeDevices("cri-containerd-0a.scope", "programs 1", 1.0, policy, allow), 1.0)


def container(
    access: CurrentAccess = CurrentAccess.ALLOWED,
    risk: ReloadRisk = ReloadRisk.YES,
    claims=(Entitlement.ALLOCATED,),
    **changes,
) -> GpuContainer:
    process = Process("0a", 4711, "99", "/x", None, "programs 1", True)
    made = GpuContainer(
        id="0a",
        namespace="default",
        pod="gpu",
        pod_uid="u",
        name="main",
        is_plugin=False,
        gpus=("GPU-1",),
        process=process,
        driver=Driver.SYSTEMD,
        unit="cri-containerd-0a.scope",
        all_devices=False,
        devices=(GivenDevice(GPU0, "/dev/nvidia0", claims, access, risk),),
        scope=scope_of("strict", *RUNC),
        scope_at=1.0,
        verdict=None,
    )
    return replace(made, **changes)


def test_a_container_at_risk_is_prevented_from_losing():
    (allowance,) = due([container()], heal=True, prevent=True, now=9.0)
    assert (allowance.scope, allowance.pid, allowance.started) == (
        "cri-containerd-0a.scope",
        4711,
        "99",
    )
    assert allowance.who == "default/gpu main"
    assert allowance.give == ((GPU0, "/dev/nvidia0"),)


@pytest.mark.parametrize(
    ("what", "heal", "prevent", "wanted"),
    [
        (container(), True, False, 0),
        (container(), False, True, 1),
        (container(risk=ReloadRisk.NO), True, True, 0),
        (container(risk=ReloadRisk.UNKNOWN), True, True, 0),
        (container(access=CurrentAccess.UNKNOWN), True, True, 0),
        (container(access=CurrentAccess.DENIED), True, False, 1),
        (container(access=CurrentAccess.DENIED), False, True, 0),
        (container(access=CurrentAccess.DENIED, claims=(Entitlement.SEEN,)), True, True, 1),
        (container(access=CurrentAccess.DENIED, claims=(Entitlement.SPEC,)), True, True, 1),
        (container(access=CurrentAccess.DENIED, claims=(Entitlement.PLUGIN,)), True, True, 0),
    ],
)
def test_when_the_barrier_acts(what, heal, prevent, wanted):
    assert len(due([what], heal, prevent, 9.0)) == wanted


@pytest.mark.parametrize(
    ("what", "wanted"),
    [
        (container(), 1),
        (container(risk=ReloadRisk.UNKNOWN), 1),
        (container(risk=ReloadRisk.NO), 0),
        (container(scope=scope_of("auto")), 0),
    ],
)
def test_containers_at_risk_at_a_reload(what, wanted):
    assert len(exposed([what])) == wanted


@pytest.mark.parametrize(
    "never",
    [
        container(scope=scope_of("auto")),
        container(scope=scope_of("auto", ("/dev/null", "rw"))),
        container(scope=scope_of("strict")),
        container(scope=Refusal(Why.FAILED, "D-Bus is away")),
        container(unit="nvidia-device-plugin.service"),
        container(unit=""),
        container(driver=Driver.CGROUPFS),
        container(driver=Driver.UNKNOWN),
        container(process=None),
        container(all_devices=True),
    ],
)
def test_scopes_that_are_never_changed(never):
    assert guarded([never]) == ()
    assert (
        due(
            [replace(never, devices=container(CurrentAccess.DENIED).devices)],
            heal=True,
            prevent=True,
            now=9.0,
        )
        == ()
    )


@pytest.mark.parametrize(
    ("changes", "now", "wanted"),
    [
        (
            {"named": ("/dev/char/195:0 rw",)},
            1.0,
            1,
        ),  # it took, and is due again: the list was made anew
        ({"named": ("/dev/char/195:0 rw",), "still_denied": ("/dev/nvidia0",)}, 1.0, 0),
        (
            {"named": ("/dev/char/195:0 rw",), "still_denied": ("/dev/nvidia0",)},
            9999.0,
            0,
        ),  # the same rules still
        (
            {
                "named": ("/dev/char/195:0 rw",),
                "still_denied": ("/dev/nvidia0",),
                "rules": "programs 2",
            },
            9999.0,
            1,
        ),
        ({"problem": "its process is gone", "rules": ""}, 1.0, 0),
        ({"problem": "its process is gone", "rules": ""}, 9999.0, 1),
        ({}, 1.0, 0),  # nothing was to be named
    ],
)
def test_a_failed_grant_is_not_repeated(changes, now, wanted):
    added = GrantResult(
        "0a",
        "cri-containerd-0a.scope",
        "default/gpu main",
        0.0,
        **{"rules": "programs 1", **changes},
    )
    assert len(due([container(CurrentAccess.DENIED, added=added)], True, True, now)) == wanted
