"""A listening socket that accepts clients one by one, and survives running out of file descriptors.

asyncio's own servers do not (Python 3.11, Lib/asyncio/selector_events.py, _accept_connection):
where accept(2) returns EMFILE or ENFILE, they log a traceback, try as often as the backlog is long,
and from each try again a second later. One waiting client then costs a whole processor and a
million log lines in two minutes, and the journal drops everything else.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

BACKLOG = 64
RETRY_S = 1.0
"""The pause after accept(2) failed."""


class Acceptor:
    """One listening socket in the running loop."""

    def __init__(self, listening: socket.socket, protocol: Callable[[], asyncio.Protocol]) -> None:
        """Takes over `listening`, which is bound. Raises OSError if it cannot listen."""
        self.problem: str | None = None
        """Why no client is accepted, as a sentence; None while clients are."""
        self._loop = asyncio.get_running_loop()
        self._listening, self._protocol = listening, protocol
        self._connecting: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None
        try:
            listening.setblocking(False)
            listening.listen(BACKLOG)
        except OSError:
            listening.close()
            raise
        self._start()

    def close(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
        self._loop.remove_reader(self._listening)
        self._listening.close()

    def _start(self) -> None:
        self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        try:
            client, _ = self._listening.accept()
        except (BlockingIOError, ConnectionError):  # the client has left already
            return
        except OSError as exc:
            self._failed(exc)
            self._loop.remove_reader(self._listening)
            self._retry = self._loop.call_later(RETRY_S, self._start)
            return
        self.problem = None
        client.setblocking(False)
        task = self._loop.create_task(self._connect(client))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, client: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._protocol, client)
        except OSError as exc:
            self._failed(exc)
            client.close()

    def _failed(self, exc: OSError) -> None:
        self.problem = (
            f"no new connection can be accepted ({exc.strerror}): sysctl fs.file-nr; "
            "ls /proc/$(pgrep -o gpu-gate)/fd"
        )


async def tcp(host: str, port: int) -> list[socket.socket]:
    """Bound sockets, one for each address of the host. Raises OSError."""
    bound = await asyncio.get_running_loop().create_server(
        asyncio.Protocol, host, port, start_serving=False
    )
    try:
        return [one.dup() for one in bound.sockets]
    finally:
        bound.close()


def unix(path: str) -> socket.socket:
    """A bound socket. Raises OSError."""
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        bound.bind(path)
    except OSError:
        bound.close()
        raise
    return bound
