"""The cycle itself, on a simulated node in virtual time: when it runs, and what it may do.

Each test guards one promise of agent/engine/cycle.py; what is decided is tests/unit's and the
stories'.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from agent.engine.cycle import GATHER_S
from agent.engine.history import ActionHistory
from agent.model.actions import DropProbe, GrantDevices, LinkDevChar, StartProbe
from agent.model.settings import Settings
from agent.model.wake import WakeReason, WakeSource
from tests.stories.machine import Machine
from tests.stories.script import Play, parse
from tests.stories.timeline import BOOT

ACCESS = """
settings Prevent=report
world gpus=8
do access is watched
do trainer holds 0 1 behind
do kubelet starts
run until ready
run 5
"""


def played(text: str, make: Any = Machine) -> Machine:
    play = Play(make)
    play.perform(parse(text))
    assert play.machine is not None
    return play.machine


class Watched(Machine):
    """Writes down when cycles begin, why, and what they execute."""

    def _start(self) -> None:
        self.began: list[tuple[float, float]] = []
        "(when a cycle began, when it was due)"
        self.executed_at: list[tuple[float, Any]] = []
        super()._start()

    async def cycle_begins(self) -> None:
        self.began.append((self.world.now, self.engine.wake_at))
        await super().cycle_begins()

    async def act(self, action: Any, tape: Any, socket: str) -> None:
        self.executed_at.append((self.world.now, action))
        await super().act(action, tape, socket)

    def times(self, kind: type) -> list[float]:
        return [at for at, action in self.executed_at if isinstance(action, kind)]


def test_a_cycle_comes_when_the_last_one_asked_for_it() -> None:
    machine = played("world gpus=2\ndo kubelet starts\nrun 300", Watched)
    late = [began - due for began, due in machine.began[1:] if began > due + 2 * GATHER_S]
    assert not late and len(machine.began) > 8


def test_a_failed_action_waits_before_it_is_tried_again() -> None:
    machine = played("world gpus=2 links=no\ndo hand LinkDevChar fails\nrun 50", Watched)
    tried = machine.times(LinkDevChar)
    assert len(tried) == 1, f"within 50 s, tried at {tried}"
    machine.run(machine.world.now + 30)
    assert len(machine.times(LinkDevChar)) == 2


def test_an_action_without_effect_waits_before_it_is_tried_again() -> None:
    machine = played("world gpus=2 links=no\ndo hand LinkDevChar does nothing\nrun 50", Watched)
    assert len(machine.times(LinkDevChar)) == 1
    assert any("action had no effect" in line for line in machine.said)


def test_an_action_is_executed_once_for_one_decision() -> None:
    machine = played("world gpus=2 links=no\ndo kubelet starts\nrun 60", Watched)
    twice = Counter((at, action) for at, action in machine.executed_at).most_common(1)
    assert twice[0][1] == 1, twice


def test_a_refused_repair_is_recorded_in_the_gate() -> None:
    machine = played(
        "world gpus=2\ndo ledger unwritable\ndo nvml 999\ndo kubelet starts\nat 6 nvml ok\nrun 60"
    )
    assert "could not write the ledger" in machine.gate.repair.held


def test_new_settings_watch_their_units_and_folders() -> None:
    machine = played("world gpus=2\nrun 10")
    before = len(machine.followed)
    settings = replace(Settings(), kubelet_unit="other.service", device_plugins_dir="/srv/plugins")
    machine.engine.configure(settings)
    machine.run(machine.world.now + 1)
    followed = machine.followed[before:]
    assert any("other.service" in names for names in followed)
    assert any("/srv/plugins" in names for names in followed)


def test_no_probe_begins_on_a_snapshot_that_stalled() -> None:
    """While probes are due every second, a node that does not answer gets none."""
    machine = played("world gpus=2\nrun 1.5\ndo look stalls\nrun 6", Watched)
    probes = len(machine.times(StartProbe))
    machine.run(machine.world.now + 30)
    assert len(machine.times(StartProbe)) == probes
    machine.world.lookup_s = 0.0
    machine.run(machine.world.now + 60)
    assert len(machine.times(StartProbe)) > probes


def test_nothing_begins_on_a_snapshot_that_stalled() -> None:
    machine = played(f"{ACCESS}do look stalls", Watched)
    machine.world.load_driver(links=False)
    machine.world.disk.remove("/dev/char/195:0")
    machine.run(machine.world.now + 2)
    began = len(machine.executed_at)
    machine.run(machine.world.now + 60)
    executed = [action for _, action in machine.executed_at[began:]]
    assert not [action for action in executed if not isinstance(action, DropProbe)]


def test_devices_are_restored_before_the_snapshot_that_shows_their_loss() -> None:
    machine = played(ACCESS, Watched)
    cycles = machine.cycles
    reloaded_at = machine.world.now
    play = Play(Watched)
    play.machine = machine
    play.perform(parse("do daemon-reload"))
    machine.run(reloaded_at + GATHER_S / 2)
    assert [at for at in machine.times(GrantDevices) if at >= reloaded_at] == [reloaded_at]
    assert machine.cycles == cycles


def test_a_pause_stops_the_urgent_heal_too() -> None:
    machine = played(f"{ACCESS}do gpu-gate paused\nrun 5\ndo daemon-reload\nrun 5", Watched)
    assert machine.diagnosis is not None and machine.diagnosis.paused
    assert not machine.times(GrantDevices)


def test_a_burst_of_wakes_is_one_cycle_that_knows_them_all() -> None:
    machine = played("world gpus=2\nrun 20")
    cycles, first = machine.cycles, WakeReason(WakeSource.UNIT, "a.service")
    second = WakeReason(WakeSource.UNIT, "b.service")
    machine.engine.wakes.wake(first)
    machine.world.time.after(GATHER_S / 2, lambda: machine.engine.wakes.wake(second))
    machine.run(machine.world.now + 2 * GATHER_S)
    assert machine.cycles == cycles + 1
    assert {first, second} <= set(machine.engine.last.wakes)


def test_the_end_of_a_probe_is_not_gathered() -> None:
    machine = played("world gpus=2\nrun 20", Watched)
    now = machine.world.now
    machine.engine.wakes.wake(WakeReason(WakeSource.PROBE))
    machine.run(now + GATHER_S / 4)
    assert machine.began[-1][0] == now


def test_every_cycle_feeds_the_watchdog() -> None:
    machine = played(f"{ACCESS}do look stalls\nrun 60\ndo look is quick\nrun 60")
    assert machine.heartbeats == machine.cycles


def test_one_cycle_at_a_time() -> None:
    """The engine waits for each cycle: none begins inside another."""

    class Nested(Watched):
        inside = 0

        async def cycle_begins(self) -> None:
            assert self.inside == 0, "a cycle began inside another"
            self.inside = 1
            await super().cycle_begins()

        def cycle_ended(self, reasons: Any) -> None:
            self.inside = 0
            super().cycle_ended(reasons)

    machine = played("world gpus=2\ndo kubelet starts\nrun 60", Nested)
    assert machine.cycles > 5 and machine.times(StartProbe)


def test_more_than_thirty_reasons_are_not_remembered() -> None:
    machine = played("world gpus=2\nrun 20")
    for number in range(100):
        machine.engine.wakes.wake(WakeReason(WakeSource.FOLDER, f"/dev/{number}"))
    machine.run(machine.world.now + 2 * GATHER_S)
    assert len(machine.engine.last.wakes) == 32


def test_a_repeated_failure_is_reported_once() -> None:
    history, action = ActionHistory(), LinkDevChar((("195:0", "../nvidia0"),))
    assert history.note(action, BOOT, "EROFS") and not history.note(action, BOOT + 60, "EROFS")
