"""Who listens on a unix socket."""

from __future__ import annotations

import socket
import struct

_UCRED = struct.Struct("3i")
"""struct ucred: pid of who called listen(2), as our pid namespace knows it; uid, gid (unix(7))."""


def listener_pid(path: str) -> int:
    """By SO_PEERCRED of a connection that is closed at once. /proc/net/unix would show the sockets
    of one network namespace only, keeps names that were unlinked, and does not say whose they are.
    OSError."""
    with socket.socket(
        socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
    ) as peer:
        peer.connect(path)
        pid: int = _UCRED.unpack(
            peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        )[0]
    return pid
