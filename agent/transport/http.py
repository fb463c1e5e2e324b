"""GET over HTTP/1.1, answered at once from memory, on TCP or a unix socket.

There is no library: aiohttp adds 8 MiB to an agent of 40 MiB whose limit is 45 (3.8.4 on Python
3.11), and limits neither the number of connections nor the time that a client may take for its
first line.

Every client is limited:
- The number of connections has a limit. A new one replaces the one that was idle longest, so that
  no client is locked out.
- A request must be complete within IDLE_S after the connection's start or the last response,
  however slowly it arrives (slowloris).
- A request with a body, another method or a folded header is refused, and its connection ends.
- Pipelined requests take turns with those of other clients, and wait while the responses are not
  read.
"""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import NamedTuple, cast

from . import acceptor
from .acceptor import Acceptor

MOST_CONNECTIONS = 128
IDLE_S = 10.0
UNREAD_S = 30.0
"""A client must read a response within this time. It is generous: a phone on a slow line is no
attack."""
LINGER_S = 2.0
"""How long a connection that we end is still read: if it were closed with bytes unread, the kernel
would reset it and lose our response."""
SWEEP_S = 1.0
HEAD_BYTES = 8192
HEAD_LINES = 64
UNSENT_BYTES = 64 << 10
"""With more unsent bytes than this, a connection is not read any further."""
ALL_UNSENT_BYTES = 4 << 20
SOCKET_BYTES = 256 << 10
"""The kernel's buffer for the responses of one connection; its default grows up to 4 MiB."""
AT_A_TIME = 8

_FIRST = re.compile(rb"([A-Z]{1,20}) (\S{1,2048}) HTTP/1\.([01])")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}):([\x20-\x7e\t\x80-\xff]*)")


@dataclass(frozen=True)
class Answer:
    """The response to a request."""

    code: int
    body: bytes
    kind: str = "text/plain; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()


Answerer = Callable[[str, str], Answer]
"""From path and Host header to the response. Must not block."""


class _Request(NamedTuple):
    path: str
    """without its query"""
    host: str
    """the Host header; empty in HTTP/1.0 without one"""
    is_last: bool
    """the client wants the connection to end after it"""


class _Refused(Exception):
    """A request that is refused, with its response."""

    def __init__(self, code: int, sentence: str, is_head: bool = False) -> None:
        super().__init__(sentence)
        self.answer = Answer(
            code,
            b"" if is_head else f"{sentence}\n".encode(),
            headers=(("Allow", "GET"),) if code == HTTPStatus.METHOD_NOT_ALLOWED else (),
        )


class Server:
    """One listening address and its connections."""

    def __init__(self, answer: Answerer) -> None:
        self.answer = answer
        self._loop = asyncio.get_running_loop()
        self._acceptors: list[Acceptor] = []
        self._connections: dict[Connection, None] = {}
        self._sweeper: asyncio.TimerHandle | None = None

    async def listen(self, host: str, port: int) -> None:
        """Listen on each address of the host. Raises OSError, and then listens on none."""
        try:
            for bound in await acceptor.tcp(host, port):
                # Accepted sockets inherit it.
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
                self._acceptors.append(Acceptor(bound, lambda: Connection(self)))
        except OSError:
            self.close()
            raise

    async def listen_unix(self, path: str) -> None:
        """Listen on a unix socket. Raises OSError."""
        self._acceptors.append(Acceptor(acceptor.unix(path), lambda: Connection(self)))

    @property
    def problem(self) -> str | None:
        """Why no client is accepted, as a sentence; None while clients are."""
        return next((found.problem for found in self._acceptors if found.problem), None)

    def close(self) -> None:
        for one in self._acceptors:
            one.close()
        self._acceptors.clear()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self._connections):
            connection.abort()

    def __len__(self) -> int:
        return len(self._connections)

    def opened(self, connection: Connection) -> None:
        self._connections[connection] = None
        if len(self._connections) > MOST_CONNECTIONS:
            next(iter(self._connections)).abort()
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)

    def used(self, connection: Connection) -> None:
        """It is no longer the connection that was idle longest."""
        if connection in self._connections:
            del self._connections[connection]
            self._connections[connection] = None

    def closed(self, connection: Connection) -> None:
        self._connections.pop(connection, None)

    def relieve(self) -> None:
        """Abort connections whose responses are not read, the oldest first, before they fill the
        memory."""
        waiting = sum(c.unsent_bytes for c in self._connections)
        for connection in list(self._connections):
            if waiting <= ALL_UNSENT_BYTES:
                return
            if connection.unsent_bytes:
                waiting -= connection.unsent_bytes
                connection.abort()

    def _sweep(self) -> None:
        """Abort overdue connections. Without connections there is no timer: an idle agent
        sleeps."""
        now = self._loop.time()
        for connection in list(self._connections):
            if connection.is_overdue(now):
                connection.abort()
        self._sweeper = self._loop.call_later(SWEEP_S, self._sweep) if self._connections else None


class Connection(asyncio.Protocol):
    """One client."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._since = self._loop.time()
        self._head = bytearray()
        self._is_full = self._is_ended = self._is_due = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=UNSENT_BYTES)
        self._server.opened(self)

    def connection_lost(self, _exc: Exception | None) -> None:
        self._is_ended = True
        self._server.closed(self)

    def pause_writing(self) -> None:
        self._is_full = True
        self._transport.pause_reading()
        self._server.relieve()

    def resume_writing(self) -> None:
        self._is_full = False
        self._since = self._loop.time()
        self._go_on()

    def data_received(self, data: bytes) -> None:
        if self._is_ended:
            return
        self._head += data
        self._go_on()

    @property
    def unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size()

    def is_overdue(self, now: float) -> bool:
        within_s = UNREAD_S if self.unsent_bytes else LINGER_S if self._is_ended else IDLE_S
        return now - self._since > within_s

    def abort(self) -> None:
        self._is_ended = True
        self._server.closed(self)
        self._transport.abort()

    def _go_on(self) -> None:
        self._is_due = False
        for _ in range(AT_A_TIME):
            if self._is_full or self._is_ended:
                return
            end = self._head.find(b"\r\n\r\n", 0, HEAD_BYTES)
            if end < 0:
                if len(self._head) >= HEAD_BYTES:
                    self._write(
                        _Refused(431, "the request is larger than 8 KiB").answer, is_last=True
                    )
                self._transport.resume_reading()
                return
            head = bytes(self._head[:end])
            del self._head[: end + 4]
            self._answer(head)
        if not self._is_due:
            self._is_due = True
            self._transport.pause_reading()
            self._loop.call_soon(self._go_on)

    def _answer(self, head: bytes) -> None:
        try:
            request = _read(head)
        except _Refused as refused:
            self._write(refused.answer, is_last=True)
            return
        self._server.used(self)
        self._write(self._server.answer(request.path, request.host), request.is_last)

    def _write(self, answer: Answer, is_last: bool) -> None:
        self._since = self._loop.time()
        lines = [
            f"HTTP/1.1 {answer.code} {HTTPStatus(answer.code).phrase}",
            f"Date: {time.strftime('%a, %d %b %Y %H:%M:%S GMT', time.gmtime())}",
            f"Content-Type: {answer.kind}",
            *(f"{name}: {value}" for name, value in answer.headers),
        ]
        lines.append(f"Content-Length: {len(answer.body)}")
        if is_last:
            lines.append("Connection: close")
        self._transport.write("\r\n".join([*lines, "", ""]).encode("latin-1") + answer.body)
        if is_last and not self._is_ended:
            self._is_ended = True
            self._head.clear()
            self._transport.write_eof()


def _read(head: bytes) -> _Request:
    """Parse a request. Raises _Refused if it is not a plain GET."""
    first, *rest = head.split(b"\r\n")
    found = _FIRST.fullmatch(first)
    if found is None:
        raise _Refused(400, "not an HTTP/1.1 request")
    if found[1] != b"GET":
        raise _Refused(
            405, "only GET is allowed: this service is read-only", is_head=found[1] == b"HEAD"
        )
    if len(rest) > HEAD_LINES:
        raise _Refused(431, f"the request has more than {HEAD_LINES} headers")
    headers: dict[bytes, bytes] = {}
    for line in rest:
        header = _HEADER.fullmatch(line)
        if header is None or (header[1].lower() == b"host" and b"host" in headers):
            raise _Refused(400, "malformed header")
        headers[header[1].lower()] = header[2].strip()
    if headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers:
        raise _Refused(413, "a request body is not allowed")
    if found[3] == b"1" and b"host" not in headers:
        raise _Refused(400, "an HTTP/1.1 request needs a Host header")
    if not found[2].startswith(b"/"):
        raise _Refused(400, "the request target must be a path")
    is_last = found[3] == b"0" or b"close" in headers.get(b"connection", b"").lower()
    return _Request(
        found[2].split(b"?", 1)[0].decode("latin-1"),
        headers.get(b"host", b"").decode("latin-1"),
        is_last,
    )
