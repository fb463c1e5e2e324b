"""Files that are written whole."""

from __future__ import annotations

import os
from contextlib import suppress


def write_whole(path: str, data: bytes, mode: int = 0o644) -> None:
    """The whole file or the old one, never half of it, on disk when this returns; `mode` holds
    whatever the umask says. OSError, and nothing left behind."""
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.{os.getpid()}")
    try:
        with open(temporary, "wb", opener=lambda new, flags: os.open(new, flags, mode)) as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        with suppress(OSError):
            os.unlink(temporary)
        raise
