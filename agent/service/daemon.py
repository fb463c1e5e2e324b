"""The cycle: look, diagnose, step, act. One at a time, each bounded; what takes longer runs beside
it."""

from __future__ import annotations

import asyncio
import logging
import signal
from dataclasses import replace
from typing import Any

from ..core.collect import collect
from ..core.common.watched import scope_folder, watched_folders, watched_units
from ..core.diagnose import diagnose
from ..core.gate.states import Gate, Phase, Step
from ..core.gate.transitions import step
from ..core.plugin.repair import refuse
from ..engine.backoff import RETRY_S, ActionBackoff
from ..host.access.checks import AccessChecks
from ..host.access.updater import DeviceAllowUpdater
from ..host.actions import ActionExecutor
from ..host.event_sources import Sources, Wakes
from ..host.launcher import Launcher
from ..host.live import LiveHost, clock_now
from ..host.probes.program import Started
from ..host.probes.runner import Probes
from ..host.repairer import PluginRepairer
from ..host.tape import Recorder, Tape
from ..model.access import GrantResult
from ..model.actions import (
    DISRUPTIVE,
    Action,
    CheckAccess,
    DropProbe,
    GrantDevices,
    Release,
    ScopeGrant,
    StartProbe,
)
from ..model.errors import ActionFailed
from ..model.finding import Diagnosis
from ..model.settings import Settings
from ..model.snapshot import Snapshot
from ..transport.clock import boottime
from ..transport.sd import Notify
from . import config as configuration
from .cycle_log import tell, tell_added, tell_config, tell_troubles
from .history import ActionHistory
from .http import Http
from .log import facts
from .metrics import Counts, View, render
from .milestones import Milestones
from .repair_diagnostics import RepairDiagnostics
from .status import OVERDUE_S, LastCycle, StatusInput, status

log = logging.getLogger(__name__)

CYCLE_S = 5.0
"""The longest a cycle may wait for the node, in seconds."""
GATHER_S = 0.02
"""Signals come in bursts; a cycle waits this long for the rest of one."""
VERDICT_S = 5.0
"""A look that only the access program's answer asked for takes what the look before it was told."""
CONNECT_S = 0.5
"""The first look waits so long for systemd's answer to be had."""
RELOADED = {"systemd reloading false", "systemd owner"}
"""What systemd says after a daemon-reload; after a daemon-reexec its name has changed hands
besides."""


class Daemon:
    """The agent."""

    def __init__(self, config: configuration.Config, first: Started | None = None) -> None:
        """`first`: a probe that is under way already."""
        self.config = config
        self.wakes = Wakes()
        self.sources = Sources(self.wakes)
        settings = config.settings
        self.probes = Probes(
            self.wakes.wake, settings.probe_timeout_s, settings.driver_root, first=first
        )
        self.checks = AccessChecks(self.wakes.wake, self.sources.bus)
        self.host = LiveHost(self.sources.bus, self.probes, checks=self.checks)
        self.repairer = PluginRepairer(self.host, self.sources.bus, self._hand_ended)
        self.launcher = Launcher(self.sources.bus, self._hand_ended)
        self.allow = DeviceAllowUpdater(self.sources.bus, self.checks, self._added)
        self.hands = ActionExecutor(
            self.host, self.probes, self.repairer, self.launcher, self.checks, self.allow
        )
        self.repair_diagnostics = RepairDiagnostics()
        self.http = Http(self)
        self.systemd = Notify()
        self.host.sources = [
            self.sources.bus,
            self.sources.uevents,
            self.sources.inotify,
            self.http,
        ]
        self.seen = LastCycle(Gate(started_at=boottime(), since=boottime()))
        self.history = ActionHistory()
        self.counts = Counts(actions=self.history.counts)
        self.milestones = Milestones()
        self._wake_at = 0.0
        self._rests = ActionBackoff()
        self._rewatch = False
        self._scopes: tuple[str, ...] = ()
        self._stop = asyncio.Event()

    @property
    def settings(self) -> Settings:
        return self.config.settings

    async def run(self) -> None:
        """Until SIGTERM. An unforeseen exception ends the agent: systemd restarts it, the next look
        finds the truth."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(signal.SIGHUP, self.reload)
        tell_config(self.config)
        supervisor = await self.sources.start(self.settings)
        await self.http.start()
        cycles = loop.create_task(self._cycles())
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
            await self.repairer.close()
            await self.repair_diagnostics.close()
            await self.launcher.close()
            await self.allow.close()
            await self.checks.close()
            await self.probes.close()

    def reload(self) -> None:
        """Read the configuration again; what cannot be used keeps its last good value."""
        self.systemd.reloading()
        known, self.config = self.config.problems, configuration.load(last_good=self.settings)
        tell_config(self.config, known)
        self.probes.timeout_s, self.probes.driver_root = (
            self.settings.probe_timeout_s,
            self.settings.driver_root,
        )
        self._rewatch = True
        self.wakes.wake("reload")
        self.systemd.ready()

    def _added(self, done: tuple[GrantResult, ...]) -> None:
        tell_added(done)
        self.history.added(done, clock_now().realtime)
        self.wakes.wake("access added")

    def _hurry(self, reasons: dict[str, int]) -> None:
        """A reload has just ended, or a scope's properties were set: what that took is given back
        before the look that will tell of it."""
        diagnosis = self.seen.diagnosis
        if diagnosis is None or diagnosis.paused:
            return
        everyone = not reasons.keys().isdisjoint(RELOADED)
        of = tuple(
            a
            for a in diagnosis.guarded
            if everyone or f"inotify {scope_folder(a.scope)}" in reasons
        )
        if of:
            self.allow.begin(GrantDevices(of, prevent=False))

    async def _follow_scopes(self, guarded: tuple[ScopeGrant, ...]) -> None:
        """systemd sends no signal when a scope's properties are set, which makes its device program
        anew (252, 257); but it writes them down."""
        scopes = tuple(allowance.scope for allowance in guarded)
        if self._rewatch:
            await self.sources.bus.watch(watched_units(self.settings))
        if self._rewatch or scopes != self._scopes:
            self._rewatch, self._scopes = False, scopes
            self.sources.inotify.watch(
                {**watched_folders(self.settings), **{scope_folder(scope): () for scope in scopes}}
            )

    def _hand_ended(self, said: str) -> None:
        log.info("%s", said)
        self.wakes.wake("a hand ended")

    async def _cycles(self) -> None:
        await self.wakes.wait(CONNECT_S)
        reasons = {"start": 1}
        while True:
            await self.cycle(reasons)
            reasons = await self.wakes.wait(self._wake_at - boottime())
            self._hurry(reasons)
            if any(r != "timer" and not r.startswith(("probe ", "access")) for r in reasons):
                await asyncio.sleep(GATHER_S)
            for reason, count in self.wakes.take().items():
                reasons[reason] = reasons.get(reason, 0) + count

    async def cycle(self, reasons: dict[str, int]) -> None:
        """One cycle. A look that takes too long leaves the last diagnosis in force, and the
        deadline counts on."""
        began = boottime()
        lag_s = max(0.0, began - self._wake_at) if "timer" in reasons and self._wake_at else 0.0
        await self._follow_scopes(self.seen.diagnosis.guarded if self.seen.diagnosis else ())
        self.sources.refresh()
        await self.http.keep()
        self.host.is_quiet = (
            reasons.keys() <= {"timer"}
            and self.seen.gate.ready
            and self.seen.gate.phase is Phase.OPEN
            and not await self.host.trouble()
        )
        self.host.reuse_s = (
            VERDICT_S if all(reason.startswith("access") for reason in reasons) else 0.0
        )
        snapshot, diagnosis, tape, stalled = await self._look()
        now = boottime()
        if diagnosis is None:
            self._wake_at = now + self.settings.stable_interval_s
        else:
            was_armed = self.seen.gate.repair.is_armed
            decided = step(self.seen.gate, diagnosis, now, self.settings)
            tell(self.seen, decided, reasons, diagnosis)
            self._wake_at = decided.wake_at
            if await self._act(decided, snapshot, tape, stalled):
                self._wake_at = min(self._wake_at, now + 0.1)
            if decided.gate.repair.is_armed and not was_armed and snapshot is not None:
                self.repair_diagnostics.begin(self.settings, snapshot)
        self.seen = replace(
            self.seen,
            diagnosis=diagnosis,
            snapshot=snapshot,
            cycles=self.seen.cycles + 1,
            cycle_ended_at=boottime(),
            cycle_took_s=boottime() - began,
            cycle_lag_s=lag_s,
            wakes=reasons,
        )
        self._feed(reasons)

    async def _look(self) -> tuple[Snapshot | None, Diagnosis | None, Tape | None, bool]:
        """What is seen, what it means, its tape, and whether the look stalled: then all of it is
        the last one's. A look that may lead to a repair is recorded: it is the evidence of it."""
        recorder = Recorder(self.host) if self.seen.gate.repair.is_armed else None
        try:
            snapshot = await asyncio.wait_for(
                collect(recorder or self.host, self.settings), CYCLE_S
            )
        except asyncio.TimeoutError:
            log.warning("the node did not answer one look in time", extra=facts(cycle_s=CYCLE_S))
            diagnosis = self.seen.diagnosis
            if (
                diagnosis is not None
            ):  # the deadline counts on; nothing else may be begun on an old look
                diagnosis = replace(
                    diagnosis,
                    probe_busy=True,
                    additive=(),
                    repair_facts=None,
                    access_check=None,
                    allow=None,
                )
            return self.seen.snapshot, diagnosis, None, True
        tell_troubles(self.seen.snapshot.trouble if self.seen.snapshot else (), snapshot.trouble)
        return (
            snapshot,
            diagnose(snapshot, self.settings),
            recorder.tape if recorder else None,
            False,
        )

    def _feed(self, reasons: dict[str, int]) -> None:
        """What systemd and the faces are told after a cycle."""
        self.counts.woken(reasons)
        self.counts.probed(self.probes.state)
        if self.seen.diagnosis is not None and self.seen.snapshot is not None:
            self.milestones.note(
                self.seen.gate,
                self.seen.diagnosis,
                self.seen.snapshot.clock.boottime,
                self.settings.stable_probes,
            )
        gate = self.seen.gate
        if self.seen.cycles == 1:
            self.systemd.ready()
        self.systemd.status(f"{gate.phase.value}{', ready' if gate.ready else ''}: {gate.why}")
        self.systemd.watchdog()
        self.http.cycled()

    async def _act(
        self, decided: Step, snapshot: Snapshot | None, tape: Tape | None, stalled: bool
    ) -> bool:
        """True where a hand changed the node: look again soon, what we did is learned by
        looking."""
        changed = False
        self.seen.gate = decided.gate
        due, in_vain = self._rests.due(decided.actions, stalled, boottime())
        for action in in_vain:
            log.warning(
                "a hand had no effect, and rests for %d s: %s",
                RETRY_S,
                type(action).__name__,
                extra=facts(action=type(action).__name__, detail=action),
            )
        for action in due:
            try:
                if isinstance(action, DISRUPTIVE) and tape is not None:
                    self.host.reuse_s, self.host.is_quiet = (
                        0.0,
                        False,
                    )  # its hand asks the kubelet once more
                    await self.repair_diagnostics.add_to(tape)
                await self.hands.act(action, tape, snapshot.runtime_socket if snapshot else "")
            except ActionFailed as failed:
                self._failed(action, failed, decided.gate)
                continue
            self.history.note(action, clock_now().realtime)
            if not isinstance(action, (StartProbe, DropProbe, CheckAccess, GrantDevices)):
                changed = True
                self._rests.done(action)
                # The release has its own line, with its own MESSAGE_ID.
                level = logging.DEBUG if isinstance(action, Release) else logging.INFO
                log.log(level, "%s", action.sentence, extra=facts(action=type(action).__name__))
        return changed

    def _failed(self, action: Action, failed: ActionFailed, gate: Gate) -> None:
        is_new = self.history.note(action, clock_now().realtime, failed.sentence)
        self._rests.failed(action, boottime())
        if isinstance(action, DISRUPTIVE):
            self.seen.gate = replace(gate, repair=refuse(gate.repair, failed.sentence, boottime()))
        is_news = (
            is_new and failed.sentence != gate.repair.held
        )  # what goes on failing, and what is held, is said once
        log.log(
            logging.WARNING if is_news else logging.DEBUG,
            "a hand did not take: %s",
            failed.sentence,
            extra=facts(action=type(action).__name__),
        )

    def is_overdue(self) -> bool:
        """True where the cycle has not ended when it should have: the agent is not healthy."""
        return boottime() - self.seen.cycle_ended_at > self.settings.heartbeat_s + OVERDUE_S

    def listen(self) -> str:
        return self.settings.listen

    def cycles(self) -> int:
        return self.seen.cycles

    def readiness(self) -> tuple[bool, str]:
        return self.seen.gate.ready, self.seen.gate.ready_why

    def status(self) -> dict[str, Any]:
        return status(
            StatusInput(
                self.seen,
                self.settings,
                self.probes.state,
                self.config.problems,
                self.milestones.at,
                self.history.recent,
                clock_now(),
            )
        )

    def metrics(self) -> str:
        clock = clock_now()
        return render(
            View(
                self.seen,
                self.counts,
                self.settings,
                self.probes.state,
                self.milestones.at,
                len(self.config.problems),
                clock.realtime - clock.boottime,
            )
        )
