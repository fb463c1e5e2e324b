"""/events: who is told, how often, and what it costs when nobody listens."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from agent.service import events as room
from agent.service import http as http_room

from .test_http import Seen, free_port, served

Streams = Callable[[], Awaitable[asyncio.StreamReader]]


@contextlib.asynccontextmanager
async def listening(
    answers: Seen, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> AsyncIterator[tuple[http_room.Http, Streams]]:
    monkeypatch.setattr(http_room, "SOCKET", str(tmp_path / "agent.sock"))
    answers.where = f"127.0.0.1:{free_port()}"
    writers = []

    async def stream() -> asyncio.StreamReader:
        reader, writer = await asyncio.open_connection(*answers.where.split(":"), limit=1 << 20)
        writer.write(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        writers.append(writer)
        return reader

    async with served(answers) as (face, _):
        yield face, stream
        for writer in writers:
            writer.close()
        await asyncio.sleep(0)


async def event(reader: asyncio.StreamReader) -> tuple[str, Any]:
    """The next event: (name, data); a comment is (":", None)."""
    while True:
        lines = (await asyncio.wait_for(reader.readuntil(b"\n\n"), 60)).decode().strip().split("\n")
        if lines == [":"]:
            return ":", None
        fields = dict(
            line.split(": ", 1) for line in lines if line.startswith(("event: ", "data: "))
        )
        if fields:
            return fields["event"], json.loads(fields["data"])


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    def run(
        story: Callable[[Seen, http_room.Http, Streams], Awaitable[Any]], **constants: float
    ) -> Any:
        for name, value in constants.items():
            monkeypatch.setattr(room, name, value)

        async def on_stage() -> Any:
            answers = Seen()
            answers.body = status()
            async with listening(answers, monkeypatch, tmp_path) as (face, stream):
                return await story(answers, face, stream)

        return asyncio.run(asyncio.wait_for(on_stage(), 120))

    return run


def status(why: str = "all well", age_s: float = 0.5) -> dict[str, Any]:
    return {
        "version": 1,
        "gate": {"why": why, "for_s": age_s},
        "cycle": {"number": age_s, "age_s": age_s},
    }


def test_a_listener_gets_the_status_and_then_what_changes(play: Callable[..., Any]) -> None:
    async def story(answers: Seen, face: http_room.Http, stream: Streams) -> list[Any]:
        reader = await stream()
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"text/event-stream" in head and b"Content-Length" not in head
        said = [await event(reader)]
        answers.body = status("broken")
        face.cycled()
        said.append(await event(reader))
        answers.body = status("broken", 30.5)
        face.cycled()
        said.append(await event(reader))
        return said

    assert play(story, AT_MOST_EVERY_S=0.0) == [
        ("status", status()),
        ("status", status("broken")),
        ("cycle", {"age_s": 30.5}),
    ]


def test_many_cycles_a_second_are_told_once_and_the_last_one_is_not_lost(
    play: Callable[..., Any],
) -> None:
    async def story(answers: Seen, face: http_room.Http, stream: Streams) -> list[Any]:
        reader = await stream()
        await event(reader)
        for n in range(500):
            answers.body = status(f"change {n}")
            face.cycled()
        said = []
        while not said or said[-1][1]["gate"]["why"] != "change 499":
            said.append(await event(reader))
        return said

    assert len(play(story, AT_MOST_EVERY_S=1.5)) <= 2


def test_nobody_listens_and_it_costs_nothing(play: Callable[..., Any]) -> None:
    async def story(answers: Seen, face: http_room.Http, stream: Streams) -> list[int]:
        before = answers.asked
        for _ in range(100):
            face.cycled()
        asked = answers.asked - before
        reader = await stream()
        await event(reader)
        return [asked, len(face._events)]

    assert play(story) == [0, 1]


def test_listeners_are_few_and_those_that_leave_make_room(play: Callable[..., Any]) -> None:
    async def story(answers: Seen, face: http_room.Http, stream: Streams) -> None:
        readers = [await stream() for _ in range(room.MOST_LISTENERS)]
        for reader in readers:
            await event(reader)
        head = await (await stream()).readuntil(b"\r\n\r\n")
        assert b" 503 " in head and b"Retry-After: 30" in head
        connection = next(iter(face._events._listeners))
        connection.abort()
        while len(face._events) == room.MOST_LISTENERS:
            await asyncio.sleep(0)
        assert (await event(await stream()))[0] == "status"

    play(story)


def test_a_quiet_line_is_kept_alive_by_comments(play: Callable[..., Any]) -> None:
    async def story(answers: Seen, face: http_room.Http, stream: Streams) -> list[str]:
        reader = await stream()
        return [(await event(reader))[0] for _ in range(3)]

    assert play(story, AT_MOST_EVERY_S=0.02, HEARTBEAT_S=0.05) == ["status", ":", ":"]


def test_a_listener_that_does_not_read_costs_its_own_events_only(play: Callable[..., Any]) -> None:
    async def story(answers: Seen, face: http_room.Http, stream: Streams) -> None:
        await stream()
        reader = await stream()
        await event(reader)
        for n in range(200):
            answers.body = status(str(n) + "x" * 100_000)
            face.cycled()
            assert (await event(reader))[1]["gate"]["why"].startswith(str(n))
        assert sum(c.unsent_bytes for c in face._events._listeners) < 1 << 20

    play(story, AT_MOST_EVERY_S=0.0)
