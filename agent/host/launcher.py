"""Actions that start something: the CDI unit, the plugin's unit, the plugin's static pod. They only
add (docs/design.md).

A unit's start takes seconds, so it runs beside the cycle, and ends with a wake.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

from ..core.common.paths import STATE
from ..model.actions import LaunchUnit, PlaceManifest, RefreshCdi
from ..model.errors import ActionFailed, BusError
from ..transport.atomic_write import write_whole
from ..transport.systemd import SystemdBus
from .marks import write_mark

UNIT_WITHIN_S = 30.0
MANIFEST_BYTES = 1 << 20
PLACED = "manifest"
"""The file below STATE with the path of the placed manifest: removing the package reads it."""


class Launcher:
    """Starts one unit at a time."""

    def __init__(self, bus: SystemdBus, on_done: Callable[[str], None], root: str = "/") -> None:
        self._bus = bus
        self._on_done = on_done
        self._root = Path(root)
        self._task: asyncio.Task[None] | None = None

    def begin(self, action: RefreshCdi | LaunchUnit | PlaceManifest) -> None:
        """Begin it. Raises ActionFailed if nothing was done."""
        if isinstance(action, PlaceManifest):
            self._place(action)
            return
        if self._task is not None and not self._task.done():
            raise ActionFailed("another unit is still starting")
        self._task = asyncio.get_running_loop().create_task(self._do(action))

    async def close(self) -> None:
        """Stop waiting; systemd goes on with a start that was requested."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _do(self, action: RefreshCdi | LaunchUnit) -> None:
        try:
            result = await (
                self._refresh(action) if isinstance(action, RefreshCdi) else self._launch(action)
            )
        except BusError as exc:
            result = f"not started: {exc.sentence}"
        except ActionFailed as exc:
            result = exc.sentence
        self._on_done(result)

    async def _refresh(self, action: RefreshCdi) -> str:
        """Restart, because a start does nothing where the unit stays active after it ran
        (RemainAfterExit=yes, toolkit 1.18). It is a oneshot, so a restart ends no process. Without
        its dependencies, because it is ordered after multi-user.target, which waits for the
        kubelet, which may be waiting for gpu-gate."""
        with contextlib.suppress(BusError):  # the unit never failed, or is not loaded
            await self._bus.call("ResetFailedUnit", "s", [action.unit])
        result = await self._bus.start_unit(
            action.unit, "ignore-dependencies", UNIT_WITHIN_S, member="RestartUnit"
        )
        return f"{action.unit}: {result}"

    async def _launch(self, action: LaunchUnit) -> str:
        """Start, then write the mark. An agent that dies between the two starts the unit once more,
        which does nothing while it is active."""
        result = await self._bus.start_unit(action.unit, within_s=UNIT_WITHIN_S)
        write_mark(self._root, "launched", f"{action.unit}: {result}")
        return f"{action.unit}: {result}"

    def _place(self, action: PlaceManifest) -> None:
        """Write the manifest at once: the kubelet ignores the temporary file, whose name begins
        with a dot (kubernetes pkg/kubelet/config/file_linux.go). A different file at the target
        stays."""
        target = self._under(action.target)
        data = _manifest(self._under(action.source), action.source)
        try:
            there = target.read_bytes() if os.path.lexists(target) else None
            if there is not None and there != data:
                raise ActionFailed(
                    f"{action.target} exists and differs from {action.source}, so it was not "
                    "replaced: diff them, and remove it if it is not needed"
                )
            if there is None:
                write_whole(str(self._under(STATE) / PLACED), f"{action.target}\n".encode())
                write_whole(str(target), data, 0o600)
        except OSError as exc:
            raise ActionFailed(
                f"could not write {action.target} ({exc.strerror}): ls -ld {target.parent}; the "
                "agent can write only to folders that ReadWritePaths= of its unit lists and that "
                "existed when it started"
            ) from exc
        write_mark(self._root, "launched", f"placed {action.target}")

    def _under(self, path: str) -> Path:
        return self._root / path.lstrip("/")


def _manifest(path: Path, shown: str) -> bytes:
    """The content of the administrator's manifest, 1 MiB at most. Raises ActionFailed."""
    try:
        # O_NONBLOCK: opening a fifo in place of the file must not block.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise ActionFailed(f"{shown} is not a regular file: [Plugin] LaunchManifest=")
            data = file.read(MANIFEST_BYTES + 1)
    except OSError as exc:
        raise ActionFailed(
            f"could not read {shown} ({exc.strerror}): [Plugin] LaunchManifest= names the "
            "plugin's static pod"
        ) from exc
    if not data.strip() or len(data) > MANIFEST_BYTES:
        raise ActionFailed(
            f"{shown} is empty or larger than {MANIFEST_BYTES >> 20} MiB, so it was not placed"
        )
    return data
