"""HTTP over real sockets: codes, bodies, and which clients are served."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agent.service import http as http_room
from agent.service.http import Http
from agent.transport.http import Server

Ask = Callable[..., Awaitable[tuple[int, dict[str, str], str]]]


class Seen:
    """A fake of what the faces are answered from."""

    def __init__(self, listen: str = "") -> None:
        self.where, self.overdue, self.ready, self.why = listen, False, True, "all well"
        self.number, self.asked = 1, 0
        self.body: dict[str, Any] = {"version": 1, "gate": {"why": "ä\ud800"}}

    def listen(self) -> str:
        return self.where

    def is_overdue(self) -> bool:
        return self.overdue

    def readiness(self) -> tuple[bool, str]:
        return self.ready, self.why

    def cycles(self) -> int:
        return self.number

    def status(self) -> dict[str, Any]:
        self.asked += 1
        return self.body

    def metrics(self) -> str:
        return "# HELP x y\n"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def exchange(port: int, text: str) -> tuple[int, dict[str, str], str]:
    """(status, headers, body) of one raw request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(text.encode())
    answer = (await asyncio.wait_for(reader.read(), 60)).decode()
    writer.close()
    head, _, body = answer.partition("\r\n\r\n")
    lines = head.split("\r\n")
    return (
        int(lines[0].split()[1]),
        {k.lower(): v for k, _, v in (h.partition(": ") for h in lines[1:])},
        body,
    )


@asynccontextmanager
async def served(answers: Seen) -> AsyncIterator[tuple[Http, Ask]]:
    port = free_port()
    answers.where = answers.where or f"127.0.0.1:{port}"
    face = Http(answers)
    await face.start()

    async def ask(
        path: str, method: str = "GET", host: str = "localhost"
    ) -> tuple[int, dict[str, str], str]:
        return await exchange(
            port, f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        )

    try:
        yield face, ask
    finally:
        face.close()


@pytest.fixture(autouse=True)
def unix_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The one path that is fixed: /run/gpu-gate may belong to an agent that runs here."""
    path = tmp_path / "agent.sock"
    monkeypatch.setattr(http_room, "SOCKET", str(path))
    return path


def asked(path: str, answers: Seen | None = None, **how: str) -> tuple[int, dict[str, str], str]:
    async def one() -> tuple[int, dict[str, str], str]:
        async with served(answers or Seen()) as (_, ask):
            return await ask(path, **how)

    return asyncio.run(one())


def seen(**changes: Any) -> Seen:
    answers = Seen()
    for name, value in changes.items():
        setattr(answers, name, value)
    return answers


@pytest.mark.parametrize(
    ("path", "answers", "code", "body"),
    [
        ("/healthz", seen(), 200, "ok\n"),
        ("/healthz", seen(ready=False), 200, "ok\n"),
        ("/healthz", seen(overdue=True), 503, "a cycle is overdue\n"),
        ("/readyz", seen(), 200, "all well\n"),
        ("/readyz", seen(ready=False, why="7 of 8: 0000:e4:00.0"), 503, "7 of 8: 0000:e4:00.0\n"),
        ("/readyz", seen(overdue=True), 503, "a cycle is overdue: the last snapshot is too old\n"),
        ("/readyz?verbose", seen(), 200, "all well\n"),
        ("/readyz", seen(ready=False, why="a\r\nb"), 503, "a b\n"),
        ("/readyz", seen(ready=False, why="pod \x1b[2J\u202e"), 503, "pod ?[2J?\n"),
    ],
)
def test_each_path_has_its_answer(path: str, answers: Seen, code: int, body: str) -> None:
    answers.where = ""
    found = asked(path, answers)
    assert (found[0], found[2]) == (code, body)
    assert found[2].count("\n") == 1, "one line says why"


@pytest.mark.parametrize(
    "path",
    [
        "/metrics2",
        "/status/../healthz",
        "//status",
        "/status/",
        "/%73tatus",
        "/page.html",
        "/../../etc/passwd",
        "/status%00",
        "/STATUS",
        "/;/status",
    ],
)
def test_only_known_paths_exist(path: str) -> None:
    code, _, body = asked(path)
    assert (code, "root:" in body) == (404, False)


@pytest.mark.parametrize("path", ["/", "/readyz", "/status", "/metrics", "/nothing"])
def test_no_browser_may_frame_keep_sniff_or_run_an_answer(path: str) -> None:
    _, headers, _ = asked(path)
    assert headers["cache-control"] == "no-store"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    policy = headers["content-security-policy"]
    for part in (
        "default-src 'none'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ):
        assert part in policy
    assert "unsafe" not in policy and "access-control-allow-origin" not in headers


def test_a_cycle_is_rendered_once_for_all_clients() -> None:
    async def story() -> list[int]:
        answers = seen(number=7)
        async with served(answers) as (_, ask):
            for _ in range(20):
                await ask("/status")
            first = answers.asked
            answers.number = 8
            answers.body = {"version": 1, "gate": {"why": "news"}}
            _, _, body = await ask("/status")
            return [first, "news" in body]

    first, is_news = asyncio.run(story())
    assert first < 20 and is_news


def test_status_is_json_even_with_strings_that_are_not_text() -> None:
    code, headers, body = asked("/status")
    assert (code, headers["content-type"]) == (200, "application/json; charset=utf-8")
    assert json.loads(body) == Seen().status()


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/status", "/"])
def test_no_request_can_change_anything(method: str, path: str) -> None:
    code, headers, _ = asked(path, method=method)
    assert code == 405
    assert "GET" in headers["allow"]


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:9477", "127.0.0.1:9477", "10.0.0.7", "[::1]:9477", "[::1]"]
)
def test_a_request_by_ip_address_is_answered(host: str) -> None:
    assert asked("/readyz", host=host)[0] == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:9477",
        "127.0.0.1.evil.example",
        "localhost.evil.example:9477",
        "0x7f000001:9477",
        "node-1",
        "[::1].evil.example",
    ],
)
@pytest.mark.parametrize("path", ["/status", "/nothing"])
def test_a_request_with_a_foreign_host_name_is_refused(host: str, path: str) -> None:
    """DNS rebinding: a web page whose name resolves to 127.0.0.1 must not read this node."""
    code, _, body = asked(path, host=host)
    assert (code, "version" in body) == (421, False)


def test_a_huge_request_is_refused_and_the_server_continues() -> None:
    async def both() -> tuple[int, int]:
        async with served(Seen()) as (_, ask):
            return (await ask("/" + "x" * 100_000))[0], (await ask("/healthz"))[0]

    assert asyncio.run(both()) == (431, 200)


def test_a_port_in_use_disables_only_http_and_is_retried() -> None:
    async def story() -> list[Any]:
        taken = socket.socket()
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        async with served(Seen(f"127.0.0.1:{port}")) as (face, _):
            problem = face.problem
            await face.keep()
            still = face.problem
            taken.close()
            await face.keep()
            code, _, _ = await exchange(
                port, "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            )
            return [problem, still, face.problem, code, port]

    problem, still, cured, code, port = asyncio.run(story())
    assert problem == still
    assert problem.startswith(f"HTTP cannot listen on 127.0.0.1:{port}: ") and problem.endswith(
        "see ss -ltnp"
    )
    assert (cured, code) == (None, 200)


def test_a_listener_that_cannot_open_is_a_problem() -> None:
    async def story() -> list[str | None]:
        async with served(Seen(f"127.0.0.1:{free_port()}")) as (face, _):
            before, found = face.problem, face._tcp
            assert found is not None
            found._acceptors[
                0
            ].problem = "no new connection can be accepted (Too many open files): sysctl fs.file-nr"
            return [before, face.problem]

    before, now = asyncio.run(story())
    assert before is None
    assert now == "HTTP: no new connection can be accepted (Too many open files): sysctl fs.file-nr"


def test_a_port_refused_by_the_sandbox_is_not_reported_as_in_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refused(*_: object) -> None:
        raise PermissionError(errno.EACCES, "permission denied")

    async def story() -> str:
        monkeypatch.setattr(Server, "listen", refused)
        async with served(Seen("127.0.0.1:80")) as (face, _):
            return face.problem or ""

    assert asyncio.run(story()).endswith("name a higher one in [Http] Listen=")


def test_a_reload_moves_or_closes_the_listener() -> None:
    async def story() -> list[bool]:
        answers = Seen()
        async with served(answers) as (face, _):
            first = answers.where
            answers.where = f"127.0.0.1:{free_port()}"
            await face.keep()
            states = [await is_open(first), await is_open(answers.where)]
            second, answers.where = answers.where, ""
            await face.keep()
            return [*states, await is_open(second)]

    assert asyncio.run(story()) == [False, True, False]


async def is_open(where: str) -> bool:
    host, _, port = where.rpartition(":")
    try:
        _, writer = await asyncio.open_connection(host, int(port))
    except OSError:
        return False
    writer.close()
    return True


def test_listening_beyond_loopback_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def start(where: str) -> None:
        async with served(Seen(where)):
            pass

    asyncio.run(start(f"127.0.0.1:{free_port()}"))
    assert "every host that reaches it" not in caplog.text
    asyncio.run(start(f"0.0.0.0:{free_port()}"))
    assert "every host that reaches it" in caplog.text


@pytest.mark.parametrize("before", ["nothing", "a socket that a dead agent left", "a file"])
def test_the_unix_socket_belongs_to_root(unix_socket: Path, before: str) -> None:
    if before == "a file":
        unix_socket.touch()
    elif before != "nothing":
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(unix_socket))

    async def story() -> tuple[int, bytes]:
        async with served(Seen()):
            mode = os.stat(unix_socket).st_mode
            reader, writer = await asyncio.open_unix_connection(str(unix_socket))
            writer.write(b"GET /readyz HTTP/1.0\r\nHost: localhost\r\n\r\n")
            answer = await asyncio.wait_for(reader.read(), 10)
            writer.close()
            return mode, answer

    mode, answer = asyncio.run(story())
    assert stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o600
    assert answer.startswith(b"HTTP/1.1 200") and answer.endswith(b"all well\n")


def test_a_unix_socket_that_cannot_open_disables_only_itself(
    unix_socket: Path, caplog: pytest.LogCaptureFixture
) -> None:
    unix_socket.mkdir()
    assert asked("/healthz")[0] == 200
    assert "could not be opened" in caplog.text
