"""The cycle: collect, diagnose, decide, execute. One at a time, each bounded; what takes longer
runs beside it and ends with a wake.

Signals wake; readings decide; only actions change the node.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..core.collect import collect, watched_units
from ..core.common.watched import scope_folder, watched_folders
from ..core.diagnose import diagnose
from ..core.gate.states import Gate, Phase
from ..core.gate.transitions import step
from ..core.plugin.repair import refuse
from ..model.actions import (
    DISRUPTIVE,
    Action,
    CheckAccess,
    DropProbe,
    GrantDevices,
    ScopeGrant,
    StartProbe,
)
from ..model.errors import ActionFailed
from ..model.finding import Diagnosis
from ..model.host import Host
from ..model.settings import Settings
from ..model.snapshot import Snapshot
from ..model.wake import WakeReason, WakeSource
from .backoff import RETRY_S, ActionBackoff
from .history import ActionHistory
from .ports import Clock, Executor, LastCycle, NodeHost, Observer, Stalled, Wakes, Watches
from .wakes import WakeQueue

CYCLE_S = 5.0
"""The longest that a cycle may wait for the node, in seconds."""
GATHER_S = 0.02
"""Signals come in bursts; a cycle waits this long for the rest of one."""
VERDICT_S = 5.0
"""A cycle that only the access program's answer asked for takes answers that are so old."""
CONNECT_S = 0.5
"""The first cycle waits so long for the connection to systemd."""
ACTED_S = 0.1
"""After an action changed the node, the next cycle comes so soon: it reads the effect."""
PROMPT = {WakeSource.TIMER, WakeSource.PROBE, WakeSource.ACCESS}
"""They come alone, not in bursts."""
BESIDE_THE_CYCLE = (StartProbe, DropProbe, CheckAccess, GrantDevices)
"""Actions that change nothing by themselves, or report their effect by a wake."""


async def observe(host: Host, settings: Settings) -> tuple[Snapshot, Diagnosis]:
    """One snapshot of a node, and what it means."""
    snapshot = await collect(host, settings)
    return snapshot, diagnose(snapshot, settings)


class Engine:
    """One agent's cycles."""

    def __init__(
        self,
        settings: Settings,
        host: NodeHost,
        executor: Executor,
        watches: Watches,
        observer: Observer,
        clock: Clock,
        wakes: WakeQueue | None = None,
    ) -> None:
        self.settings = settings
        self.wakes = wakes or WakeQueue(clock)
        self.backoff = ActionBackoff()
        self.history = ActionHistory()
        self.last = LastCycle(Gate(started_at=clock.now(), since=clock.now()))
        self.wake_at = 0.0
        "boottime, seconds: the next cycle comes then at the latest"
        self._host, self._executor, self._clock = host, executor, clock
        self._watches, self._observer = watches, observer
        self._rewatch = False
        self._scopes: tuple[str, ...] = ()

    def configure(self, settings: Settings) -> None:
        """Other settings from the next cycle on, which comes at once."""
        self.settings, self._rewatch = settings, True
        self.wakes.wake(WakeReason(WakeSource.CONFIG))

    async def run(self) -> None:
        """Cycles until cancelled."""
        reasons = await self.wakes.wait(CONNECT_S)
        reasons[WakeReason(WakeSource.START)] = 1
        while True:
            await self.cycle(reasons)
            reasons = await self._next_reasons()

    async def _next_reasons(self) -> dict[WakeReason, int]:
        """Wait until something wakes the engine, and for the rest of its burst."""
        reasons = await self.wakes.wait(self.wake_at - self._clock.now())
        await self._heal_at_once(reasons)
        if any(reason.source not in PROMPT for reason in reasons):
            await self._clock.sleep(GATHER_S)
        for reason, count in self.wakes.take().items():
            reasons[reason] = reasons.get(reason, 0) + count
        return reasons

    async def _heal_at_once(self, reasons: Wakes) -> None:
        """A reload has just ended, or the properties of a scope were set: what that took from
        containers is given back before the snapshot that will show it. The action verifies
        everything itself."""
        diagnosis = self.last.diagnosis
        if diagnosis is None or diagnosis.paused:
            return
        every_scope = any(r.source in (WakeSource.RELOAD, WakeSource.REEXEC) for r in reasons)
        changed = {r.subject for r in reasons if r.source is WakeSource.FOLDER}
        grants = tuple(
            grant
            for grant in diagnosis.guarded
            if every_scope or scope_folder(grant.scope) in changed
        )
        if grants:
            await self._executor.act(GrantDevices(grants, prevent=False), None, "")

    async def cycle(self, reasons: Wakes) -> None:
        """One cycle. A collection that takes too long leaves the last diagnosis in force, and the
        deadline counts on."""
        began, last = self._clock.now(), self.last
        is_timer = WakeReason(WakeSource.TIMER) in reasons
        lag_s = max(0.0, began - self.wake_at) if is_timer and self.wake_at else 0.0
        await self._observer.cycle_begins()
        await self._follow(last.diagnosis.guarded if last.diagnosis else ())
        await self._allow_reuse(reasons)
        snapshot, diagnosis, tape, is_stalled = await self._collect()
        now = self._clock.now()
        if diagnosis is None:
            self.wake_at = now + self.settings.stable_interval_s
        else:
            decided = step(last.gate, diagnosis, now, self.settings)
            self._observer.decided(last, decided, diagnosis, reasons)
            becomes_armed = decided.gate.repair.is_armed and not last.gate.repair.is_armed
            self.last = last = replace(last, gate=decided.gate)
            self.wake_at = decided.wake_at
            if await self._execute(decided.actions, snapshot, tape, is_stalled):
                self.wake_at = min(self.wake_at, now + ACTED_S)
            if becomes_armed and snapshot is not None:
                self._executor.prepare_repair(self.settings, snapshot)
        ended = self._clock.now()
        self.last = replace(
            self.last,
            diagnosis=diagnosis,
            snapshot=snapshot,
            cycles=last.cycles + 1,
            cycle_ended_at=ended,
            cycle_took_s=ended - began,
            cycle_lag_s=lag_s,
            wakes=dict(reasons),
        )
        self._observer.cycle_ended(reasons)

    async def _follow(self, guarded: tuple[ScopeGrant, ...]) -> None:
        """systemd sends no signal when a scope's properties are set, which makes its device program
        anew (252, 257); but it writes them down, and that folder is watched."""
        scopes = tuple(grant.scope for grant in guarded)
        if self._rewatch:
            await self._watches.watch_units(watched_units(self.settings))
        if self._rewatch or scopes != self._scopes:
            self._rewatch, self._scopes = False, scopes
            folders = {scope_folder(scope): () for scope in scopes}
            self._watches.watch_folders({**watched_folders(self.settings), **folders})
        self._watches.refresh()

    async def _allow_reuse(self, reasons: Wakes) -> None:
        """On a quiet node answers are given again: an event would have come, had they changed."""
        sources = {reason.source for reason in reasons}
        gate = self.last.gate
        is_quiet = sources <= {WakeSource.TIMER} and gate.ready and gate.phase is Phase.OPEN
        if is_quiet and await self._host.trouble():
            is_quiet = False
        only_access = sources <= {WakeSource.ACCESS}
        self._host.may_reuse(is_quiet, VERDICT_S if only_access else 0.0)

    async def _collect(self) -> tuple[Snapshot | None, Diagnosis | None, Any, bool]:
        """The snapshot, what it means, its tape, and whether the node stalled: then all of it is
        the last cycle's. A snapshot that may lead to a repair is recorded, as its evidence."""
        last = self.last
        recording = self._host.record() if last.gate.repair.is_armed else None
        try:
            snapshot, diagnosis = await self._clock.within(
                observe(recording or self._host, self.settings), CYCLE_S
            )
        except Stalled:
            self._observer.stalled(CYCLE_S)
            return last.snapshot, _begin_nothing(last.diagnosis), None, True
        self._observer.collected(last.snapshot, snapshot)
        return snapshot, diagnosis, recording.tape if recording else None, False

    async def _execute(
        self, actions: tuple[Action, ...], snapshot: Snapshot | None, tape: Any, is_stalled: bool
    ) -> bool:
        """True where an action changed the node."""
        changed = False
        due, without_effect = self.backoff.due(actions, is_stalled, self._clock.now())
        for action in without_effect:
            self._observer.had_no_effect(action, RETRY_S)
        for action in due:
            if isinstance(action, DISRUPTIVE):
                self._host.may_reuse(False, 0.0)  # its executor asks the kubelet once more
            try:
                await self._executor.act(
                    action, tape, snapshot.plugin.runtime_socket if snapshot else ""
                )
            except ActionFailed as failure:
                self._failed(action, failure)
                continue
            self.history.note(action, self._clock.realtime())
            if not isinstance(action, BESIDE_THE_CYCLE):
                changed = True
                self.backoff.done(action)
                self._observer.executed(action)
        return changed

    def _failed(self, action: Action, failure: ActionFailed) -> None:
        now, gate = self._clock.now(), self.last.gate
        is_new = self.history.note(action, self._clock.realtime(), failure.sentence)
        self.backoff.failed(action, now)
        if isinstance(action, DISRUPTIVE):
            repair = refuse(gate.repair, failure.sentence, now)
            self.last = replace(self.last, gate=replace(gate, repair=repair))
        # What fails again in the same way, and what the gate reports anyway, is no news.
        self._observer.failed(action, failure, is_new and failure.sentence != gate.repair.held)


def _begin_nothing(diagnosis: Diagnosis | None) -> Diagnosis | None:
    """The last diagnosis where the node stalled: the deadline counts on, and nothing new begins."""
    if diagnosis is None:
        return None
    return replace(
        diagnosis,
        probe_busy=True,
        additive=(),
        repair_facts=None,
        access_check=None,
        allow=None,
    )
