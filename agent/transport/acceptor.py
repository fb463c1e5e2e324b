"""A listening socket whose clients are let in one by one, also where the system has nothing left
for one.

asyncio's own servers cannot do the latter (Python 3.11, Lib/asyncio/selector_events.py,
_accept_connection): where accept(2) answers EMFILE or ENFILE, they write a traceback, try as often
as the backlog is long, and from each try again a second later. A client that waits then costs a
whole processor and a million lines in two minutes: the journal forgets everything else.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

BACKLOG = 64
AGAIN_S = 1.0
"""So long nobody is let in where the system had nothing left for a client."""


class Door:
    """One listening socket, in the running loop."""

    def __init__(self, listening: socket.socket, protocol: Callable[[], asyncio.Protocol]) -> None:
        """`listening` is bound already, and ours from now on. OSError."""
        self.problem: str | None = None
        """Why nobody is let in, as a sentence; None while everybody is."""
        self._loop = asyncio.get_running_loop()
        self._listening, self._protocol = listening, protocol
        self._guests: set[asyncio.Task[None]] = set()
        self._again: asyncio.TimerHandle | None = None
        try:
            listening.setblocking(False)
            listening.listen(BACKLOG)
        except OSError:
            listening.close()
            raise
        self._open()

    def close(self) -> None:
        if self._again is not None:
            self._again.cancel()
        self._loop.remove_reader(self._listening)
        self._listening.close()

    def _open(self) -> None:
        self._loop.add_reader(self._listening, self._let_in)

    def _let_in(self) -> None:
        try:
            client, _ = self._listening.accept()
        except (BlockingIOError, ConnectionError):  # it has left again
            return
        except OSError as exc:
            self._trouble(exc)
            self._loop.remove_reader(self._listening)
            self._again = self._loop.call_later(AGAIN_S, self._open)
            return
        self.problem = None
        client.setblocking(False)
        guest = self._loop.create_task(self._greet(client))
        self._guests.add(guest)
        guest.add_done_callback(self._guests.discard)

    async def _greet(self, client: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._protocol, client)
        except OSError as exc:
            self._trouble(exc)
            client.close()

    def _trouble(self, exc: OSError) -> None:
        self.problem = (
            f"nobody is let in ({exc.strerror}): sysctl fs.file-nr; ls "
            "/proc/$(pgrep -o gpu-gate)/fd"
        )


async def tcp(host: str, port: int) -> list[socket.socket]:
    """Bound sockets, one for each address of the host. OSError."""
    bound = await asyncio.get_running_loop().create_server(
        asyncio.Protocol, host, port, start_serving=False
    )
    try:
        return [one.dup() for one in bound.sockets]
    finally:
        bound.close()


def unix(path: str) -> socket.socket:
    """A bound socket. OSError."""
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        bound.bind(path)
    except OSError:
        bound.close()
        raise
    return bound
