"""systemd over D-Bus: questions with a deadline, and signals that say only "look again".

What systemd does, and what this file makes of it (seen on 252, 257 and 262):

* No signal at all without Subscribe(); a second one answers AlreadySubscribed, which is success.
* A subscriber with broad match rules is sent two signals per unit at each daemon-reload (320 for
  160 units),
  so there is one rule per thing to be heard.
* daemon-reexec keeps connection and subscription; the name's owner changes, on 257 by way of no
  owner.
* One restart sends several equal PropertiesChanged, or only a new InvocationID: compare what is
  read.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..model.errors import BusError, ErrorKind
from .dbus import Link, Message, all_of, escape_label, signal_rule

SYSTEMD = "org.freedesktop.systemd1"
MANAGER_PATH = "/org/freedesktop/systemd1"
MANAGER = "org.freedesktop.systemd1.Manager"
UNIT = "org.freedesktop.systemd1.Unit"
PROPERTIES = "org.freedesktop.DBus.Properties"
_DBUS = "org.freedesktop.DBus"
_RETRY_FIRST_S, _RETRY_MOST_S = 0.2, 5.0
_UNIT_NAME = re.compile(r"(?!@)[A-Za-z0-9:_.@\\-]{1,240}\.[a-z]{4,9}")
_UNITS_AT_ONCE = 20
"""dbus-daemon allows 128 calls in flight (max_replies_per_connection); three Gets cost less than a
GetAll."""


@dataclass(frozen=True, slots=True)
class UnitRow:
    """One unit as systemd sees it now."""

    name: str
    """As asked for."""
    id: str
    """As systemd calls it: differs from `name` for an alias. Signals come under this one."""
    load_state: str
    active_state: str
    sub_state: str
    invocation_id: str = ""
    """32 hex digits, or "" when the unit never ran."""
    active_enter_usec: int = 0
    """CLOCK_MONOTONIC; 0 when it was never active."""
    unit_file_state: str = ""
    path: str = ""
    """Its D-Bus object path."""


@dataclass(frozen=True, slots=True)
class ManagerRow:
    """PID 1 itself."""

    version: str
    units_load_usec: int | None
    """CLOCK_MONOTONIC of the last daemon-reload or daemon-reexec; None where systemd has no such
    property."""


def unit_path(name: str) -> str:
    """The object path of a unit; it needs no LoadUnit, for systemd loads a unit whose path is
    asked."""
    return f"{MANAGER_PATH}/unit/{escape_label(name)}"


_UNIT_RULE = signal_rule(SYSTEMD, PROPERTIES, "PropertiesChanged")
_JOB_RULE = signal_rule(SYSTEMD, MANAGER, "JobRemoved")
_OWNER_RULE = signal_rule(_DBUS, _DBUS, "NameOwnerChanged", f",arg0='{SYSTEMD}'")
_ALWAYS = {_OWNER_RULE, signal_rule(SYSTEMD, MANAGER, "Reloading")}


class SystemdBus:
    """The connection to PID 1, kept by `run`; while there is none, every question fails at once."""

    def __init__(
        self,
        on_signal: Callable[[str, str], None],
        *,
        address: str | None = None,
        call_timeout_s: float = 2.0,
        watch_jobs: bool = False,
    ) -> None:
        """`on_signal(kind, detail)` is called from the loop, once per signal; the caller coalesces.

        connected (systemd's name; all rules are in place: re-read) · lost (why) · reloading (true,
        false) · owner (systemd's new name: PID 1 re-executed) · unit (its id) · job (unit id; with
        `watch_jobs`).
        """
        self._on_signal = on_signal
        self._address = address
        self._call_timeout_s = call_timeout_s
        self._watch_jobs = watch_jobs
        self.problem: str | None = "not connected to D-Bus yet"
        """Why there is no connection, as a sentence; None while there is one."""
        self._link: Link | None = None
        self._rules_lock = asyncio.Lock()
        self._owner = ""
        self._owner_changed: asyncio.Future[None] | None = None
        self._watched: dict[str, str] = {}  # unit names by object path
        self._jobs: dict[str, asyncio.Future[str]] = {}
        self._starting = 0

    async def run(self) -> None:
        """Connect, wait for the loss, connect again, for ever; ends only by cancellation."""
        retry_s = _RETRY_FIRST_S
        while True:
            began = time.monotonic()
            await self._live_once()
            if time.monotonic() - began > _RETRY_MOST_S:
                retry_s = _RETRY_FIRST_S
            await asyncio.sleep(retry_s)
            retry_s = min(retry_s * 2, _RETRY_MOST_S)

    async def watch(self, units: Iterable[str]) -> None:
        """Hear of exactly these units from now on, across reconnects. Read after it returns.

        An alias is not followed: give `UnitRow.id`. Never fails: without a bus they come with the
        next one.
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
        """The body of systemd's reply. BusError, always within `within_s` (default:
        call_timeout_s)."""
        to = {"destination": SYSTEMD, "path": path, "interface": interface, "member": member}
        message = Message(**to, signature=signature, body=list(body))
        return await self._connected().call(message, within_s or self._call_timeout_s)

    async def get(self, path: str, interface: str, name: str, *, if_unknown: Any = ...) -> Any:
        """One property, its variant opened; `if_unknown` where this systemd has no such.
        BusError."""
        try:
            body = await self.call("Get", "ss", [interface, name], path=path, interface=PROPERTIES)
        except BusError as exc:
            if if_unknown is not ... and exc.error_name.endswith(".UnknownProperty"):
                return if_unknown
            raise
        return body[0].value

    async def manager(self) -> ManagerRow:
        """PID 1's version, and when it last loaded its units. BusError."""
        loaded = self.get(MANAGER_PATH, MANAGER, "UnitsLoadTimestampMonotonic", if_unknown=None)
        return ManagerRow(*await all_of([self.get(MANAGER_PATH, MANAGER, "Version"), loaded]))

    async def units(self, names: Iterable[str]) -> list[UnitRow]:
        """These units now, in order: not-found is a row, an invalid name is no row. BusError."""
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
        """The job's result: done, failed, canceled, timeout, dependency, skipped, … BusError.

        `member` may be RestartUnit or another of systemd's that take (unit, mode) and give a job.

        Subscribe, start, then wait for that job's path: a job can be over before StartUnit's answer
        is read.
        """
        deadline = time.monotonic() + within_s
        self._starting += 1
        try:
            await self._sync_rules()
            link = self._connected()
            (job,) = await self.call(member, "ss", [name, mode])
            return await self._wait_job_removed(link, name, job, deadline)
        finally:
            self._starting -= 1
            if not self._starting:
                self._jobs.clear()
            await self._sync_rules()

    async def _live_once(self) -> None:
        """One life of the connection; when it is over, everything is closed and `problem` says
        why."""
        try:
            link = await Link.open(self._address, self._on_message, self._call_timeout_s)
        except BusError as exc:
            self.problem = exc.sentence
            return
        self._link = link
        self._owner_changed = asyncio.get_running_loop().create_future()
        try:
            await self._sync_rules()
            await self._subscribe(link)
            self.problem = None
            self._signal("connected", self._owner)
            await self._follow_owner(link)
        except BusError as exc:
            link.give_up(exc.sentence)
        finally:
            self._link = None
            await link.close()
        was_connected = self.problem is None
        self.problem = (
            f"the connection to D-Bus was lost ({link.lost.result()}): systemctl status dbus"
        )
        if was_connected:
            self._signal("lost", self.problem)

    def _connected(self) -> Link:
        if self._link is None:
            raise BusError(self.problem or "not connected to D-Bus", ErrorKind.MISSING)
        return self._link

    async def _subscribe(self, link: Link) -> None:
        (self._owner,) = await link.ask_bus("GetNameOwner", SYSTEMD, self._call_timeout_s)
        try:
            await self.call("Subscribe")
        except BusError as exc:
            if not exc.error_name.endswith(".AlreadySubscribed"):
                raise

    async def _follow_owner(self, link: Link) -> None:
        """Until the bus is lost: a new owner of systemd's name is subscribed to again, then told
        of."""
        while not link.lost.done():
            changed = self._owner_changed = asyncio.get_running_loop().create_future()
            await asyncio.wait({changed, link.lost}, return_when=asyncio.FIRST_COMPLETED)
            if not link.lost.done() and self._owner:
                await self._subscribe(link)
                self._signal("owner", self._owner)

    async def _sync_rules(self) -> None:
        """Make the bus's rules those we want; a bus that refuses one is given up, never kept half
        deaf."""
        async with self._rules_lock:
            link = self._link
            if link is None:
                return
            rules = _ALWAYS | {f"{_UNIT_RULE},path='{path}'" for path in self._watched}
            if self._watch_jobs or self._starting:
                rules.add(_JOB_RULE)
            steps = [("AddMatch", rule) for rule in rules - link.rules]
            steps += [("RemoveMatch", rule) for rule in link.rules - rules]
            try:
                await all_of(
                    [link.ask_bus(member, rule, self._call_timeout_s) for member, rule in steps]
                )
            except BusError as exc:
                link.give_up(exc.sentence)
            else:
                link.rules = rules

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

    async def _wait_job_removed(self, link: Link, name: str, job: str, deadline: float) -> str:
        done = self._job(job)
        left_s = deadline - time.monotonic()
        await asyncio.wait({done, link.lost}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        if done.done():
            return done.result()
        if link.lost.done():
            raise BusError(
                f"{name}: the D-Bus connection was lost while its job ran", ErrorKind.MISSING
            )
        raise BusError(f"{name}: its job is still running", ErrorKind.TIMED_OUT)

    def _job(self, path: str) -> asyncio.Future[str]:
        return self._jobs.setdefault(path, asyncio.get_running_loop().create_future())

    def _signal(self, kind: str, detail: str) -> None:
        """From the loop, not from within the library, which would log and swallow the caller's
        exceptions."""
        asyncio.get_running_loop().call_soon(self._on_signal, kind, detail)

    def _on_message(self, message: Any) -> None:
        """Anybody on the bus may send us a signal, so only systemd's own and the bus's own
        count."""
        member, body = message.member, message.body
        if message.sender == _DBUS:
            if member == "NameOwnerChanged" and body[0] == SYSTEMD:
                self._owner = body[2]
                if self._owner_changed is not None and not self._owner_changed.done():
                    self._owner_changed.set_result(None)
        elif message.sender != self._owner:
            return
        elif member == "Reloading":
            self._signal("reloading", "true" if body[0] else "false")
        elif member == "PropertiesChanged" and message.path in self._watched:
            self._signal("unit", self._watched[message.path])
        elif member == "JobRemoved":
            _, job, unit, result = body
            if self._starting and not self._job(job).done():
                self._job(job).set_result(result)
            if self._watch_jobs:
                self._signal("job", unit)
