"""Marks of this boot, read and written. Light enough for the verbs that start in a blink."""

from __future__ import annotations

import json
import os

from ..core.common.parse import mark
from ..core.common.paths import RUN
from ..model.errors import ActionFailed
from ..model.mark import Mark
from ..transport.atomic_write import write_whole
from ..transport.clock import boottime


def read_mark(name: str) -> Mark | None:
    """A mark of this boot; None where it is not there or cannot be read."""
    try:
        with open(f"{RUN}/{name}", "rb") as file:
            return mark(file.read(65536))
    except OSError:
        return None


def write_mark(
    root: str | os.PathLike[str],
    name: str,
    reason: str,
    word: str = "",
    at: float | None = None,
    until: float | None = None,
) -> None:
    """A mark under /run/gpu-gate: true for this boot only, because /run is. `at`: boottime, where
    it is not now; `until`: boottime, where it ends by itself. ActionFailed."""
    path = os.path.join(root, RUN.lstrip("/"), name)
    kept = {"reason": reason, "word": word, "at": round(boottime() if at is None else at, 3)}
    if until is not None:
        kept["until"] = round(until, 3)
    try:
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        write_whole(path, json.dumps(kept).encode())
    except OSError as exc:
        raise ActionFailed(
            f"{path} could not be written ({exc.strerror}): are you root, and is there room in "
            "/run?"
        ) from exc


def write_released(reason: str, word: str = "") -> None:
    """The mark that lets the kubelet go. Where /run is full it is an empty one, for which a tmpfs
    has room all the same: any file is that mark, and a kubelet does not wait until somebody has
    cleared up. ActionFailed."""
    try:
        write_mark("/", "released", reason, word)
    except ActionFailed:
        try:
            os.close(os.open(f"{RUN}/released", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
        except OSError:
            pass
        else:
            return
        raise
