"""GET over HTTP/1.1, answered at once from memory, on TCP or a unix socket; and streams of
server-sent events.

No library: aiohttp brings 8 MiB into an agent of 40 that may take 45 (3.8.4 on Python 3.11;
docs/design.md §9), and bounds neither the number of connections nor the time a client may take for
its first line.

What a client may cost is bounded here, whoever it is:
- so many connections; the one that was quiet longest makes room for a new one, so that nobody is
  shut out;
- a request must be whole in IDLE_S from the connection's start or the last answer, however it drips
  (slowloris);
- no body, no other method, no folded header: whatever is not plain is refused, and the connection
  ends;
- pipelined requests take turns with everybody else's, and wait while their answers are not read.
"""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import cast

from . import acceptor
from .acceptor import Acceptor

MOST_CONNECTIONS = 128
IDLE_S = 10.0
UNREAD_S = 30.0
"An answer must be read within it: a phone at the end of a thin line is slow, and no attack."
LINGER_S = 2.0
"""A connection that we end is read on for so long: closed with bytes unread, the kernel would tear
our answer."""
SWEEP_S = 1.0
HEAD_BYTES = 8192
HEAD_LINES = 64
UNSENT_BYTES = 64 << 10
"Above it a connection is not read any further."
ALL_UNSENT_BYTES = 4 << 20
SOCKET_BYTES = 256 << 10
"What the kernel may hold of one connection's answers; by itself it would take up to 4 MiB."
AT_A_TIME = 8

_FIRST = re.compile(rb"([A-Z]{1,20}) (\S{1,2048}) HTTP/1\.([01])")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}):([\x20-\x7e\t\x80-\xff]*)")


@dataclass(frozen=True)
class Answer:
    """What a request is answered with."""

    code: int
    body: bytes
    kind: str = "text/plain; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()
    stream: Callable[[Connection], None] | None = None
    "the answer does not end: this is given the connection, to send on"


Answerer = Callable[[str, str], Answer]
"""(path, Host header) to an answer. Must not block."""


class Refusal(Exception):
    """A request that is not answered."""

    def __init__(self, code: int, why: str, is_head: bool = False) -> None:
        super().__init__(why)
        self.answer = Answer(
            code,
            b"" if is_head else f"{why}\n".encode(),
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
        """OSError, and nothing listens."""
        try:
            for bound in await acceptor.tcp(host, port):
                bound.setsockopt(
                    socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES
                )  # what it accepts inherits it
                self._acceptors.append(Acceptor(bound, lambda: Connection(self)))
        except OSError:
            self.close()
            raise

    async def listen_unix(self, path: str) -> None:
        """OSError."""
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
            quiet = next((c for c in self._connections if not c.is_stream), None)
            if quiet is not None:
                quiet.abort()
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)

    def used(self, connection: Connection) -> None:
        """It is no longer the one that was quiet longest."""
        if connection in self._connections:
            del self._connections[connection]
            self._connections[connection] = None

    def closed(self, connection: Connection) -> None:
        self._connections.pop(connection, None)

    def relieve(self) -> None:
        """Answers that nobody reads are dropped, the oldest first, before they fill the memory."""
        waiting = sum(c.unsent_bytes for c in self._connections)
        for connection in list(self._connections):
            if waiting <= ALL_UNSENT_BYTES:
                return
            if connection.unsent_bytes:
                waiting -= connection.unsent_bytes
                connection.abort()

    def _sweep(self) -> None:
        """Only while there are connections: an agent that nobody asks is not woken."""
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
        self.is_stream = False
        self.on_lost: Callable[[], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=UNSENT_BYTES)
        self._server.opened(self)

    def connection_lost(self, _exc: Exception | None) -> None:
        self._is_ended = True
        self._server.closed(self)
        if self.on_lost is not None:
            self.on_lost()

    def pause_writing(self) -> None:
        self._is_full = True
        self._transport.pause_reading()
        self._server.relieve()

    def resume_writing(self) -> None:
        self._is_full = False
        self._since = self._loop.time()
        self._go_on()

    def data_received(self, data: bytes) -> None:
        if self._is_ended or self.is_stream:
            return
        self._head += data
        self._go_on()

    @property
    def unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size()

    def is_overdue(self, now: float) -> bool:
        within_s = UNREAD_S if self.unsent_bytes else LINGER_S if self._is_ended else IDLE_S
        return (not self.is_stream or bool(self.unsent_bytes)) and now - self._since > within_s

    def abort(self) -> None:
        self._is_ended = True
        self._server.closed(self)
        self._transport.abort()

    def send(self, data: bytes) -> bool:
        """One more piece of a stream; False, and nothing is sent, to a client that does not
        read."""
        if self._is_full or self._is_ended:
            return False
        if not self.unsent_bytes:
            self._since = self._loop.time()
        self._transport.write(data)
        return True

    def _go_on(self) -> None:
        self._is_due = False
        for _ in range(AT_A_TIME):
            if self._is_full or self._is_ended or self.is_stream:
                return
            end = self._head.find(b"\r\n\r\n", 0, HEAD_BYTES)
            if end < 0:
                if len(self._head) >= HEAD_BYTES:
                    self._write(
                        Refusal(431, "a request here is 8 KiB at most").answer, is_last=True
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
            path, host, is_last = _read(head)
        except Refusal as refused:
            self._write(refused.answer, is_last=True)
            return
        self._server.used(self)
        self._write(self._server.answer(path, host), is_last)

    def _write(self, answer: Answer, is_last: bool) -> None:
        self._since = self._loop.time()
        self.is_stream = answer.stream is not None
        lines = [
            f"HTTP/1.1 {answer.code} {HTTPStatus(answer.code).phrase}",
            f"Date: {time.strftime('%a, %d %b %Y %H:%M:%S GMT', time.gmtime())}",
            f"Content-Type: {answer.kind}",
            *(f"{name}: {value}" for name, value in answer.headers),
        ]
        if not self.is_stream:
            lines.append(f"Content-Length: {len(answer.body)}")
        if is_last or self.is_stream:
            lines.append("Connection: close")
        self._transport.write("\r\n".join([*lines, "", ""]).encode("latin-1") + answer.body)
        if answer.stream is not None:
            answer.stream(self)
        elif is_last and not self._is_ended:
            self._is_ended = True
            self._head.clear()
            self._transport.write_eof()


def _read(head: bytes) -> tuple[str, str, bool]:
    """(path without its query, Host header, this is the last request); Refusal for what is not
    plain."""
    first, *rest = head.split(b"\r\n")
    found = _FIRST.fullmatch(first)
    if found is None:
        raise Refusal(400, "this is no HTTP/1.1 request")
    if found[1] != b"GET":
        raise Refusal(
            405, "only GET is answered; nothing can be changed here", is_head=found[1] == b"HEAD"
        )
    if len(rest) > HEAD_LINES:
        raise Refusal(431, f"a request here has {HEAD_LINES} headers at most")
    headers: dict[bytes, bytes] = {}
    for line in rest:
        header = _HEADER.fullmatch(line)
        if header is None or (header[1].lower() == b"host" and b"host" in headers):
            raise Refusal(400, "a header of this request is none")
        headers[header[1].lower()] = header[2].strip()
    if headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers:
        raise Refusal(413, "a request here has no body")
    if found[3] == b"1" and b"host" not in headers:
        raise Refusal(400, "an HTTP/1.1 request has a Host header")
    if not found[2].startswith(b"/"):
        raise Refusal(400, "ask for a path")
    is_last = found[3] == b"0" or b"close" in headers.get(b"connection", b"").lower()
    return (
        found[2].split(b"?", 1)[0].decode("latin-1"),
        headers.get(b"host", b"").decode("latin-1"),
        is_last,
    )
