"""The agent's HTTP interface on a free port, in a thread, with a status that a test sets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from agent.service.http import Http


class Served:
    """What the faces are answered from."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.body, self.number = body, 1
        self.where = "127.0.0.1:0"
        self.loop = asyncio.new_event_loop()
        self.faces: Http | None = None

    def say(self, body: dict[str, Any]) -> None:
        """A cycle ends with this."""

        def cycle() -> None:
            self.body, self.number = body, self.number + 1

        self.loop.call_soon_threadsafe(cycle)

    def listen(self) -> str:
        return self.where

    def cycles(self) -> int:
        return self.number

    def is_overdue(self) -> bool:
        return False

    def readiness(self) -> tuple[bool, str]:
        return self.body["gate"]["ready"], self.body["gate"]["ready_why"]

    def status(self) -> dict[str, Any]:
        return self.body

    def metrics(self) -> str:
        return ""


@contextmanager
def served(body: dict[str, Any], port: int) -> Iterator[Served]:
    answers = Served(body)
    answers.where = f"127.0.0.1:{port}"
    started = threading.Event()

    async def live() -> None:
        answers.faces = Http(answers)
        await answers.faces.start()
        started.set()

    def run() -> None:
        asyncio.set_event_loop(answers.loop)
        task = answers.loop.create_task(live())
        answers.loop.run_forever()
        task.result()
        assert answers.faces is not None
        answers.faces.close()
        answers.loop.run_until_complete(asyncio.sleep(0.05))
        answers.loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert started.wait(60)
        yield answers
    finally:
        answers.loop.call_soon_threadsafe(answers.loop.stop)
        thread.join(60)
