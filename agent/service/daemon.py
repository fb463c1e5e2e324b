"""The agent: the engine wired to the live node, and to what reports its state."""

from __future__ import annotations

import asyncio
import logging
import signal
from typing import Any

from ..core.gate.states import Step
from ..engine.cycle import Engine
from ..engine.ports import LastCycle, Wakes
from ..engine.wakes import WakeQueue
from ..host.access.checks import DeviceAccess
from ..host.access.updater import DeviceAllowUpdater
from ..host.actions import ActionExecutor
from ..host.event_sources import EventSources
from ..host.launcher import Launcher
from ..host.live import LiveHost, clock_now
from ..host.probes.program import Started
from ..host.probes.runner import Probes
from ..host.repair_diagnostics import RepairDiagnostics
from ..host.repairer import PluginRepairer
from ..model.access import GrantResult
from ..model.actions import Action, Release
from ..model.errors import ActionFailed
from ..model.finding import Diagnosis
from ..model.snapshot import Snapshot
from ..model.wake import WakeReason, WakeSource
from ..transport.clock import boottime
from ..transport.sd_notify import Notify
from . import config as configuration
from . import cycle_log
from .clock import LiveClock
from .http import Http
from .log import facts
from .metrics import Counts, View, render
from .milestones import Milestones
from .status import OVERDUE_S, StatusInput, status

log = logging.getLogger(__name__)


class Daemon:
    """Builds the parts of a live agent, observes its engine, and answers over HTTP."""

    def __init__(self, config: configuration.Config, first: Started | None = None) -> None:
        """`first`: a probe that is under way already."""
        self.config = config
        settings, clock = config.settings, LiveClock()
        self.wakes = WakeQueue(clock)
        self.sources = EventSources(self.wakes.wake)
        bus = self.sources.bus
        self.probes = Probes(
            self._on(WakeSource.PROBE), settings.probe_timeout_s, settings.driver_root, first=first
        )
        self.checks = DeviceAccess(self._on(WakeSource.ACCESS), bus)
        self.host = LiveHost(bus, self.probes, checks=self.checks)
        self.repairer = PluginRepairer(self.host, bus, self._action_ended)
        self.launcher = Launcher(bus, self._action_ended)
        self.grants = DeviceAllowUpdater(bus, self.checks, self._granted)
        self.repair_diagnostics = RepairDiagnostics()
        executor = ActionExecutor(
            self.host,
            self.probes,
            self.repairer,
            self.launcher,
            self.checks,
            self.grants,
            self.repair_diagnostics,
        )
        self.engine = Engine(settings, self.host, executor, self.sources, self, clock, self.wakes)
        self.http = Http(self)
        self.systemd = Notify()
        self.host.sources = [bus, self.sources.uevents, self.sources.inotify, self.http]
        self.counts = Counts(actions=self.engine.history.counts)
        self.milestones = Milestones()
        self._stop = asyncio.Event()

    def _on(self, source: WakeSource) -> Any:
        """A callback that wakes the engine with its argument as the subject."""
        return lambda subject: self.wakes.wake(WakeReason(source, subject))

    async def run(self) -> None:
        """Until SIGTERM. An unforeseen exception ends the agent: systemd restarts it, and the next
        snapshot finds the truth."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(signal.SIGHUP, self.reload)
        cycle_log.log_config(self.config)
        supervisor = await self.sources.start(self.config.settings)
        await self.http.start()
        cycles = loop.create_task(self.engine.run())
        stop: asyncio.Task[bool] = loop.create_task(self._stop.wait())
        try:
            await asyncio.wait([supervisor, cycles, stop], return_when=asyncio.FIRST_COMPLETED)
            for task in (cycles, supervisor):
                if task.done():
                    task.result()
        finally:
            self.systemd.stopping()
            cycles.cancel()
            supervisor.cancel()
            stop.cancel()
            await asyncio.gather(cycles, supervisor, stop, return_exceptions=True)
            self.http.close()
            self.sources.close()
            for part in (
                self.repairer,
                self.repair_diagnostics,
                self.launcher,
                self.grants,
                self.checks,
                self.probes,
            ):
                await part.close()

    def reload(self) -> None:
        """Read the configuration again; a value that cannot be used keeps its last good one."""
        self.systemd.reloading()
        known = self.config.problems
        self.config = configuration.load(last_good=self.config.settings)
        cycle_log.log_config(self.config, known)
        settings = self.config.settings
        self.probes.timeout_s, self.probes.driver_root = (
            settings.probe_timeout_s,
            settings.driver_root,
        )
        self.engine.configure(settings)
        self.systemd.ready()

    def _granted(self, results: tuple[GrantResult, ...]) -> None:
        cycle_log.log_grants(results)
        self.engine.history.added(results, clock_now().realtime)
        self.wakes.wake(WakeReason(WakeSource.ACCESS, "granted"))

    def _action_ended(self, result: str) -> None:
        log.info("%s", result)
        self.wakes.wake(WakeReason(WakeSource.ACTION))

    # The engine's observer.

    async def cycle_begins(self) -> None:
        await self.http.keep()

    def collected(self, before: Snapshot | None, snapshot: Snapshot) -> None:
        cycle_log.log_event_sources(before.trouble if before else (), snapshot.trouble)

    def stalled(self, limit_s: float) -> None:
        log.warning("the node did not answer one collection in time", extra=facts(cycle_s=limit_s))

    def decided(self, before: LastCycle, step: Step, diagnosis: Diagnosis, reasons: Wakes) -> None:
        cycle_log.log_cycle(before, step, reasons, diagnosis)

    def executed(self, action: Action) -> None:
        # The release has its own line, with its own MESSAGE_ID.
        level = logging.DEBUG if isinstance(action, Release) else logging.INFO
        log.log(level, "%s", action.sentence, extra=facts(action=type(action).__name__))  # type: ignore[union-attr]

    def failed(self, action: Action, failure: ActionFailed, is_news: bool) -> None:
        level = logging.WARNING if is_news else logging.DEBUG
        fields = facts(action=type(action).__name__)
        log.log(level, "action failed: %s", failure.sentence, extra=fields)

    def had_no_effect(self, action: Action, retry_s: float) -> None:
        kind = type(action).__name__
        log.warning(
            "action had no effect; retrying in %d s: %s",
            retry_s,
            kind,
            extra=facts(action=kind, detail=action),
        )

    def cycle_ended(self, reasons: Wakes) -> None:
        """What systemd and the faces learn after a cycle."""
        last = self.engine.last
        self.counts.woken(reasons)
        self.counts.probed(self.probes.state)
        if last.diagnosis is not None and last.snapshot is not None:
            self.milestones.note(
                last.gate,
                last.diagnosis,
                last.snapshot.clock.boottime,
                self.config.settings.stable_probes,
            )
        gate = last.gate
        if last.cycles == 1:
            self.systemd.ready()
        self.systemd.status(f"{gate.phase.value}{', ready' if gate.ready else ''}: {gate.why}")
        self.systemd.watchdog()

    # What HTTP answers from.

    def is_overdue(self) -> bool:
        """True where the cycle has not ended when it should have: the agent is not healthy."""
        since_s = boottime() - self.engine.last.cycle_ended_at
        return since_s > self.config.settings.heartbeat_s + OVERDUE_S

    def listen(self) -> str:
        return self.config.settings.listen

    def cycles(self) -> int:
        return self.engine.last.cycles

    def readiness(self) -> tuple[bool, str]:
        return self.engine.last.gate.ready, self.engine.last.gate.ready_why

    def status(self) -> dict[str, Any]:
        return status(
            StatusInput(
                self.engine.last,
                self.config.settings,
                self.probes.state,
                self.config.problems,
                self.milestones.at,
                self.engine.history.recent,
                clock_now(),
            )
        )

    def metrics(self) -> str:
        clock = clock_now()
        return render(
            View(
                self.engine.last,
                self.counts,
                self.config.settings,
                self.probes.state,
                self.milestones.at,
                len(self.config.problems),
                clock.realtime - clock.boottime,
            )
        )
