"""Small files of ours, written whole: marks of this boot, and what is kept across boots."""

from __future__ import annotations

import json
import os
from pathlib import Path

from ..core.paths import RUN
from ..model.errors import HandFailed
from .probes import boottime


def write_mark(root: Path, name: str, reason: str, word: str = "", at: float | None = None) -> None:
    """A mark under /run/gpu-gate: true for this boot only, because /run is. `at`: boottime, where it is not now."""
    path = root / RUN.lstrip("/") / name
    at = round(boottime() if at is None else at, 3)
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        write_whole(path, json.dumps({"reason": reason, "word": word, "at": at}).encode())
    except OSError as exc:
        raise HandFailed(f"{path} could not be written ({exc.strerror}): touch {path} releases the kubelet") from exc


def write_whole(path: Path, data: bytes, mode: int = 0o644) -> None:
    """The whole file or the old one, never half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        os.write(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)
    temporary.replace(path)
