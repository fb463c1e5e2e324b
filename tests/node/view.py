"""A node's page for a browser on this machine: a port of its loopback interface that leads to the
node's 9477.

The node has a network namespace of its own, and a namespace is a thread's: one thread enters it and
opens the connections there, on behalf of a socket that was bound out here.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator

from nspawn import Node, NodeError

PORT = 9477
"""The agent's, in the node."""
CLONE_NEWNET = 0x40000000
READ = 1 << 16


@contextlib.contextmanager
def viewed(node: Node, port: int = 0) -> Iterator[str]:
    """The address of its page while the block lasts. `port`: here, or another where that one is
    taken."""
    with _listening(port) as listening:
        loop, up = asyncio.new_event_loop(), threading.Event()
        ended = asyncio.Event()
        failed: list[OSError] = []

        def relay() -> None:
            try:
                _enter(node)
            except OSError as problem:
                failed.append(problem)
            up.set()
            if not failed:
                loop.run_until_complete(_serve(listening, ended))
            loop.close()

        thread = threading.Thread(target=relay)
        thread.start()
        up.wait()
        if failed:
            raise NodeError(f"cannot enter the network of {node.name}: {failed[0]}. Is it running?")
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
        finally:
            loop.call_soon_threadsafe(ended.set)
            thread.join()


def look(node: Node, stays: bool) -> None:
    """The demo's last line: keep the node and print its page's address, or print how to get one."""
    if not stays:
        print(
            f"To see the page of a live node: make demo ARGS=--view, then http://127.0.0.1:{PORT}/"
        )
        return
    is_asked = sys.stdin.isatty()
    with viewed(node, PORT) as where, contextlib.suppress(KeyboardInterrupt):
        port = where.rstrip("/").rpartition(":")[2]
        print(
            f"The node of act 3 runs until {'Enter' if is_asked else 'Ctrl-C'}. From another "
            f"machine: ssh -L {port}:127.0.0.1:{port} root@HOST"
        )
        print(f"Its page:  {where}", flush=True)
        if is_asked:
            sys.stdin.readline()
        else:
            signal.pause()


def _listening(port: int) -> socket.socket:
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind(("127.0.0.1", port))
    except OSError as problem:
        if problem.errno != errno.EADDRINUSE:
            raise
        found.bind(("127.0.0.1", 0))
    return found


def _enter(node: Node) -> None:
    """This thread into the node's network (os.setns is Python 3.12)."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/proc/{node.leader}/ns/net") as namespace:
        if libc.setns(namespace.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


async def _serve(listening: socket.socket, ended: asyncio.Event) -> None:
    clients: set[asyncio.Task[None]] = set()

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        clients.add(task)
        task.add_done_callback(clients.discard)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await _join(reader, writer)
        writer.close()

    server = await asyncio.start_server(client, sock=listening)
    await ended.wait()
    server.close()
    for task in tuple(clients):
        task.cancel()
    await asyncio.gather(*clients, return_exceptions=True)
    await asyncio.sleep(0)  # the closed transports go


async def _join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until one side ends: HTTP's ends are whole."""
    theirs, to_node = await asyncio.open_connection("127.0.0.1", PORT)
    ways = [
        asyncio.ensure_future(_copy(reader, to_node)),
        asyncio.ensure_future(_copy(theirs, writer)),
    ]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        to_node.close()


async def _copy(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
    while part := await source.read(READ):
        to.write(part)
        await to.drain()
