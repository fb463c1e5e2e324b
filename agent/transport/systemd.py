"""systemd over D-Bus: calls with a deadline, and signals. A signal says only that something
changed: the host reads it again.

What systemd does (seen on 252, 257 and 262):

* It sends no signal before Subscribe(); a second Subscribe() fails with AlreadySubscribed, which is
  success.
* A subscriber with broad match rules receives two signals for each unit at each daemon-reload (320
  for 160 units): so there is one rule for each unit to watch.
* daemon-reexec keeps connection and subscription. The owner of the name changes, on 257 by way of
  no owner.
* One restart sends several equal PropertiesChanged, or only a new InvocationID: so callers compare
  what they read.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ..model.errors import BusError, ErrorKind
from .dbus import Connection, Message, all_of, escape_label, signal_rule

SYSTEMD = "org.freedesktop.systemd1"
MANAGER_PATH = "/org/freedesktop/systemd1"
MANAGER = "org.freedesktop.systemd1.Manager"
UNIT = "org.freedesktop.systemd1.Unit"
PROPERTIES = "org.freedesktop.DBus.Properties"
_DBUS = "org.freedesktop.DBus"
_RETRY_FIRST_S, _RETRY_MOST_S = 0.2, 5.0
_UNIT_NAME = re.compile(r"(?!@)[A-Za-z0-9:_.@\\-]{1,240}\.[a-z]{4,9}")
_UNITS_AT_ONCE = 20
"""dbus-daemon allows 128 calls under way (max_replies_per_connection); three Gets cost less than a
GetAll."""


class BusSignal(Enum):
    """What a signal reports. Beside it comes a detail, as text."""

    CONNECTED = "connected"
    """every match rule is set, so read everything again; detail: systemd's bus name"""
    LOST = "lost"
    """detail: the reason"""
    RELOADING = "reloading"
    """a daemon-reload begins"""
    RELOADED = "reloaded"
    """a daemon-reload has ended"""
    OWNER_CHANGED = "owner-changed"
    """PID 1 re-executed; detail: its new bus name"""
    UNIT_CHANGED = "unit-changed"
    """detail: the unit's id"""
    JOB_ENDED = "job-ended"
    """only with `watch_jobs`; detail: the id of the job's unit"""


@dataclass(frozen=True, slots=True)
class UnitRow:
    """One unit as systemd sees it now."""

    name: str
    """The name that was asked for."""
    id: str
    """systemd's own name of it, which differs from `name` for an alias. Signals carry this one."""
    load_state: str
    active_state: str
    sub_state: str
    invocation_id: str = ""
    """32 hex digits, or "" when the unit never ran."""
    active_enter_usec: int = 0
    """CLOCK_MONOTONIC, µs; 0 when it was never active."""
    unit_file_state: str = ""
    path: str = ""
    """Its D-Bus object path."""


@dataclass(frozen=True, slots=True)
class ManagerRow:
    """PID 1 itself."""

    version: str
    units_load_usec: int | None
    """CLOCK_MONOTONIC, µs, of the last daemon-reload or daemon-reexec; None where systemd has no
    such property."""


def unit_path(name: str) -> str:
    """The object path of a unit. It needs no LoadUnit: systemd loads a unit when its path is
    called."""
    return f"{MANAGER_PATH}/unit/{escape_label(name)}"


_UNIT_RULE = signal_rule(SYSTEMD, PROPERTIES, "PropertiesChanged")
_JOB_RULE = signal_rule(SYSTEMD, MANAGER, "JobRemoved")
_OWNER_RULE = signal_rule(_DBUS, _DBUS, "NameOwnerChanged", f",arg0='{SYSTEMD}'")
_ALWAYS = {_OWNER_RULE, signal_rule(SYSTEMD, MANAGER, "Reloading")}


class SystemdBus:
    """The connection to PID 1, which `run` keeps up. While there is none, every call fails at
    once."""

    def __init__(
        self,
        on_signal: Callable[[BusSignal, str], None],
        *,
        address: str | None = None,
        call_timeout_s: float = 2.0,
        watch_jobs: bool = False,
    ) -> None:
        """Calls `on_signal(signal, detail)` from the loop, once for each signal; the caller gathers
        bursts."""
        self._on_signal = on_signal
        self._address = address
        self._call_timeout_s = call_timeout_s
        self._watch_jobs = watch_jobs
        self.problem: str | None = "not connected to D-Bus yet"
        """Why there is no connection, as a sentence; None while there is one."""
        self._connection: Connection | None = None
        self._rules_lock = asyncio.Lock()
        self._owner = ""
        self._owner_changed: asyncio.Future[None] | None = None
        self._watched: dict[str, str] = {}  # unit names by object path
        self._jobs: dict[str, asyncio.Future[str]] = {}
        self._starting = 0

    async def run(self) -> None:
        """Connect, wait for the loss, connect again, until cancelled."""
        retry_s = _RETRY_FIRST_S
        while True:
            began = time.monotonic()
            await self._live_once()
            if time.monotonic() - began > _RETRY_MOST_S:
                retry_s = _RETRY_FIRST_S
            await asyncio.sleep(retry_s)
            retry_s = min(retry_s * 2, _RETRY_MOST_S)

    async def watch(self, units: Iterable[str]) -> None:
        """Receive the signals of exactly these units from now on, across reconnects. Read the units
        after this returns.

        An alias is not followed: pass `UnitRow.id`. It never fails: without a bus, the rules are
        set at the next connection.
        """
        self._watched = {unit_path(name): name for name in units}
        await self._sync_rules()

    async def call(
        self,
        member: str,
        signature: str = "",
        body: Sequence[Any] = (),
        *,
        path: str = MANAGER_PATH,
        interface: str = MANAGER,
        within_s: float | None = None,
    ) -> list[Any]:
        """The body of systemd's reply. Raises BusError, after `within_s` seconds at the latest
        (default: call_timeout_s)."""
        to = {"destination": SYSTEMD, "path": path, "interface": interface, "member": member}
        message = Message(**to, signature=signature, body=list(body))
        return await self._connected().call(message, within_s or self._call_timeout_s)

    async def get(self, path: str, interface: str, name: str, *, if_unknown: Any = ...) -> Any:
        """The value of one property; `if_unknown` where this systemd does not have it. Raises
        BusError."""
        try:
            body = await self.call("Get", "ss", [interface, name], path=path, interface=PROPERTIES)
        except BusError as exc:
            if if_unknown is not ... and exc.error_name.endswith(".UnknownProperty"):
                return if_unknown
            raise
        return body[0].value

    async def manager(self) -> ManagerRow:
        """PID 1's version, and when it last loaded its units. Raises BusError."""
        loaded = self.get(MANAGER_PATH, MANAGER, "UnitsLoadTimestampMonotonic", if_unknown=None)
        return ManagerRow(*await all_of([self.get(MANAGER_PATH, MANAGER, "Version"), loaded]))

    async def units(self, names: Iterable[str]) -> list[UnitRow]:
        """These units, in order. A unit that does not exist has a row (not-found); an invalid name
        has none. Raises BusError."""
        asked = [name for name in names if _UNIT_NAME.fullmatch(name)]
        (listed,) = await self.call("ListUnitsByNames", "as", [asked])
        if len(listed) != len(asked):
            raise BusError(
                f"ListUnitsByNames: {len(listed)} rows for {len(asked)} units", ErrorKind.FAILED
            )
        rows = (self._unit_row(name, row) for name, row in zip(asked, listed, strict=True))
        return await all_of(rows, at_once=_UNITS_AT_ONCE)

    async def start_unit(
        self, name: str, mode: str = "replace", within_s: float = 30.0, *, member: str = "StartUnit"
    ) -> str:
        """Start a unit and wait for the job's result: done, failed, canceled, timeout, dependency,
        skipped, … Raises BusError.

        `member` may be RestartUnit, or any other call that takes (unit, mode) and returns a job.

        The match rule comes first: a job can end before the reply to StartUnit is read.
        """
        deadline = time.monotonic() + within_s
        self._starting += 1
        try:
            await self._sync_rules()
            connection = self._connected()
            (job,) = await self.call(member, "ss", [name, mode])
            return await self._wait_job_removed(connection, name, job, deadline)
        finally:
            self._starting -= 1
            if not self._starting:
                self._jobs.clear()
            await self._sync_rules()

    async def _live_once(self) -> None:
        """One connection, from its start to its loss; then everything is closed, and `problem`
        holds the reason."""
        try:
            connection = await Connection.open(
                self._address, self._on_message, self._call_timeout_s
            )
        except BusError as exc:
            self.problem = exc.sentence
            return
        self._connection = connection
        self._owner_changed = asyncio.get_running_loop().create_future()
        try:
            await self._sync_rules()
            await self._subscribe(connection)
            self.problem = None
            self._signal(BusSignal.CONNECTED, self._owner)
            await self._follow_owner(connection)
        except BusError as exc:
            connection.give_up(exc.sentence)
        finally:
            self._connection = None
            await connection.close()
        was_connected = self.problem is None
        self.problem = (
            f"the connection to D-Bus was lost ({connection.lost.result()}): systemctl status dbus"
        )
        if was_connected:
            self._signal(BusSignal.LOST, self.problem)

    def _connected(self) -> Connection:
        if self._connection is None:
            raise BusError(self.problem or "not connected to D-Bus", ErrorKind.MISSING)
        return self._connection

    async def _subscribe(self, connection: Connection) -> None:
        (self._owner,) = await connection.ask_bus("GetNameOwner", SYSTEMD, self._call_timeout_s)
        try:
            await self.call("Subscribe")
        except BusError as exc:
            if not exc.error_name.endswith(".AlreadySubscribed"):
                raise

    async def _follow_owner(self, connection: Connection) -> None:
        """Until the bus is lost: subscribe to each new owner of systemd's name, then report it."""
        while not connection.lost.done():
            changed = self._owner_changed = asyncio.get_running_loop().create_future()
            await asyncio.wait({changed, connection.lost}, return_when=asyncio.FIRST_COMPLETED)
            if not connection.lost.done() and self._owner:
                await self._subscribe(connection)
                self._signal(BusSignal.OWNER_CHANGED, self._owner)

    async def _sync_rules(self) -> None:
        """Set the match rules that are wanted now. A bus that refuses one is treated as lost: with
        only some of the rules, signals would be missed."""
        async with self._rules_lock:
            connection = self._connection
            if connection is None:
                return
            rules = _ALWAYS | {f"{_UNIT_RULE},path='{path}'" for path in self._watched}
            if self._watch_jobs or self._starting:
                rules.add(_JOB_RULE)
            steps = [("AddMatch", rule) for rule in rules - connection.rules]
            steps += [("RemoveMatch", rule) for rule in connection.rules - rules]
            try:
                await all_of(
                    [
                        connection.ask_bus(member, rule, self._call_timeout_s)
                        for member, rule in steps
                    ]
                )
            except BusError as exc:
                connection.give_up(exc.sentence)
            else:
                connection.rules = rules

    async def _unit_row(self, name: str, row: Sequence[Any]) -> UnitRow:
        id_, _, load_state, active_state, sub_state, _, path = row[:7]
        if load_state != "loaded":
            return UnitRow(name, id_, load_state, active_state, sub_state, path=path)
        wanted = ("InvocationID", "ActiveEnterTimestampMonotonic", "UnitFileState")
        invocation, enter_usec, file_state = await all_of(
            [self.get(path, UNIT, prop) for prop in wanted]
        )
        return UnitRow(
            name,
            id_,
            load_state,
            active_state,
            sub_state,
            bytes(invocation).hex(),
            enter_usec,
            file_state,
            path,
        )

    async def _wait_job_removed(
        self, connection: Connection, name: str, job: str, deadline: float
    ) -> str:
        done = self._job(job)
        left_s = deadline - time.monotonic()
        await asyncio.wait(
            {done, connection.lost}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED
        )
        if done.done():
            return done.result()
        if connection.lost.done():
            raise BusError(
                f"{name}: the D-Bus connection was lost while its job ran", ErrorKind.MISSING
            )
        raise BusError(f"{name}: its job is still running", ErrorKind.TIMED_OUT)

    def _job(self, path: str) -> asyncio.Future[str]:
        return self._jobs.setdefault(path, asyncio.get_running_loop().create_future())

    def _signal(self, signal: BusSignal, detail: str) -> None:
        """From the loop: called from within the library, an exception of the caller's would be
        logged and dropped."""
        asyncio.get_running_loop().call_soon(self._on_signal, signal, detail)

    def _on_message(self, message: Any) -> None:
        """Any program on the bus may send a signal: only those of the bus itself and of systemd
        count."""
        member, body = message.member, message.body
        if message.sender == _DBUS:
            if member == "NameOwnerChanged" and body[0] == SYSTEMD:
                self._on_owner(body[2])
        elif message.sender != self._owner:
            return
        elif member == "Reloading":
            self._signal(BusSignal.RELOADING if body[0] else BusSignal.RELOADED, "")
        elif member == "PropertiesChanged" and message.path in self._watched:
            self._signal(BusSignal.UNIT_CHANGED, self._watched[message.path])
        elif member == "JobRemoved":
            _, job, unit, result = body
            self._on_job_removed(job, unit, result)

    def _on_owner(self, owner: str) -> None:
        self._owner = owner
        if self._owner_changed is not None and not self._owner_changed.done():
            self._owner_changed.set_result(None)

    def _on_job_removed(self, job: str, unit: str, result: str) -> None:
        if self._starting and not self._job(job).done():
            self._job(job).set_result(result)
        if self._watch_jobs:
            self._signal(BusSignal.JOB_ENDED, unit)
