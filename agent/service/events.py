"""/events: /status as server-sent events, for whoever has the page open. Nobody listens: it costs
nothing.

event: status   the whole of /status, after a cycle that changed something; at most one a second
event: cycle    {"age_s": …}: a cycle ended and changed nothing :               a comment every 15
s, so that a dead connection is noticed
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from ..transport.http import Answer, Connection

MOST_LISTENERS = 16
AT_MOST_EVERY_S = 1.0
HEARTBEAT_S = 15.0
RETRY_MS = 3000
KIND = "text/event-stream; charset=utf-8"


class Events:
    """The listeners, and what they were told last."""

    def __init__(self, status: Callable[[], dict[str, Any]]) -> None:
        self._status = status
        self._listeners: dict[Connection, bool] = {}
        "True: it did not read its last event, and is sent the next one whatever that is"
        self._told: Any = None
        self._sent_at = self._heard_at = 0.0
        self._is_due = False
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._listeners)

    def answer(self) -> Answer:
        if len(self._listeners) >= MOST_LISTENERS:
            return Answer(
                503,
                f"{MOST_LISTENERS} pages are listening already: close one\n".encode(),
                headers=(("Retry-After", "30"),),
            )
        return Answer(200, f"retry: {RETRY_MS}\n\n".encode(), KIND, stream=self._join)

    def cycled(self) -> None:
        """A cycle has ended."""
        if self._listeners:
            self._is_due = True
            self._tell()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _join(self, connection: Connection) -> None:
        self._listeners[connection] = False
        connection.on_lost = lambda: self._leave(connection)
        connection.send(_event("status", self._status()))
        if self._timer is None:
            self._told, self._heard_at = None, _now()
            self._timer = asyncio.get_running_loop().call_later(AT_MOST_EVERY_S, self._tick)

    def _leave(self, connection: Connection) -> None:
        self._listeners.pop(connection, None)

    def _tick(self) -> None:
        """Once a second while somebody listens."""
        self._timer = None
        if not self._listeners:
            return
        if self._is_due:
            self._tell()
        elif _now() - self._heard_at >= HEARTBEAT_S:
            self._send(b":\n\n")
        self._timer = asyncio.get_running_loop().call_later(AT_MOST_EVERY_S, self._tick)

    def _tell(self) -> None:
        now = _now()
        if now - self._sent_at < AT_MOST_EVERY_S:
            return
        self._is_due, self._sent_at = False, now
        body = self._status()
        lasting = _without_times(body)
        if lasting != self._told or any(self._listeners.values()):
            self._told = lasting
            self._send(_event("status", body))
        else:
            self._send(_event("cycle", {"age_s": body.get("cycle", {}).get("age_s", 0)}))

    def _send(self, data: bytes) -> None:
        self._heard_at = _now()
        for connection in list(self._listeners):
            if data.startswith(b"event: status"):
                self._listeners[connection] = not connection.send(data)
            else:
                connection.send(data)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _event(name: str, body: Any) -> bytes:
    """JSON as json.dumps writes it holds no line break and no character beyond ASCII."""
    return f"event: {name}\ndata: {json.dumps(body)}\n\n".encode()


def _without_times(body: Any) -> Any:
    """What is left of a status when nothing happens: ages grow and the cycle's number, and that is
    no news."""
    if isinstance(body, dict):
        return {
            key: _without_times(value)
            for key, value in body.items()
            if key != "cycle" and not key.endswith(("_s", "_ago"))
        }
    return [_without_times(value) for value in body] if isinstance(body, list) else body
