"""Marks of this boot, read and written. Its imports are few: `gpu-gate wait` must start fast."""

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
    """A mark of this boot; None where there is none, or where it cannot be read."""
    try:
        with open(f"{RUN}/{name}", "rb") as file:
            return mark(file.read(65536))
    except OSError:
        return None


def write_mark(
    root: str | os.PathLike[str],
    name: str,
    reason: str,
    kind: str = "",
    at: float | None = None,
    until: float | None = None,
) -> None:
    """Write a mark under /run/gpu-gate, which lasts for this boot, as /run does. `at`: boottime in
    seconds, now by default; `until`: boottime in seconds, where the mark ends by itself. Raises
    ActionFailed."""
    path = os.path.join(root, RUN.lstrip("/"), name)
    kept = {"reason": reason, "kind": kind, "at": round(boottime() if at is None else at, 3)}
    if until is not None:
        kept["until"] = round(until, 3)
    try:
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        write_whole(path, json.dumps(kept).encode())
    except OSError as exc:
        raise ActionFailed(
            f"could not write {path} ({exc.strerror}): are you root, and is there room in /run?"
        ) from exc


def write_released(reason: str, kind: str = "") -> None:
    """Write the mark that releases the kubelet. Any file of that name releases it: where /run is
    full, this writes an empty one, for which a tmpfs still has room, and the kubelet need not wait
    for a person to free space. Raises ActionFailed."""
    try:
        write_mark("/", "released", reason, kind)
    except ActionFailed:
        try:
            os.close(os.open(f"{RUN}/released", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
        except OSError:
            pass
        else:
            return
        raise
