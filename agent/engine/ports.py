"""What the engine needs from outside. The live node and the simulated one of tests/stories are two
implementations of each."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from ..core.gate.states import Gate, Step
from ..model.actions import Action
from ..model.errors import ActionFailed
from ..model.finding import Diagnosis
from ..model.host import Host
from ..model.settings import Settings
from ..model.snapshot import Snapshot
from ..model.wake import WakeReason

T = TypeVar("T")
Wakes = Mapping[WakeReason, int]
"""Reasons of one cycle, with how often each came."""


@dataclass
class LastCycle:
    """What the last cycle knew: all that /status and /metrics answer from."""

    gate: Gate
    diagnosis: Diagnosis | None = None
    snapshot: Snapshot | None = None
    cycles: int = 0
    cycle_ended_at: float = 0.0
    cycle_took_s: float = 0.0
    cycle_lag_s: float = 0.0
    "how much later than due it began"
    wakes: dict[WakeReason, int] = field(default_factory=dict)


class Stalled(Exception):
    """The node did not answer one collection in time."""


class Event(Protocol):
    """As asyncio.Event: set by whoever wakes the engine."""

    def set(self) -> None: ...

    def clear(self) -> None: ...


class Clock(Protocol):
    """Time, and waiting for it. Instants are boottime, seconds."""

    def now(self) -> float: ...

    def realtime(self) -> float:
        """Seconds since 1970, for the history that people read."""

    def event(self) -> Event: ...

    async def wait(self, event: Event, within_s: float) -> bool:
        """True once the event is set, False when `within_s` seconds are over."""

    async def sleep(self, for_s: float) -> None: ...

    async def within(self, work: Awaitable[T], limit_s: float) -> T:
        """The result of the work. Raises Stalled if it takes longer than `limit_s` seconds."""


class Recording(Host, Protocol):
    """A host whose answers are written to a tape: the evidence of a repair."""

    @property
    def tape(self) -> Any: ...


class NodeHost(Host, Protocol):
    """The host of an engine."""

    def may_reuse(self, is_quiet: bool, within_s: float) -> None:
        """How old answers of the next collection may be: `is_quiet`, nothing but the timer woke the
        engine; `within_s`, seconds besides."""

    def record(self) -> Recording: ...


class Executor(Protocol):
    """Changes the node. What takes long runs beside the cycle and ends with a wake."""

    async def act(self, action: Action, tape: Any, socket: str, /) -> None:
        """Do it, or begin it. `tape` and `socket`: the recorded collection behind a repair, and
        the CRI endpoint that it asked.

        Raises ActionFailed if nothing was done."""

    def prepare_repair(self, settings: Settings, snapshot: Snapshot) -> None:
        """A repair may follow at the next cycle: begin to gather its evidence."""


class Watches(Protocol):
    """Event sources that follow units and folders."""

    def refresh(self) -> None:
        """Before each collection: a folder that was replaced while a process held it open sends no
        event."""

    async def watch_units(self, names: tuple[str, ...]) -> None: ...

    def watch_folders(self, folders: Mapping[str, tuple[str, ...]]) -> None:
        """Folders with the name prefixes that matter there (none: every name)."""


class Observer(Protocol):
    """Learns what the engine does: log, metrics, status, watchdog. It decides nothing."""

    async def cycle_begins(self) -> None: ...

    def collected(self, before: Snapshot | None, snapshot: Snapshot) -> None: ...

    def stalled(self, limit_s: float) -> None: ...

    def decided(
        self, before: LastCycle, step: Step, diagnosis: Diagnosis, reasons: Wakes
    ) -> None: ...

    def executed(self, action: Action) -> None:
        """An action that changes the node was done or begun."""

    def failed(self, action: Action, failure: ActionFailed, is_news: bool) -> None: ...

    def had_no_effect(self, action: Action, retry_s: float) -> None: ...

    def cycle_ended(self, reasons: Wakes) -> None:
        """Every cycle ends here: systemd's watchdog hangs on it."""


class NoWatches:
    """For an engine that runs its cycles by itself and ends."""

    def refresh(self) -> None: ...

    async def watch_units(self, names: tuple[str, ...]) -> None: ...

    def watch_folders(self, folders: Mapping[str, tuple[str, ...]]) -> None: ...


class SilentObserver:
    """Reports nothing."""

    async def cycle_begins(self) -> None: ...

    def collected(self, before: Snapshot | None, snapshot: Snapshot) -> None: ...

    def stalled(self, limit_s: float) -> None: ...

    def decided(
        self, before: LastCycle, step: Step, diagnosis: Diagnosis, reasons: Wakes
    ) -> None: ...

    def executed(self, action: Action) -> None: ...

    def failed(self, action: Action, failure: ActionFailed, is_news: bool) -> None: ...

    def had_no_effect(self, action: Action, retry_s: float) -> None: ...

    def cycle_ended(self, reasons: Wakes) -> None: ...
