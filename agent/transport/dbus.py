"""One connection to a D-Bus message bus. Every call has a deadline, and ends when the bus is lost.

Only the low-level half of dbus-next is used (or of dbus-fast, which has the same names): no
proxies, no introspection. Facts about dbus-next 0.2.3:

* Its own call() never returns if the bus was lost before: so replies are matched by serial here.
* A failed write logs "exception was never retrieved", unless somebody reads the write's future.
* A bus that closes the connection during authentication sends it into an endless loop that never
  yields.
* It connects with a blocking socket, which waits for ever on a full backlog (a stopped
  dbus-daemon).
* It never closes its socket.
* It imports `gi` where that is installed: 3 MiB without use here.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import itertools
import re
import socket
import sys
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, cast

from ..model.errors import BusError, ErrorKind


def _import_library() -> tuple[Any, Any]:
    """dbus_next, or else dbus_fast, and its asyncio half. A None in sys.modules hides `gi` from
    it."""
    modules = cast("dict[str, Any]", sys.modules)
    hide = "gi" not in modules
    if hide:
        modules["gi"] = None
    try:
        return importlib.import_module("dbus_next"), importlib.import_module("dbus_next.aio")
    except ImportError:
        return importlib.import_module("dbus_fast"), importlib.import_module("dbus_fast.aio")
    finally:
        if hide:
            del modules["gi"]


_lib, _aio = _import_library()

LIBRARY: str = _lib.__name__
"""The D-Bus library in use: "dbus_next" or "dbus_fast"."""
Message: Any = _lib.Message
Variant: Any = _lib.Variant
STRUCT: Any = list if LIBRARY == "dbus_next" else tuple
"""The Python type of a struct: dbus-fast 5 takes only tuples."""

_DBUS, _DBUS_PATH = "org.freedesktop.DBus", "/org/freedesktop/DBus"
_CONNECT_WITHIN_S = 1.0

_KINDS = {
    ErrorKind.MISSING: "ServiceUnknown NameHasNoOwner NoServer Disconnected UnknownObject "
    "UnknownInterface UnknownMethod UnknownProperty NoSuchUnit NoSuchJob",
    ErrorKind.NOT_PERMITTED: "AccessDenied AuthFailed InteractiveAuthorizationRequired",
    ErrorKind.TIMED_OUT: "NoReply Timeout TimedOut",
}
"""last parts of D-Bus error names, by kind; every other name is FAILED"""


def signal_rule(sender: str, interface: str, member: str, more: str = "") -> str:
    """A match rule for one kind of signal; `more` holds further keys, each after a comma."""
    return f"type='signal',sender='{sender}',interface='{interface}',member='{member}'{more}"


_ESCAPED = re.compile(rb"^[0-9]|[^0-9A-Za-z]")


def escape_label(text: str) -> str:
    """Text as one element of an object path, escaped as sd-bus does (bus_label_escape, systemd
    v252)."""
    return _ESCAPED.sub(lambda byte: b"_%02x" % byte[0][0], text.encode()).decode() or "_"


async def all_of(waits: Iterable[Awaitable[Any]], *, at_once: int = 100) -> list[Any]:
    """Every result in order, `at_once` at a time. Raises the first error of a batch when the whole
    batch is done, so that no call is left running."""
    results: list[Any] = []
    todo = iter(waits)
    while batch := list(itertools.islice(todo, at_once)):
        results += await asyncio.gather(*batch, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
    return results


class Connection:
    """One connection, from its handshake until it is lost. It never reconnects."""

    def __init__(self, bus: Any, on_signal: Callable[[Any], None]) -> None:
        self._bus = bus
        self._on_signal = on_signal
        self._replies: dict[int, asyncio.Future[Any]] = {}
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Done as soon as the bus is lost; the result is the reason."""
        self.rules: set[str] = set()
        """The match rules that this bus has confirmed; kept by the owner of the connection."""
        bus.add_message_handler(self._on_message)
        self._end = asyncio.ensure_future(bus.wait_for_disconnect())
        self._end.add_done_callback(self._on_end)

    @classmethod
    async def open(
        cls, address: str | None, on_signal: Callable[[Any], None], within_s: float
    ) -> Connection:
        """Connect within `within_s` seconds; `address` None is the system bus. Raises BusError."""
        try:
            connection = cls(_new_bus(address), on_signal)
        except (OSError, ValueError) as exc:
            raise _no_bus(exc) from exc
        try:
            await asyncio.wait_for(connection._bus.connect(), within_s)
        except asyncio.TimeoutError:
            await connection.close()
            raise BusError(
                f"D-Bus did not complete the handshake within {within_s:g} s", ErrorKind.TIMED_OUT
            ) from None
        except (OSError, EOFError, ValueError, _lib.AuthError, _lib.DBusError) as exc:
            await connection.close()
            raise _no_bus(exc) from exc
        except BaseException:
            await connection.close()
            raise
        return connection

    async def call(self, message: Any, within_s: float) -> list[Any]:
        """The body of the reply. Raises BusError for an error reply, after `within_s` seconds, or
        when the bus is lost."""
        if self.lost.done():
            raise self._lost_error()
        message.serial = self._bus.next_serial()
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._replies[message.serial] = reply
        try:
            self._send(message)
            answer = await asyncio.wait_for(reply, within_s)
        except asyncio.TimeoutError:
            raise BusError(
                f"{message.member}: no reply within {within_s:g} s", ErrorKind.TIMED_OUT
            ) from None
        finally:
            self._replies.pop(message.serial, None)
        if answer.message_type is _lib.MessageType.ERROR:
            raise _from_error(message.member, answer)
        return list(answer.body)

    async def ask_bus(self, member: str, argument: str, within_s: float) -> list[Any]:
        """Call the message bus itself with one string (AddMatch, RemoveMatch, GetNameOwner). Raises
        BusError."""
        to = {"destination": _DBUS, "path": _DBUS_PATH, "interface": _DBUS}
        return await self.call(
            Message(**to, member=member, signature="s", body=[argument]), within_s
        )

    def give_up(self, why: str) -> None:
        """Treat the bus as lost: every call under way fails at once. The code that awaits `lost`
        then closes the connection."""
        if not self.lost.done():
            self.lost.set_result(why)
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(self._lost_error())

    def _lost_error(self) -> BusError:
        return BusError(f"the D-Bus connection was lost: {self.lost.result()}", ErrorKind.MISSING)

    async def close(self) -> None:
        """Disconnect and leave nothing open, whatever state the connection is in."""
        try:
            if not self._end.done():
                self._bus.disconnect()
                await asyncio.wait({self._end}, timeout=0.2)
            self._end.cancel()
            await asyncio.wait({self._end})
        finally:
            self.give_up("closed")
            _close_socket(self._bus)

    def _send(self, message: Any) -> None:
        try:
            self._bus.send(message).add_done_callback(_retrieve_exception)
        except OSError as exc:  # dbus-fast 5 writes at once
            self.give_up(str(exc))

    def _on_end(self, end: asyncio.Future[Any]) -> None:
        error = None if end.cancelled() else end.exception()
        self.give_up((str(error) or type(error).__name__) if error else "disconnected")

    def _on_message(self, message: Any) -> bool:
        if message.message_type is _lib.MessageType.SIGNAL:
            self._on_signal(message)
            return False
        reply = self._replies.get(message.reply_serial)
        if reply is None:
            return False
        if not reply.done():
            reply.set_result(message)
        return True


def _new_bus(address: str | None) -> Any:
    """The library's bus object. dbus-next and older dbus-fast connect here: a timeout keeps that
    from blocking."""
    bus = _aio.MessageBus.__new__(_aio.MessageBus)
    usual_s = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_CONNECT_WITHIN_S)
    try:
        bus.__init__(bus_address=address, bus_type=_lib.BusType.SYSTEM)
    except BaseException:
        _close_socket(bus)
        raise
    finally:
        socket.setdefaulttimeout(usual_s)
    if LIBRARY == "dbus_next":
        bus._auth_readline = functools.partial(_read_auth_line, bus)
    return bus


async def _read_auth_line(bus: Any) -> str:
    line = b""
    while not line.endswith(b"\r\n"):
        chunk = await asyncio.get_running_loop().sock_recv(bus._sock, 512)
        if not chunk:
            raise EOFError("closed during authentication")
        line += chunk
    return line[:-2].decode("ascii", "replace")


def _close_socket(bus: Any) -> None:
    for part in (getattr(bus, "_stream", None), getattr(bus, "_sock", None)):
        if part is not None:
            with contextlib.suppress(OSError, ValueError):
                part.close()


def _retrieve_exception(sent: asyncio.Future[Any]) -> None:
    if not sent.cancelled():
        sent.exception()


def _no_bus(exc: Exception) -> BusError:
    is_refused = isinstance(exc, (PermissionError, _lib.AuthError))
    return BusError(
        f"no connection to D-Bus: {str(exc) or type(exc).__name__}",
        ErrorKind.NOT_PERMITTED if is_refused else ErrorKind.MISSING,
    )


def _from_error(member: str, answer: Any) -> BusError:
    name, text = answer.error_name, answer.body[0] if answer.body else ""
    last = name.rpartition(".")[2]
    kind = next((k for k, names in _KINDS.items() if last in names.split()), ErrorKind.FAILED)
    return BusError(f"{member}: {text or name}", kind, name)
