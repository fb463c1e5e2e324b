"""The few lines of inotify that a plugin needs: which names were created in one directory."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from pathlib import Path

IN_CREATE = 0x100
IN_MOVED_TO = 0x80


def created_names(directory: Path) -> Iterator[str]:
    """Never ends by itself; raises OSError where the directory cannot be watched."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.inotify_init1(os.O_CLOEXEC)
    if fd < 0 or libc.inotify_add_watch(fd, os.fsencode(directory), IN_CREATE | IN_MOVED_TO) < 0:
        raise OSError(ctypes.get_errno(), f"inotify on {directory}")

    def read() -> Iterator[str]:
        while True:
            data, at = os.read(fd, 65536), 0
            while at < len(data):
                _, mask, _, length = struct.unpack_from("iIII", data, at)
                name = data[at + 16 : at + 16 + length].rstrip(b"\0").decode()
                at += 16 + length
                if mask & (IN_CREATE | IN_MOVED_TO):
                    yield name

    return read()
