"""The hands that launch: the CDI unit, the plugin's unit, the plugin's static pod. All additive
(docs/design.md §5).

A unit's start takes seconds, so it runs beside the cycle and reports by a wake.
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
"""Below STATE: the path of the manifest that was placed, for the package's removal."""


class Launcher:
    """One start of a unit at a time."""

    def __init__(self, bus: SystemdBus, on_done: Callable[[str], None], root: str = "/") -> None:
        self._bus = bus
        self._on_done = on_done
        self._root = Path(root)
        self._task: asyncio.Task[None] | None = None

    def begin(self, action: RefreshCdi | LaunchUnit | PlaceManifest) -> None:
        """Begin it; ActionFailed: nothing was done."""
        if isinstance(action, PlaceManifest):
            self._place(action)
            return
        if self._task is not None and not self._task.done():
            raise ActionFailed("another unit is still being started")
        self._task = asyncio.get_running_loop().create_task(self._do(action))

    async def close(self) -> None:
        """systemd goes on with a start that was asked for."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _do(self, action: RefreshCdi | LaunchUnit) -> None:
        try:
            said = await (
                self._refresh(action) if isinstance(action, RefreshCdi) else self._launch(action)
            )
        except BusError as exc:
            said = f"not started: {exc.sentence}"
        except ActionFailed as exc:
            said = exc.sentence
        self._on_done(said)

    async def _refresh(self, action: RefreshCdi) -> str:
        """Restart, because a start does nothing where the unit stays active after it ran
        (RemainAfterExit=yes, toolkit 1.18): it is a oneshot, so nothing is ended by it. Without its
        dependencies, because it is ordered after multi-user.target, which waits for the kubelet,
        which may be waiting for us."""
        with contextlib.suppress(BusError):  # a unit that never failed, or is not loaded
            await self._bus.call("ResetFailedUnit", "s", [action.unit])
        result = await self._bus.start_unit(
            action.unit, "ignore-dependencies", UNIT_WITHIN_S, member="RestartUnit"
        )
        return f"{action.unit}: {result}"

    async def _launch(self, action: LaunchUnit) -> str:
        """The mark comes after the start: an agent that dies between them starts it once more,
        which is nothing where it is active."""
        result = await self._bus.start_unit(action.unit, within_s=UNIT_WITHIN_S)
        write_mark(self._root, "launched", f"{action.unit}: {result}")
        return f"{action.unit}: {result}"

    def _place(self, action: PlaceManifest) -> None:
        """Whole or not at all, under a name the kubelet leaves alone until then: it ignores names
        that begin with a dot (kubernetes pkg/kubelet/config/file_linux.go). What lies there and is
        not ours stays."""
        target = self._under(action.target)
        data = _owners(self._under(action.source), action.source)
        try:
            there = target.read_bytes() if os.path.lexists(target) else None
            if there is not None and there != data:
                raise ActionFailed(
                    f"{action.target} is there already and is not {action.source}: it is left "
                    "alone; "
                    "diff them, and remove it if it is nobody's"
                )
            if there is None:
                write_whole(str(self._under(STATE) / PLACED), f"{action.target}\n".encode())
                write_whole(str(target), data, 0o600)
        except OSError as exc:
            raise ActionFailed(
                f"{action.target} could not be written ({exc.strerror}): ls -ld "
                f"{target.parent}; the "
                "agent writes to folders that were there at its start and that its unit names "
                "(ReadWritePaths=)"
            ) from exc
        write_mark(self._root, "launched", f"placed {action.target}")

    def _under(self, path: str) -> Path:
        return self._root / path.lstrip("/")


def _owners(path: Path, shown: str) -> bytes:
    """The owner's manifest, bounded; ActionFailed with a next step."""
    try:
        # O_NONBLOCK: a fifo in the place of a file must not hold us.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise ActionFailed(f"{shown} is no plain file: [Plugin] LaunchManifest=")
            data = file.read(MANIFEST_BYTES + 1)
    except OSError as exc:
        raise ActionFailed(
            f"{shown} could not be read ({exc.strerror}): [Plugin] LaunchManifest= names the "
            "plugin's "
            "static pod"
        ) from exc
    if not data.strip() or len(data) > MANIFEST_BYTES:
        raise ActionFailed(
            f"{shown} is empty, or larger than {MANIFEST_BYTES >> 20} MiB: it is not placed"
        )
    return data
