"""The node we run on. Only what cannot block is read here; what may enter the driver is asked by programs."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import time
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from ..model.reading import Reading, Refusal, Seen, Why
from ..model.runtime import Access, ContainerDetail, Runtime
from ..model.scene import Clock, Devices, Entry, Manager, ProbeState, Unit
from ..wire.bus import SystemdBus
from ..wire.dbus import BusError
from ..wire.rpc import RpcError, get_allocatable
from . import access, cri
from .probes import Probes, boottime

FOLDER_LIMIT = 4096
ALLOCATABLE_WITHIN_S = 1.0
CRI_WITHIN_S = 1.0
"""Two lists took 5 ms, at worst 21 (containerd 1.6.20 and 1.7.24): a runtime that needs a second is not well."""
ALLOCATABLE_FRESH_S = 0.5
"""pod-resources is limited to 100 questions a second for all its clients (kubelet 1.28 and later)."""

_WHY = {
    errno.ENOENT: Why.MISSING,
    errno.ENOTDIR: Why.MISSING,
    errno.ENODEV: Why.MISSING,
    errno.ENXIO: Why.MISSING,
    errno.EACCES: Why.NOT_PERMITTED,
    errno.EPERM: Why.NOT_PERMITTED,
}
_WORDS = {
    "missing": Why.MISSING, "not-found": Why.MISSING, "unimplemented": Why.MISSING,
    "timed-out": Why.TIMED_OUT, "not-permitted": Why.NOT_PERMITTED,
}
_KINDS = {
    stat.S_IFCHR: "char", stat.S_IFBLK: "block", stat.S_IFDIR: "dir", stat.S_IFREG: "file",
    stat.S_IFLNK: "link", stat.S_IFSOCK: "socket", stat.S_IFIFO: "fifo",
}


def clock_now() -> Clock:
    return Clock(boottime(), time.monotonic(), time.time())


class LiveHost:
    """A Host over the running node. `root` is for nodes that are a folder."""

    def __init__(self, bus: SystemdBus | None = None, probes: Probes | None = None, root: str = "/") -> None:
        self._bus = bus
        self._probes = probes
        self._root = Path(root)
        self._allocatable: Seen[tuple[Devices, ...]] | None = None
        self._units: tuple[tuple[str, ...], Seen[tuple[Unit, ...]]] | None = None
        self._manager: Seen[Manager] | None = None
        self._runtimes: dict[str, Seen[Runtime]] = {}
        self._containers: dict[str, Seen[ContainerDetail]] = {}
        self.reuse_s = 0.0
        """How old an answer of systemd, kubelet or runtime may be to be given again: more than 0 only where nothing
        woke us but the timer. Each of them would have woken us; every gRPC call costs 30 wake-ups."""
        self.sources: list[object] = []
        "signal sources; each has a `problem`"

    async def clock(self) -> Clock:
        return clock_now()

    async def machine(self) -> str:
        parts = []
        for path in ("/sys/class/dmi/id/product_uuid", "/etc/machine-id"):
            part = await self.file(path)
            parts.append(part.value.strip() if isinstance(part, Seen) else b"-")
        return hashlib.sha256(b"gpu-gate/" + b"/".join(parts)).hexdigest()[:32]

    async def file(self, path: str, limit: int = 65536) -> Reading[bytes]:
        try:
            # O_NONBLOCK: a fifo in the place of a file must not hold us.
            fd = os.open(self._path(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as exc:
            return _refusal(exc)
        try:
            return Seen(_read(fd, limit), boottime())
        except OSError as exc:
            return _refusal(exc)
        finally:
            os.close(fd)

    async def folder(self, path: str, match: str = "*") -> Reading[tuple[Entry, ...]]:
        entries: list[Entry] = []
        try:
            with os.scandir(self._path(path)) as names:
                for name in names:
                    if fnmatchcase(name.name, match) and len(entries) < FOLDER_LIMIT:
                        entry = _entry(name)
                        if entry is not None:
                            entries.append(entry)
        except OSError as exc:
            return _refusal(exc)
        return Seen(tuple(sorted(entries, key=lambda e: e.name)), boottime())

    async def units(self, names: Sequence[str]) -> Reading[tuple[Unit, ...]]:
        if self._bus is None:
            return Refusal(Why.NOT_ASKED, "no connection to D-Bus was made")
        clock = clock_now()
        if self._units and self._units[0] == tuple(names) and self._is_fresh(self._units[1].at):
            return self._units[1]
        self._units = None
        try:
            rows = await self._bus.units(names)
        except BusError as exc:
            return _bus_refusal(exc)
        found = Seen(tuple(Unit(
            r.name, r.load_state, r.active_state, r.sub_state, r.invocation_id,
            _boottime_of(r.active_enter_usec, clock) if r.active_enter_usec else None, r.unit_file_state,
        ) for r in rows), clock.boottime)
        self._units = (tuple(names), found)
        return found

    async def manager(self) -> Reading[Manager]:
        if self._bus is None:
            return Refusal(Why.NOT_ASKED, "no connection to D-Bus was made")
        if self._manager and self._is_fresh(self._manager.at):
            return self._manager
        clock, self._manager = clock_now(), None
        try:
            row = await self._bus.manager()
        except BusError as exc:
            return _bus_refusal(exc)
        loaded = _boottime_of(row.units_load_usec, clock) if row.units_load_usec else None
        self._manager = Seen(Manager(row.version, loaded), clock.boottime)
        return self._manager

    async def probe(self) -> Reading[ProbeState]:
        if self._probes is None:
            return Refusal(Why.NOT_ASKED, "no probe is made here")
        return Seen(self._probes.state, boottime())

    async def allocatable(self, socket: str) -> Reading[tuple[Devices, ...]]:
        last = self._allocatable
        if last is not None and (boottime() - last.at < ALLOCATABLE_FRESH_S or self._is_fresh(last.at)):
            return last
        self._allocatable = None
        path = self._path(socket)
        try:
            path.stat()
        except OSError as exc:
            return _refusal(exc)
        asked_at = boottime()
        try:
            rows = await get_allocatable(str(path), ALLOCATABLE_WITHIN_S)
        except RpcError as exc:
            return Refusal(_WORDS.get(exc.word, Why.FAILED), exc.detail)
        merged: dict[str, list[str]] = {}
        for row in rows:  # the kubelet sends one entry per device
            merged.setdefault(row.resource, []).extend(row.ids)
        self._allocatable = Seen(tuple(Devices(r, tuple(sorted(set(ids)))) for r, ids in sorted(merged.items())),
                                 asked_at)
        return self._allocatable

    async def tail(self, path: str, limit: int = 65536) -> Reading[bytes]:
        try:
            fd = os.open(self._path(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as exc:
            return _refusal(exc)
        try:
            # Counted from the start: from the end, a file shorter than the limit answers EINVAL.
            os.lseek(fd, max(os.fstat(fd).st_size - limit, 0), os.SEEK_SET)
            return Seen(_read(fd, limit), boottime())
        except OSError as exc:
            return _refusal(exc)
        finally:
            os.close(fd)

    async def runtime(self, socket: str) -> Reading[Runtime]:
        known = self._runtimes.get(socket)
        if known is not None and self._is_fresh(known.at):
            return known
        self._runtimes.clear()
        asked_at = boottime()
        path = str(self._path(socket))
        try:
            os.stat(path)
            self._runtimes[socket] = Seen(await cri.runtime(path, CRI_WITHIN_S), asked_at)
            return self._runtimes[socket]
        except OSError as exc:
            return _refusal(exc)
        except RpcError as exc:
            return Refusal(_WORDS.get(exc.word, Why.FAILED), exc.detail)

    async def container(self, socket: str, container_id: str) -> Reading[ContainerDetail]:
        known = self._containers.get(container_id)
        if known is not None and self._is_fresh(known.at):
            return known
        self._containers.clear()
        asked_at = boottime()
        try:
            found = Seen(await cri.container(str(self._path(socket)), container_id, CRI_WITHIN_S), asked_at)
            self._containers[container_id] = found
            return found
        except RpcError as exc:
            return Refusal(_WORDS.get(exc.word, Why.FAILED), exc.detail)

    async def access(self, pid: int, path: str) -> Reading[Access]:
        return await access.ask(pid, path)

    async def trouble(self) -> tuple[str, ...]:
        problems = (getattr(source, "problem", None) for source in self.sources)
        return tuple(str(p) for p in problems if p)

    def _is_fresh(self, at: float) -> bool:
        return boottime() - at < self.reuse_s

    def _path(self, path: str) -> Path:
        return self._root / path.lstrip("/")


def _read(fd: int, limit: int) -> bytes:
    parts, left = [], limit
    while left > 0 and (part := os.read(fd, min(left, 1 << 16))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _entry(name: os.DirEntry[str]) -> Entry | None:
    try:
        found = name.stat(follow_symlinks=False)
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "other")
        target = os.readlink(name.path) if kind == "link" else ""
    except OSError:  # gone between the two calls
        return None
    return Entry(name.name, kind, os.major(found.st_rdev), os.minor(found.st_rdev),
                 stat.S_IMODE(found.st_mode), found.st_mtime, target)


def _refusal(exc: OSError) -> Refusal:
    return Refusal(_WHY.get(exc.errno or 0, Why.FAILED), f"{exc.strerror}: {exc.filename or ''}".rstrip(": "))


def _bus_refusal(exc: BusError) -> Refusal:
    """A bus that is away is a fact about our connection, not about the node's units."""
    why = Why.FAILED if exc.word in ("missing", "failed") else _WORDS[exc.word]
    return Refusal(why, exc.detail)


def _boottime_of(monotonic_usec: int, clock: Clock) -> float:
    """systemd stamps in CLOCK_MONOTONIC, which stands still in suspend; ours does not."""
    return monotonic_usec / 1e6 + (clock.boottime - clock.monotonic)
