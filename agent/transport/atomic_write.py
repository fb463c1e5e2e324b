"""Files that readers see either whole or not at all."""

from __future__ import annotations

import os
from contextlib import suppress


def write_whole(path: str, data: bytes, mode: int = 0o644) -> None:
    """Replace the file at once: a reader sees the old content or the new. The new content is on
    disk when this returns. The umask does not change `mode`. Raises OSError, and leaves nothing
    behind."""
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
