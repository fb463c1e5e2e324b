"""Changes in folders. An event says only that something changed: the host reads it again.

Facts about inotify(7):

* A watch is on an inode, not on a path: a folder that was created again is another inode, and one
  that was moved away keeps its watch.
* add_watch on an inode that is watched already returns the same number, so it may be repeated; it
  replaces the mask, or widens it with IN_MASK_ADD.
* No event reports a mount over a watched folder, or a moved grandparent: mountinfo and a MOVE_SELF
  watch on every parent do. A deleted folder that a process still has open sends nothing: `refresh`
  finds it.
* What happens between reading a folder and watching its parent is lost: watch first, then read.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import select
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import PurePosixPath
from typing import NamedTuple

_READS_AT_MOST = 16
_libc = ctypes.CDLL(None, use_errno=True)

# linux/inotify.h
_ATTRIB, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x4, 0x40, 0x80, 0x100, 0x200
_DELETE_SELF, _MOVE_SELF, _UNMOUNT, _Q_OVERFLOW, _IGNORED = 0x400, 0x800, 0x2000, 0x4000, 0x8000
_ONLYDIR, _MASK_ADD = 0x1000000, 0x20000000
_GONE = _DELETE_SELF | _MOVE_SELF | _UNMOUNT | _IGNORED
_FOLDER = _ATTRIB | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _DELETE_SELF | _MOVE_SELF
_PARENT = _DELETE_SELF | _MOVE_SELF
_NEAREST = _CREATE | _MOVED_TO | _PARENT
_EVENT = struct.Struct("iIII")


class _Seat(NamedTuple):
    """The watch that reports for a folder."""

    watch: int
    """-1: none"""
    path: str
    """the folder, or its nearest parent that exists"""


class _Needed(NamedTuple):
    """What one watch must report."""

    mask: int
    path: str


class _Event(NamedTuple):
    watch: int
    mask: int
    name: str
    """empty for an event of the folder itself"""


_NO_SEAT = _Seat(-1, "")


class Inotify:
    """Changes in a set of folders, wherever their paths lead now. For a missing folder it watches
    the nearest parent."""

    def __init__(self, on_change: Callable[[str], None], on_overflow: Callable[[], None]) -> None:
        """Calls `on_change(folder)` once for many changes, and also when the folder itself is
        created, deleted or replaced; `on_overflow` means that events were lost."""
        self.problem: str | None = None
        """Why some folder is not watched, as a sentence; None while all are."""
        self._on_change, self._on_overflow = on_change, on_overflow
        self._prefixes: dict[str, tuple[str, ...]] = {}
        self._seats: dict[str, _Seat] = {}
        """The nearest watch of each folder."""
        self._masks: dict[int, int] = {}
        self._fd = -1
        self._mounts: tuple[int, select.epoll] | None = None

    def watch(self, folders: Iterable[str] | Mapping[str, Sequence[str]]) -> None:
        """Watch exactly these folders from now on (absolute paths); a mapping adds, for each, the
        prefixes of the names that matter.

        It never fails: see `problem`. Read the folders after it returns.
        """
        named = folders if isinstance(folders, Mapping) else dict.fromkeys(folders, ())
        self._prefixes = {
            str(PurePosixPath(folder)): tuple(names) for folder, names in named.items()
        }
        self._seats = {
            folder: seat for folder, seat in self._seats.items() if folder in self._prefixes
        }
        for folder in self._prefixes:
            self._seats.setdefault(folder, _NO_SEAT)
        self._walk()

    def refresh(self) -> None:
        """Find folders that were replaced without an event; cheap enough for every cycle."""
        for folder in self._walk():
            self._on_change(folder)

    def close(self) -> None:
        loop = asyncio.get_running_loop()
        if self._fd >= 0:
            loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
        if self._mounts is not None:
            file, poll = self._mounts
            loop.remove_reader(poll.fileno())
            poll.close()
            os.close(file)
            self._mounts = None
        self._seats, self._prefixes, self._masks = {}, {}, {}

    def _open(self) -> None:
        self._fd = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            code = ctypes.get_errno()
            raise OSError(code, f"{os.strerror(code)} (see fs.inotify.max_user_instances)")
        loop = asyncio.get_running_loop()
        loop.add_reader(self._fd, self._read)
        with suppress(OSError):
            # mountinfo is always readable, and signals a change by EPOLLPRI, for which asyncio
            # cannot wait.
            file, poll = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC), select.epoll()
            poll.register(file, select.EPOLLPRI)
            self._mounts = (file, poll)
            loop.add_reader(poll.fileno(), self._on_mount)

    def _on_mount(self) -> None:
        if self._mounts is not None:
            self._mounts[1].poll(0)
            self.refresh()

    def _walk(self) -> list[str]:
        """Move every watch to where its path leads now. Returns the folders whose watch changed."""
        needed: dict[int, _Needed] = {}
        changed = []
        self.problem = None
        try:
            if self._fd < 0:
                self._open()
            for folder, seat in list(self._seats.items()):
                self._seats[folder] = self._seat(folder, needed)
                if self._seats[folder] != seat:
                    changed.append(folder)
        except OSError as exc:
            self.problem = f"folders are not watched: {exc.strerror}"
            return changed
        for wd in self._masks.keys() - needed.keys():
            _libc.inotify_rm_watch(self._fd, wd)
            del self._masks[wd]
        for wd, (mask, path) in needed.items():
            if (
                self._masks[wd] != mask
                and _libc.inotify_add_watch(self._fd, os.fsencode(path), mask | _ONLYDIR) == wd
            ):
                self._masks[wd] = mask
        return changed

    def _seat(self, folder: str, needed: dict[int, _Needed]) -> _Seat:
        """Watch the folder, or its nearest parent for what is created there, and every parent for
        being moved. Raises OSError if the kernel has no watches left."""
        seat = _NO_SEAT
        for path in (*(str(parent) for parent in reversed(PurePosixPath(folder).parents)), folder):
            mask = _FOLDER if path == folder else _PARENT
            wd = self._add(path, mask, needed)
            if wd < 0:
                self._add(seat.path, _NEAREST, needed)
                wd = self._add(path, mask, needed)
            if wd < 0:
                break
            seat = _Seat(wd, path)
        return seat

    def _add(self, path: str, mask: int, needed: dict[int, _Needed]) -> int:
        """The watch's number, or -1 where there is no such folder. This only ever widens a mask."""
        wd: int = _libc.inotify_add_watch(self._fd, os.fsencode(path), mask | _ONLYDIR | _MASK_ADD)
        if wd >= 0:
            self._masks[wd] = self._masks.get(wd, 0) | mask
            before = needed[wd].mask if wd in needed else 0
            needed[wd] = _Needed(before | mask, path)
        elif (code := ctypes.get_errno()) not in (
            errno.ENOENT,
            errno.ENOTDIR,
            errno.EACCES,
            errno.ELOOP,
        ):
            hint = " (see fs.inotify.max_user_watches)" if code == errno.ENOSPC else ""
            raise OSError(code, f"{path}: {os.strerror(code)}{hint}")
        return wd

    def _read(self) -> None:
        changed: dict[str, None] = {}
        must_walk = overflowed = False
        with suppress(BlockingIOError):
            for _ in range(_READS_AT_MOST):
                for wd, mask, name in _events(os.read(self._fd, 1 << 16)):
                    overflowed |= bool(mask & _Q_OVERFLOW)
                    must_walk |= self._note(wd, mask, name, changed)
        if must_walk or overflowed:
            changed.update(dict.fromkeys(self._walk()))
        if overflowed:
            self._on_overflow()
        for folder in changed:
            self._on_change(folder)

    def _note(self, wd: int, mask: int, name: str, changed: dict[str, None]) -> bool:
        """Add the folders that an event changes; True if a path may lead elsewhere now."""
        if wd not in self._masks:
            return False
        if mask & _IGNORED:
            del self._masks[wd]
        leads_elsewhere = bool(mask & _GONE) or (bool(mask & _ATTRIB) and not name)
        for folder, (watch, path) in self._seats.items():
            if watch != wd or not name:
                continue
            if path == folder:
                prefixes = self._prefixes[folder]
                if not prefixes or name.startswith(prefixes):
                    changed[folder] = None
            else:
                leads_elsewhere = leads_elsewhere or f"{folder}/".startswith(
                    f"{path.rstrip('/')}/{name}/"
                )
        return leads_elsewhere


def _events(data: bytes) -> Iterator[_Event]:
    at = 0
    while at < len(data):
        wd, mask, _cookie, length = _EVENT.unpack_from(data, at)
        at += _EVENT.size + length
        yield _Event(wd, mask, os.fsdecode(data[at - length : at].rstrip(b"\0")))
