"""HTTP over real sockets, with hostile clients: refused, dropped or delayed, without an effect on
others."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from agent.transport import acceptor
from agent.transport import http as web
from agent.transport.http import Answer, Server

BIG = b"x" * 300_000
GET = b"GET /a HTTP/1.1\r\nHost: localhost\r\n\r\n"
LAST = b"GET /a HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


class Site:
    """A server on a free port, and its requests."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.server = Server(self._answer)
        self.port = 0

    def _answer(self, path: str, host: str) -> Answer:
        self.asked.append((path, host))
        return Answer(200, BIG if path == "/big" else b"well\n")

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def ask(self, request: bytes = LAST) -> bytes:
        """All that is answered until the end; what was torn off counts as it came."""
        reader, writer = await self.open()
        writer.write(request)
        answer = bytearray()
        with contextlib.suppress(ConnectionError):
            while part := await asyncio.wait_for(reader.read(1 << 16), 60):
                answer += part
        writer.close()
        return bytes(answer)


@contextlib.asynccontextmanager
async def site() -> AsyncIterator[Site]:
    found = Site()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        found.port = probe.getsockname()[1]
    await found.server.listen("127.0.0.1", found.port)
    try:
        yield found
    finally:
        found.server.close()
        await asyncio.sleep(0)


def on_site(story: Callable[[Site], Awaitable[None]]) -> None:
    async def play() -> None:
        async with site() as found:
            await story(found)

    asyncio.run(asyncio.wait_for(play(), 120))


def code(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (LAST, 200),
        (b"GET /a HTTP/1.0\r\n\r\n", 200),
        (b"GET /a?b=c HTTP/1.0\r\nX-Latin: \xe9\r\n\r\n", 200),
        (b"HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc", 405),
        (b"TRACE / HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
        (b"CONNECT x:443 HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello", 413),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", 413),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 413),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\n folded: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n", 400),
        (b"GET http://evil/ HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET * HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\nHost: localhost\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"GET /" + b"a" * 3000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"A: b\r\n" * 100 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: a\r\nA: " + b"b" * 9000 + b"\r\n\r\n", 431),
        (b"A" * 200_000, 431),
    ],
)
def test_an_invalid_request_is_refused_and_closes_the_connection(
    request_: bytes, expected: int
) -> None:
    async def story(found: Site) -> None:
        answer = await found.ask(request_)
        assert code(answer) == expected
        assert answer.count(b"\r\nDate: ") == 1
        assert bool(found.asked) == (expected == 200)
        if expected == 405:
            assert b"\r\nAllow: GET\r\n" in answer
        if request_.startswith(b"HEAD"):
            assert answer.endswith(b"\r\n\r\n"), "an answer to HEAD has no body"
        assert code(await found.ask()) == 200

    on_site(story)


def test_the_host_and_the_path_are_reported() -> None:
    async def story(found: Site) -> None:
        await found.ask(
            b"GET /%2e%2e/a?x=/b HTTP/1.1\r\nhOsT:  node:9477 \r\nConnection: close\r\n\r\n"
        )
        assert found.asked == [("/%2e%2e/a", "node:9477")]

    on_site(story)


def test_pipelined_requests_are_answered_in_order() -> None:
    async def story(found: Site) -> None:
        paths = [b"/%d" % n for n in range(100)]
        answer = await found.ask(
            b"".join(b"GET %s HTTP/1.1\r\nHost: a\r\n\r\n" % p for p in paths) + LAST
        )
        assert answer.count(b"HTTP/1.1 200 OK") == 101
        assert [path for path, _ in found.asked] == [*(p.decode() for p in paths), "/a"]

    on_site(story)


def test_a_client_that_never_reads_is_throttled() -> None:
    """It requests 3 GB; its answers stay within the buffers, and other clients are answered."""

    async def story(found: Site) -> None:
        _, writer = await found.open()
        writer.write(b"GET /big HTTP/1.1\r\nHost: a\r\n\r\n" * 10_000)
        for _ in range(50):
            assert code(await found.ask()) == 200
        assert len([path for path, _ in found.asked if path == "/big"]) < 40
        writer.close()

    on_site(story)


def test_unread_answers_are_dropped_before_they_fill_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No other client is dropped: one that reads stays connected, however old its request is."""
    monkeypatch.setattr(web, "ALL_UNSENT_BYTES", 1 << 20)
    monkeypatch.setattr(web, "IDLE_S", 60.0)

    async def story(found: Site) -> None:
        reader, patient = await found.open()
        patient.write(GET)
        await asyncio.wait_for(reader.readuntil(b"well\n"), 20)
        greedy = []
        for _ in range(60):
            _, writer = await found.open()
            writer.write(b"GET /big HTTP/1.1\r\nHost: a\r\n\r\n" * 20)
            greedy.append(writer)
        for _ in range(20):
            await found.ask()
        assert sum(c.unsent_bytes for c in found.server._connections) <= web.ALL_UNSENT_BYTES + len(
            BIG
        )
        assert len(found.server) < 60
        patient.write(GET)
        await asyncio.wait_for(reader.readuntil(b"well\n"), 20)
        for writer in (*greedy, patient):
            writer.close()

    on_site(story)


def test_a_thousand_connections_block_no_client() -> None:
    """Idle connections are closed, the longest idle first: every request is answered."""

    async def story(found: Site) -> None:
        silent = [await found.open() for _ in range(200)]
        assert len(found.server) <= web.MOST_CONNECTIONS
        for n in range(20):
            silent += [await found.open() for _ in range(40)]
            assert code(await found.ask()) == 200, n
        assert len(found.server) <= web.MOST_CONNECTIONS
        gone, _ = silent[0]
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(gone.read(), 60) == b""
        for _, writer in silent:
            writer.close()

    on_site(story)


def test_a_request_that_drips_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "IDLE_S", 0.3)
    monkeypatch.setattr(web, "SWEEP_S", 0.05)

    async def story(found: Site) -> None:
        reader, writer = await found.open()

        async def drip() -> None:
            with contextlib.suppress(ConnectionError):
                for byte in b"GET /a HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 10_000:
                    writer.write(bytes([byte]))
                    await writer.drain()
                    await asyncio.sleep(0.02)

        dripping = asyncio.create_task(drip())
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 60) == b""
        dripping.cancel()
        writer.close()
        assert not found.asked

    on_site(story)


def test_no_timer_runs_without_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent without clients is not woken."""
    monkeypatch.setattr(web, "SWEEP_S", 0.02)

    async def story(found: Site) -> None:
        await found.ask()
        while found.server._sweeper is not None:
            await asyncio.sleep(0.02)
        assert len(found.server) == 0
        assert code(await found.ask()) == 200

    on_site(story)


def test_a_connection_is_kept_and_used_again() -> None:
    async def story(found: Site) -> None:
        reader, writer = await found.open()
        for _ in range(3):
            writer.write(GET)
            assert (await asyncio.wait_for(reader.readuntil(b"well\n"), 60)).startswith(
                b"HTTP/1.1 200 OK\r\n"
            )
        writer.close()

    on_site(story)


def test_without_a_descriptor_left_clients_wait_and_the_log_is_not_flooded(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """accept(2) fails with EMFILE while a client waits. It is logged once, and waiting clients are
    answered afterwards."""
    monkeypatch.setattr(acceptor, "RETRY_S", 0.01)

    async def story(found: Site) -> None:
        loop = asyncio.get_running_loop()
        with socket.socket() as client, contextlib.ExitStack() as all_of_them:
            client.setblocking(False)
            gc.collect()  # what earlier tests left open must not make room meanwhile
            usual = resource.getrlimit(resource.RLIMIT_NOFILE)
            all_of_them.callback(resource.setrlimit, resource.RLIMIT_NOFILE, usual)
            resource.setrlimit(resource.RLIMIT_NOFILE, (256, usual[1]))
            with pytest.raises(OSError, match="Too many open files"):
                while True:
                    all_of_them.callback(os.close, os.dup(client.fileno()))
            await loop.sock_connect(client, ("127.0.0.1", found.port))
            await loop.sock_sendall(client, LAST)
            while not (said := found.server.problem):
                await asyncio.sleep(0.01)
            assert "no new connection can be accepted (Too many open files)" in said
            await asyncio.sleep(0.1)
            all_of_them.close()
            assert code(await asyncio.wait_for(loop.sock_recv(client, 1 << 16), 60)) == 200
        assert found.server.problem is None

    on_site(story)
    assert caplog.records == []


def test_a_unix_socket_has_its_own_connection_limit(tmp_path: Path) -> None:
    async def story(found: Site) -> None:
        own = Server(found._answer)
        await own.listen_unix(str(tmp_path / "socket"))
        silent = [await found.open() for _ in range(200)]
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "socket"))
        writer.write(LAST)
        assert code(await asyncio.wait_for(reader.read(), 60)) == 200
        writer.close()
        own.close()
        for _, other in silent:
            other.close()

    on_site(story)
