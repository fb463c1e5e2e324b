"""systemd over a private dbus-daemon that is slow, deaf, killed, started again, or never there."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from agent.model.errors import BusError, ErrorKind
from agent.transport.dbus import LIBRARY
from agent.transport.systemd import BusSignal, SystemdBus, UnitRow, unit_path

from .conftest import PATIENCE_S, until
from .peers import Daemon, Systemd


class World:
    """A bus daemon, a systemd, the transport under test, and what it signalled."""

    def __init__(self, folder: Path, **options) -> None:
        self.daemon = Daemon(folder)
        self.systemd = Systemd()
        self.signals: list[tuple[BusSignal, str]] = []
        options.setdefault("call_timeout_s", PATIENCE_S)
        self.bus = SystemdBus(
            lambda *signal: self.signals.append(signal), address=self.daemon.address, **options
        )

    async def __aenter__(self) -> World:
        await self.daemon.start()
        await self.systemd.start(self.daemon.address)
        self._run = asyncio.ensure_future(self.bus.run())
        return self

    async def __aexit__(self, *_) -> None:
        self._run.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._run
        await self.systemd.close()
        self.daemon.kill()

    async def heard(self, kind: BusSignal) -> str:
        """The detail of the first signal of this kind; it and what came before are forgotten."""
        await until(lambda: any(k == kind for k, _ in self.signals))
        at = [k for k, _ in self.signals].index(kind)
        detail = self.signals[at][1]
        del self.signals[: at + 1]
        return detail

    async def restart(self) -> None:
        """Another bus at the same address, with another systemd on it."""
        await self.systemd.close()
        await self.daemon.start()
        self.systemd = await Systemd().start(self.daemon.address)


def test_units_and_manager_are_read_in_order(run, tmp_path):
    async def main():
        async with World(tmp_path) as world:
            await world.heard(BusSignal.CONNECTED)
            assert world.bus.problem is None
            rows = await world.bus.units(["nope.service", "not a name", "kubelet.service"])
            assert [(row.name, row.load_state) for row in rows] == [
                ("nope.service", "not-found"),
                ("kubelet.service", "loaded"),
            ]
            path = unit_path("kubelet.service")
            assert rows[1] == UnitRow(
                "kubelet.service",
                "kubelet.service",
                "loaded",
                "active",
                "running",
                "0f" * 16,
                7,
                "enabled",
                path,
            )
            manager = await world.bus.manager()
            assert (manager.version, manager.units_load_usec) == ("252.1", 42)
            del world.systemd.manager["UnitsLoadTimestampMonotonic"]
            assert (await world.bus.manager()).units_load_usec is None

    run(main())


def test_hundreds_of_units_stay_below_the_daemons_limit_of_open_calls(run, tmp_path):
    async def main():
        async with World(tmp_path) as world:
            world.systemd.units = {f"u{n}.service": "ab" * 16 for n in range(300)}
            await world.heard(BusSignal.CONNECTED)
            assert len(await world.bus.units(world.systemd.units)) == 300

    run(main())


def test_only_watched_units_are_reported(run, tmp_path):
    async def main():
        async with World(tmp_path) as world:
            await world.heard(BusSignal.CONNECTED)
            await world.bus.watch(["kubelet.service", "containerd.service"])
            await world.bus.watch(["snap.microk8s.daemon-kubelite.service"])
            for unit in (
                "kubelet.service",
                "other.service",
                "snap.microk8s.daemon-kubelite.service",
            ):
                world.systemd.change(unit)
            world.systemd.emit("JobRemoved", "uoss", [1, "/j", "x.scope", "done"])
            world.systemd.emit("UnitNew", "so", ["x.scope", "/u"])
            world.systemd.emit("Reloading", "b", [True])
            world.systemd.emit("Reloading", "b", [False])
            await until(lambda: (BusSignal.RELOADED, "") in world.signals)
            assert world.signals == [
                (BusSignal.UNIT_CHANGED, "snap.microk8s.daemon-kubelite.service"),
                (BusSignal.RELOADING, ""),
                (BusSignal.RELOADED, ""),
            ]

    run(main())


def test_job_signals_are_received_on_request(run, tmp_path):
    async def main():
        async with World(tmp_path, watch_jobs=True) as world:
            await world.heard(BusSignal.CONNECTED)
            world.systemd.emit("JobRemoved", "uoss", [1, "/j", "cri-containerd-x.scope", "done"])
            assert await world.heard(BusSignal.JOB_ENDED) == "cri-containerd-x.scope"

    run(main())


def test_a_signal_from_another_sender_is_ignored(run, tmp_path):
    async def main():
        async with World(tmp_path) as world:
            await world.heard(BusSignal.CONNECTED)
            stranger = Systemd()
            await stranger.start(world.daemon.address)
            us = world.bus._connection._bus.unique_name
            stranger.emit("Reloading", "b", [True], to=us)
            with pytest.raises(BusError):  # a round trip, so that the signal has arrived
                await world.bus.start_unit("nope.service")
            world.systemd.emit("Reloading", "b", [False])
            await until(lambda: world.signals)
            assert [kind for kind, _ in world.signals] == [BusSignal.RELOADED]
            await stranger.close()

    run(main())


def test_already_subscribed_is_success(run, tmp_path):
    async def main():
        world = World(tmp_path)
        world.systemd.subscribed = True
        async with world:
            await world.heard(BusSignal.CONNECTED)

    run(main())


def test_a_new_owner_is_subscribed_to_before_it_is_announced(run, tmp_path):
    async def main():
        async with World(tmp_path) as world:
            old = await world.heard(BusSignal.CONNECTED)
            await world.systemd.close()
            world.systemd = await Systemd().start(world.daemon.address)
            assert await world.heard(BusSignal.OWNER_CHANGED) != old
            assert world.systemd.subscribed
            world.systemd.emit("Reloading", "b", [False])
            await world.heard(BusSignal.RELOADED)

    run(main())


def test_a_slow_answer_is_a_timeout_and_the_bus_stays_connected(run, tmp_path):
    async def main():
        async with World(tmp_path) as world:
            await world.heard(BusSignal.CONNECTED)
            world.systemd.deaf_to = {"ListUnitsByNames"}
            with pytest.raises(BusError) as caught:
                await world.bus.call("ListUnitsByNames", "as", [[]], within_s=0.05)
            assert caught.value.kind is ErrorKind.TIMED_OUT
            assert caught.value.error_name == ""
            assert (await world.bus.manager()).version == "252.1"

    run(main())


def test_after_the_loss_calls_fail_at_once_and_the_next_bus_is_as_the_first(run, tmp_path):
    async def main():
        async with World(tmp_path) as world:
            await world.heard(BusSignal.CONNECTED)
            await world.bus.watch(["kubelet.service"])
            world.systemd.deaf_to = {"StartUnit"}
            in_flight = asyncio.ensure_future(
                world.bus.start_unit("kubelet.service", within_s=PATIENCE_S)
            )
            await until(lambda: "StartUnit" in world.systemd.asked)
            world.daemon.kill()
            await world.heard(BusSignal.LOST)
            with pytest.raises(BusError) as caught:
                await in_flight
            assert caught.value.kind is ErrorKind.MISSING
            with pytest.raises(BusError) as caught:
                await world.bus.units(["kubelet.service"])
            assert caught.value.kind is ErrorKind.MISSING
            assert world.bus.problem
            await world.bus.watch(["kubelet.service", "containerd.service"])
            await world.restart()
            await world.heard(BusSignal.CONNECTED)
            world.systemd.change("containerd.service")
            assert await world.heard(BusSignal.UNIT_CHANGED) == "containerd.service"

    run(main())


def test_a_call_in_the_moment_of_the_loss_fails_too(run, tmp_path):
    async def main():
        async with World(tmp_path) as world:
            await world.heard(BusSignal.CONNECTED)
            world.daemon.kill()  # and the loop has not noticed yet
            with pytest.raises(BusError) as caught:
                await world.bus.manager()
            assert caught.value.kind is ErrorKind.MISSING

    run(main())


def test_a_bus_that_starts_late_is_found(run, tmp_path):
    async def main():
        world = World(tmp_path)
        running = asyncio.ensure_future(world.bus.run())
        await until(lambda: "no connection to D-Bus" in (world.bus.problem or ""))
        with pytest.raises(BusError):
            await world.bus.manager()
        await world.daemon.start()
        await until(
            lambda: "systemd1" in (world.bus.problem or "")
        )  # a bus without systemd is no bus yet
        await world.systemd.start(world.daemon.address)
        await world.heard(BusSignal.CONNECTED)
        running.cancel()
        await asyncio.wait({running})
        await world.systemd.close()
        world.daemon.kill()

    run(main())


@pytest.mark.parametrize("job_first", [False, True])
def test_a_started_units_job_is_waited_for(run, tmp_path, job_first):
    async def main():
        async with World(tmp_path) as world:
            await world.heard(BusSignal.CONNECTED)
            world.systemd.job_first = job_first
            world.systemd.job_result = "dependency"
            assert await world.bus.start_unit("kubelet.service") == "dependency"
            assert not any("JobRemoved" in rule for rule in world.bus._connection.rules)

    run(main())


def test_a_job_that_does_not_end_is_a_timeout(run, tmp_path):
    async def main():
        async with World(tmp_path) as world:
            await world.heard(BusSignal.CONNECTED)
            world.systemd.job_result = ""
            with pytest.raises(BusError) as caught:
                await world.bus.start_unit("kubelet.service", within_s=0.1)
            assert caught.value.kind is ErrorKind.TIMED_OUT

    run(main())


def test_an_error_keeps_its_name(run, tmp_path):
    async def main():
        async with World(tmp_path) as world:
            await world.heard(BusSignal.CONNECTED)
            with pytest.raises(BusError) as caught:
                await world.bus.start_unit("nope.service")
            assert caught.value.kind is ErrorKind.MISSING
            assert caught.value.error_name == "org.freedesktop.systemd1.NoSuchUnit"
            assert "nope.service" in caught.value.sentence

    run(main())


def _bad_bus(path: Path, backlog: int) -> socket.socket:
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(str(path))
    server.listen(backlog)
    server.setblocking(False)
    return server


async def _problem_with(address: str, call_timeout_s: float = PATIENCE_S) -> str:
    bus = SystemdBus(lambda *_: None, address=address, call_timeout_s=call_timeout_s)
    first = bus.problem
    running = asyncio.ensure_future(bus.run())
    await until(lambda: bus.problem != first)
    running.cancel()
    await asyncio.wait({running})
    return bus.problem or ""


def test_a_bus_that_hangs_up_during_authentication_is_a_problem(run, tmp_path):
    async def main():
        with _bad_bus(tmp_path / "bus", 5) as server:
            loop, heard, peers = asyncio.get_running_loop(), [], []

            def hear():
                heard.append(peers[-1].recv(4096))
                if b"AUTH" in heard[-1]:
                    loop.remove_reader(peers[-1].fileno())
                    peers.pop().close()

            def welcome():
                peers.append(server.accept()[0])
                loop.add_reader(peers[-1].fileno(), hear)

            loop.add_reader(server.fileno(), welcome)
            problem = await _problem_with(f"unix:path={tmp_path}/bus")
            loop.remove_reader(server.fileno())
            assert "closed during authentication" in problem
            assert heard

    run(main())


def test_a_silent_bus_is_a_problem(run, tmp_path):
    async def main():
        with _bad_bus(tmp_path / "bus", 5):
            assert "within 0.05 s" in await _problem_with(f"unix:path={tmp_path}/bus", 0.05)

    run(main())


def test_a_bus_that_accepts_no_connection_does_not_block(run, tmp_path):
    async def main():
        with _bad_bus(tmp_path / "bus", 0), socket.socket(socket.AF_UNIX) as other:
            other.connect(str(tmp_path / "bus"))  # the backlog is full now
            assert "no connection to D-Bus" in await _problem_with(
                f"unix:path={tmp_path}/bus", 0.05
            )

    run(main())


@pytest.mark.parametrize(
    "address", ["unix:path=/nonexistent/bus", "nonsense", "carrier-pigeon:coop=1"]
)
def test_an_address_that_leads_nowhere_is_a_problem(run, address):
    assert "no connection to D-Bus" in run(_problem_with(address))


def test_unit_paths_are_escaped_as_systemd_does():
    assert unit_path("kubelet.service").endswith("/unit/kubelet_2eservice")
    assert unit_path("k3s-agent.service").endswith("/unit/k3s_2dagent_2eservice")
    assert unit_path("0a@é.service").endswith("/unit/_30a_40_c3_a9_2eservice")


@pytest.mark.skipif(LIBRARY != "dbus_next", reason="only dbus-next imports gi")
def test_gi_is_not_imported_and_can_be_afterwards(tmp_path):
    (tmp_path / "gi.py").write_text("")
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import agent.transport.systemd;"
        "assert 'gi' not in sys.modules; import gi"
    )
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], cwd=root, check=True)
