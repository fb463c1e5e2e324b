"""The updater of scopes' device lists: a real dbus-daemon, a small systemd, a scripted sweep."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from agent.host.access import updater as allow
from agent.host.access.checks import DeviceAccess
from agent.model.access import Device, GrantResult
from agent.model.actions import GrantDevices, ScopeGrant
from agent.transport.device_cgroups import started
from agent.transport.systemd import BusSignal

from .test_bus import World

SWEEP = """
import json, sys, time
with open(__file__ + ".json") as file:
    answers = json.load(file)
for line in sys.stdin:
    asked, said = json.loads(line), answers.pop(0)
    if said == "dies":
        sys.exit(1)
    if said == "hangs":
        time.sleep(60)
    if "devices" in asked:
        said = {word: rights for word, rights in said.items() if word in asked["devices"]}
    whole = {"v": 1, "pid": asked["pid"], "rules": "programs 7", "allowed": said, "detail": ""}
    print("junk" if said == "junk" else json.dumps({**whole, **(said if "v" in said or "detail" in said else {})}),
          flush=True)
"""
A, B = "cri-containerd-a.scope", "cri-containerd-b.scope"
GPU0 = Device("c", 195, 0)
RUNC = {"/dev/char/1:3": "rwm", "char-*": "m", "block-*": "m"}
BASE = {"c:*:*": "m", "b:*:*": "m", "c:1:3": "rwm"}
WITH = {**BASE, "c:195:0": "rw", "c:10:229": "rw"}


def of(scope: str = A) -> ScopeGrant:
    return ScopeGrant(
        scope,
        scope[15:16],
        os.getpid(),
        started(os.getpid()),
        f"default/gpu {scope[15:16]}",
        ((GPU0, "/dev/nvidia0"),),
    )


class Rig:
    """A world with two scopes, and the updater's reports."""

    def __init__(self, world: World, folder: Path) -> None:
        self.systemd = world.systemd
        self.systemd.devices = {A: ("strict", dict(RUNC)), B: ("closed", dict(RUNC))}
        self.told: list[tuple[GrantResult, ...]] = []
        self.checks = DeviceAccess(lambda _: None)
        (folder / "root/proc").mkdir(parents=True, exist_ok=True)
        (folder / "root/proc/devices").write_text("Character devices:\n195 nvidia\n")
        self.mark = folder / "root/run/gpu-gate/allow-stopped"
        self.hand = allow.DeviceAllowUpdater(
            world.bus, self.checks, self.told.append, str(folder / "root")
        )
        self._folder = folder

    async def did(
        self, *sweeps: object, prevent: bool = True, scopes: tuple[str, ...] = (A,)
    ) -> tuple[GrantResult, ...]:
        (self._folder / "sweep.py.json").write_text(json.dumps(sweeps))
        self.hand.begin(GrantDevices(tuple(map(of, scopes)), prevent))
        await self.hand.finished()
        assert self.checks.state.adding_since is None
        return self.told[-1]

    def calls(self) -> int:
        return self.systemd.asked.count("SetUnitProperties")


@pytest.fixture
def with_rig(run, tmp_path, monkeypatch):
    (tmp_path / "sweep.py").write_text(SWEEP)
    monkeypatch.setattr(allow, "PROGRAM", tmp_path / "sweep.py")
    monkeypatch.setattr(allow, "ANSWER_WITHIN_S", 2.0)

    def runs(story) -> None:
        async def main() -> None:
            async with World(tmp_path) as world:
                await world.heard(BusSignal.CONNECTED)
                await story(Rig(world, tmp_path))

        run(main())

    return runs


def test_one_call_adds_every_device_at_risk(with_rig):
    async def story(rig: Rig):
        (one,) = await rig.did(WITH, WITH)
        assert (one.named, one.problem, one.lost) == (
            ("/dev/char/10:229 rw", "/dev/char/195:0 rw"),
            "",
            (),
        )
        assert rig.systemd.devices[A][1] == {
            **RUNC,
            "/dev/char/10:229": "rw",
            "/dev/char/195:0": "rw",
        }
        assert rig.calls() == 1
        assert rig.checks.state.added == (one,)

    with_rig(story)


def test_a_denied_device_is_restored_with_all_others(with_rig):
    async def story(rig: Rig):
        now = {**BASE, "c:10:229": "rw"}
        (one,) = await rig.did(now, now, {**now, "c:195:0": "rw"}, prevent=False)
        assert (one.given_back, one.still_denied, one.problem) == (("/dev/nvidia0",), (), "")
        assert one.named == ("/dev/char/10:229 rw", "/dev/char/195:0 rwm")

    with_rig(story)


def test_the_first_surprise_is_the_last(with_rig):
    async def story(rig: Rig):
        told = await rig.did(WITH, {**WITH, "c:1:3": "r"}, WITH, WITH, scopes=(A, B))
        assert [(one.scope, one.lost) for one in told] == [(A, ("/dev/char/1:3",))]
        assert (
            f"default/gpu a lost /dev/char/1:3 when devices were added to {A}"
            in rig.mark.read_text()
        )
        assert await rig.did(WITH, WITH, scopes=(B,)) == ()
        assert rig.calls() == 1

    with_rig(story)


def test_lost_access_is_reported_and_stops_grants_even_without_a_mark(with_rig):
    async def story(rig: Rig):
        rig.mark.parent.parent.write_text("no folder")
        (one,) = await rig.did(WITH, {**WITH, "c:1:3": "r"}, WITH, WITH, scopes=(A, B))
        assert one.lost == ("/dev/char/1:3",) and "could not write" in one.problem
        assert await rig.did(WITH, WITH, scopes=(B,)) == ()
        assert rig.calls() == 1

    with_rig(story)


@pytest.mark.parametrize(
    ("sweeps", "prevent", "says"),
    [
        ((WITH,), False, None),  # nothing is denied: nothing more is asked
        ((BASE, BASE, BASE), False, "a device program that is not systemd's denies /dev/nvidia0"),
        (("junk",), True, "the sweep returned malformed output"),
        ((["a list"],), True, "the sweep returned malformed output"),
        (({"v": 2},), True, "the sweep returned malformed output (another version or process)"),
        (
            ({"detail": "It is in no cgroup that can be seen."},),
            True,
            "It is in no cgroup that can be seen.",
        ),
        (("dies",), True, "it ended without an answer"),
        (("hangs",), True, "did not answer within 2 s"),
        ((WITH, "dies"), True, "it ended without an answer"),
        (({**BASE, "c:*:*": "rwm"},), True, ""),  # it may open everything
    ],
)
def test_containers_that_are_unknown_or_need_no_grant(with_rig, sweeps, prevent, says):
    async def story(rig: Rig):
        told = await rig.did(*sweeps, prevent=prevent)
        if not says:
            assert told == () and [one.problem for one in rig.checks.state.added] == (
                [] if says is None else [""]
            )
        else:
            assert says in told[0].problem
        assert rig.calls() == (1 if len(sweeps) > 1 else 0)

    with_rig(story)


@pytest.mark.parametrize("devices", [("auto", {}), ("auto", dict(RUNC)), ("strict", {})])
def test_a_scope_that_was_replaced_is_not_changed(with_rig, devices):
    """What was read when it was decided may have changed since."""

    async def story(rig: Rig):
        rig.systemd.devices[A] = devices
        assert await rig.did(WITH, WITH) == ()
        del rig.systemd.devices[A]
        assert "does not exist" in (await rig.did(WITH, WITH))[0].problem
        assert rig.calls() == 0

    with_rig(story)


def test_grants_requested_during_another_follow_it(with_rig):
    async def story(rig: Rig):
        (rig._folder / "sweep.py.json").write_text(json.dumps([WITH, WITH]))
        rig.hand.begin(GrantDevices((of(A),), True))
        rig.hand.begin(GrantDevices((of(B),), True))
        await asyncio.wait_for(rig.hand.finished(), 10)
        assert [one.scope for told in rig.told for one in told] == [A, B]
        assert {one.scope for one in rig.checks.state.added} == {A, B}

    with_rig(story)


def test_the_same_problem_is_reported_once(with_rig):
    async def story(rig: Rig):
        gone = {"detail": "It is in no cgroup that can be seen."}
        assert len(await rig.did(gone)) == 1
        assert await rig.did(gone) == ()

    with_rig(story)


def test_a_container_that_ends_during_a_check_is_no_error(with_rig):
    async def story(rig: Rig):
        (rig._folder / "sweep.py.json").write_text(
            json.dumps([{"detail": "Process 4711 is gone."}])
        )
        rig.hand.begin(GrantDevices((replace(of(), started="5"),), True))
        await rig.hand.finished()
        assert rig.told == [()]

    with_rig(story)
