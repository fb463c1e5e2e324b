"""The agent's wiring: what the engine reports reaches systemd, the counters and a reload."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from agent.model.settings import Settings
from agent.model.wake import WakeReason, WakeSource
from agent.service import config
from agent.service.daemon import Daemon

QUIET = config.Config(Settings(listen=""))


class Systemd:
    """Collects what sd_notify would send."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def ready(self) -> None:
        self.sent.append("READY")

    def reloading(self) -> None:
        self.sent.append("RELOADING")

    def watchdog(self) -> None:
        self.sent.append("WATCHDOG")

    def status(self, text: str) -> None:
        self.sent.append("STATUS")


def with_daemon(check: Callable[[Daemon, Systemd], Awaitable[None]]) -> None:
    async def main() -> None:
        daemon, systemd = Daemon(QUIET), Systemd()
        daemon.systemd = systemd  # type: ignore[assignment]
        await check(daemon, systemd)

    asyncio.run(main())


def test_every_cycle_feeds_the_watchdog_and_only_the_first_reports_ready() -> None:
    async def check(daemon: Daemon, systemd: Systemd) -> None:
        for number in (1, 2):
            daemon.engine.last.cycles = number
            daemon.cycle_ended({WakeReason(WakeSource.TIMER): 1})
        assert systemd.sent.count("WATCHDOG") == 2
        assert systemd.sent.count("READY") == 1
        assert daemon.counts.wakes == {WakeSource.TIMER: 2}

    with_daemon(check)


def test_a_reload_gives_the_engine_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = config.Config(Settings(listen="", kubelet_unit="other.service"))
    monkeypatch.setattr(config, "load", lambda last_good: changed)

    async def check(daemon: Daemon, systemd: Systemd) -> None:
        daemon.reload()
        assert daemon.engine.settings.kubelet_unit == "other.service"
        assert WakeReason(WakeSource.CONFIG) in daemon.wakes.take()
        assert systemd.sent == ["RELOADING", "READY"]

    with_daemon(check)


@pytest.mark.parametrize("source", [WakeSource.PROBE, WakeSource.ACCESS])
def test_programs_beside_the_cycle_wake_it_by_their_source(source: WakeSource) -> None:
    async def check(daemon: Daemon, systemd: Systemd) -> None:
        daemon._on(source)("1 answered")
        assert daemon.wakes.take() == {WakeReason(source, "1 answered"): 1}

    with_daemon(check)
