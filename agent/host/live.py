"""The node that the agent runs on. It reads only what cannot block; programs ask what may enter the
driver."""

from __future__ import annotations

import hashlib
import os
import socket
import stat
import struct
import time
from collections.abc import Awaitable, Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from ..model.access import AccessState, Allocation, Process
from ..model.errors import BusError, ErrorKind, RpcError
from ..model.kernel import KernelLine
from ..model.reading import Reading, Refusal, Seen, Why
from ..model.runtime import Access, ContainerDetail, Runtime
from ..model.snapshot import Clock, Devices, Entry, Manager, ProbeState, Unit
from ..transport.clock import boottime
from ..transport.grpc_unix import get_allocatable, list_allocated
from ..transport.systemd import SystemdBus
from . import cri
from .access import checks as access
from .access.processes import Processes
from .documents import Documents
from .kmsg import Kmsg
from .probes.runner import Probes
from .refusal import refusal
from .tape import Recorder

T = TypeVar("T")

FOLDER_LIMIT = 4096
ALLOCATABLE_WITHIN_S = 1.0
QUIET_S = 115.0
"""On a quiet node systemd and the kubelet are asked at every fourth timer: a gRPC call costs 50
wake-ups."""
RUNTIME_QUIET_S = 1195.0
"""The runtime is asked more rarely still: its containers come and go with systemd scopes, which
wake the engine."""
CRI_WITHIN_S = 1.0
"""Two lists took 5 ms, at worst 21 (containerd 1.6.20 and 1.7.24): a runtime that needs a second
has a problem."""
ALLOCATABLE_FRESH_S = 0.5
"""The kubelet allows 100 pod-resources calls a second for all clients together (1.28 and later)."""

_UCRED = struct.Struct("3i")
"""struct ucred: pid (in our pid namespace), uid and gid of the process that called listen(2)"""
_KINDS = {
    stat.S_IFCHR: "char",
    stat.S_IFBLK: "block",
    stat.S_IFDIR: "dir",
    stat.S_IFREG: "file",
    stat.S_IFLNK: "link",
    stat.S_IFSOCK: "socket",
    stat.S_IFIFO: "fifo",
}


def clock_now() -> Clock:
    return Clock(boottime(), time.monotonic(), time.time())


class LiveHost:
    """A Host over the running node. `root` is for tests whose node is a folder."""

    def __init__(
        self,
        bus: SystemdBus | None = None,
        probes: Probes | None = None,
        root: str = "/",
        checks: access.DeviceAccess | None = None,
    ) -> None:
        self._bus = bus
        self._checks = checks
        self._processes = Processes()
        self._probes = probes
        self._root = root.rstrip("/")
        self._documents = Documents()
        self._recent: dict[tuple[str, ...], Seen[Any]] = {}
        self._reuse_s = 0.0
        """how old an answer may be on a node that is not quiet, in seconds"""
        self._is_quiet = False
        """only the timer woke the engine: what wakes it by changing need not be asked at every
        timer"""
        self._kmsg = Kmsg(self._path("/dev/kmsg"))
        self.sources: list[object] = []
        """event sources; each has a `problem`"""

    def may_reuse(self, is_quiet: bool, within_s: float) -> None:
        """How old answers of the next snapshot may be: on a quiet node, and in seconds besides."""
        self._is_quiet, self._reuse_s = is_quiet, within_s

    def record(self) -> Recorder:
        """This host, with a tape of its answers."""
        return Recorder(self)

    async def clock(self) -> Clock:
        return clock_now()

    async def machine(self) -> str:
        parts = []
        for path in ("/sys/class/dmi/id/product_uuid", "/etc/machine-id"):
            part = await self.file(path)
            parts.append(part.value.strip() if isinstance(part, Seen) else b"-")
        return hashlib.sha256(b"gpu-gate/" + b"/".join(parts)).hexdigest()[:32]

    async def file(self, path: str, limit: int = 65536) -> Reading[bytes]:
        return self._opened(path, limit, from_end=False)

    async def folder(self, path: str, match: str = "*") -> Reading[tuple[Entry, ...]]:
        entries: list[Entry] = []
        try:
            with os.scandir(self._path(path)) as names:
                for name in names:
                    if fnmatchcase(name.name, match) and len(entries) < FOLDER_LIMIT:
                        entry = _entry_of(name)
                        if entry is not None:
                            entries.append(entry)
        except OSError as exc:
            return refusal(exc)
        return Seen(tuple(sorted(entries, key=lambda e: e.name)), boottime())

    async def units(self, names: Sequence[str]) -> Reading[tuple[Unit, ...]]:
        return await self._asked(("units", *names), QUIET_S, lambda: self._units(names))

    async def _units(self, names: Sequence[str]) -> tuple[Unit, ...]:
        clock = clock_now()
        return tuple(
            Unit(
                r.name,
                r.load_state,
                r.active_state,
                r.sub_state,
                r.invocation_id,
                _boottime_of(r.active_enter_usec, clock) if r.active_enter_usec else None,
                r.unit_file_state,
            )
            for r in await self._systemd().units(names)
        )

    async def manager(self) -> Reading[Manager]:
        return await self._asked(("manager",), QUIET_S, self._manager)

    async def _manager(self) -> Manager:
        clock, row = clock_now(), await self._systemd().manager()
        return Manager(
            row.version, _boottime_of(row.units_load_usec, clock) if row.units_load_usec else None
        )

    def _systemd(self) -> SystemdBus:
        if self._bus is None:
            raise BusError("no connection to D-Bus was made", ErrorKind.NOT_ASKED)
        return self._bus

    async def probe(self) -> Reading[ProbeState]:
        if self._probes is None:
            return Refusal(Why.NOT_ASKED, "this host runs no probes")
        return Seen(self._probes.state, boottime())

    async def allocatable(self, socket: str) -> Reading[tuple[Devices, ...]]:
        return await self._asked(
            ("allocatable", socket), QUIET_S, lambda: self._allocatable(socket), ALLOCATABLE_FRESH_S
        )

    async def _allocatable(self, socket: str) -> tuple[Devices, ...]:
        merged: dict[str, list[str]] = {}
        for row in await get_allocatable(self._there(socket), ALLOCATABLE_WITHIN_S):
            merged.setdefault(row.resource, []).extend(
                row.ids
            )  # the kubelet sends one entry per device
        return tuple(Devices(r, tuple(sorted(set(ids)))) for r, ids in sorted(merged.items()))

    async def tail(self, path: str, limit: int = 65536) -> Reading[bytes]:
        return self._opened(path, limit, from_end=True)

    async def document(self, path: str, limit: int = 1 << 20) -> Reading[bytes]:
        return await self._documents.read(self, path, self._path(path), limit)

    async def absent(self, paths: Sequence[str]) -> Reading[tuple[str, ...]]:
        gone = []
        for path in paths:
            try:
                os.stat(self._path(path))
            except (OSError, ValueError) as exc:  # a CDI spec may contain any path
                refused = refusal(exc)
                if not refused.is_missing:
                    return refused
                gone.append(path)
        return Seen(tuple(gone), boottime())

    async def runtime(self, socket: str) -> Reading[Runtime]:
        return await self._asked(
            ("runtime", socket), RUNTIME_QUIET_S, lambda: self._runtime(socket)
        )

    async def _runtime(self, socket: str) -> Runtime:
        for old in [q for q in self._recent if q[0] == "container"]:
            del self._recent[old]
        return await cri.runtime(self._there(socket), CRI_WITHIN_S)

    async def container(self, socket: str, container_id: str) -> Reading[ContainerDetail]:
        return await self._asked(
            ("container", socket, container_id),
            RUNTIME_QUIET_S,
            lambda: cri.container(self._path(socket), container_id, CRI_WITHIN_S),
        )

    async def access(self, pid: int, path: str) -> Reading[Access]:
        return await access.ask(pid, path)

    async def listener(self, path: str) -> Reading[int]:
        try:
            return Seen(_listener_pid(self._path(path)), boottime())
        except OSError as exc:
            return refusal(exc)

    async def allocations(self, socket: str) -> Reading[tuple[Allocation, ...]]:
        return await self._asked(
            ("allocations", socket), RUNTIME_QUIET_S, lambda: self._allocations(socket)
        )

    async def _allocations(self, socket: str) -> tuple[Allocation, ...]:
        rows = await list_allocated(self._there(socket), ALLOCATABLE_WITHIN_S)
        return tuple(
            Allocation(r.namespace, r.pod, r.container, r.resource, tuple(sorted(r.ids)))
            for r in rows
        )

    async def processes(
        self, socket: str, container_ids: Sequence[str]
    ) -> Reading[tuple[Process, ...]]:
        try:
            return Seen(await self._processes.read(self._path(socket), container_ids), boottime())
        except RpcError as exc:
            return refusal(exc)

    async def access_state(self) -> Reading[AccessState]:
        if self._checks is None:
            return Refusal(Why.NOT_ASKED, "this host runs no access program")
        return Seen(self._checks.state, boottime())

    async def kernel_log(self) -> Reading[tuple[KernelLine, ...]]:
        clock = clock_now()
        try:
            return Seen(self._kmsg.lines(clock), clock.boottime)
        except OSError as exc:
            return refusal(exc)

    async def trouble(self) -> tuple[str, ...]:
        problems = (getattr(source, "problem", None) for source in self.sources)
        return tuple(str(p) for p in problems if p)

    async def _asked(
        self,
        question: tuple[str, ...],
        quiet_s: float,
        ask: Callable[[], Awaitable[T]],
        fresh_s: float = 0.0,
    ) -> Reading[T]:
        """The last answer, if it is fresh enough; otherwise a new one. A refusal is never used
        again."""
        known: Seen[T] | None = self._recent.get(question)
        if known is not None and boottime() - known.at < max(
            quiet_s if self._is_quiet else self._reuse_s, fresh_s
        ):
            return known
        self._recent.pop(question, None)
        asked_at = boottime()
        try:
            answer = self._recent[question] = Seen(await ask(), asked_at)
        except (OSError, RpcError, BusError) as exc:
            return refusal(exc)
        return answer

    def _there(self, socket: str) -> str:
        """The path of a socket that exists: gRPC would try for long to reach one that does not.
        Raises OSError."""
        path = self._path(socket)
        os.stat(path)
        return path

    def _opened(self, path: str, limit: int, from_end: bool) -> Reading[bytes]:
        try:
            # O_NONBLOCK: opening a fifo in place of the file must not block.
            fd = os.open(self._path(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                if from_end:
                    # From the start: SEEK_END with a short file fails with EINVAL.
                    os.lseek(fd, max(os.fstat(fd).st_size - limit, 0), os.SEEK_SET)
                return Seen(_read(fd, limit), boottime())
            finally:
                os.close(fd)
        except (OSError, ValueError) as exc:  # a runtime may return any log path
            return refusal(exc)

    def _path(self, path: str) -> str:
        return f"{self._root}/{path.lstrip('/')}"  # no pathlib: a cycle has 150 of them


def _read(fd: int, limit: int) -> bytes:
    parts, left = [], limit
    while left > 0 and (part := os.read(fd, min(left, 1 << 16))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _entry_of(name: os.DirEntry[str]) -> Entry | None:
    """One name in a folder, as lstat(2) describes it; None where it is gone already."""
    try:
        found = name.stat(follow_symlinks=False)
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "other")
        target = os.readlink(name.path) if kind == "link" else ""
    except OSError:
        return None
    return Entry(
        name.name,
        kind,
        os.major(found.st_rdev),
        os.minor(found.st_rdev),
        stat.S_IMODE(found.st_mode),
        found.st_mtime,
        target,
    )


def _listener_pid(path: str) -> int:
    """By SO_PEERCRED of a connection that is closed at once (unix(7)). /proc/net/unix would show
    the sockets of one network namespace only, keeps names that were unlinked, and does not name the
    process. Raises OSError."""
    with socket.socket(
        socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
    ) as peer:
        peer.connect(path)
        pid: int = _UCRED.unpack(
            peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        )[0]
    return pid


def _boottime_of(monotonic_usec: int, clock: Clock) -> float:
    """systemd's timestamps are CLOCK_MONOTONIC, which does not count time in suspend."""
    return monotonic_usec / 1e6 + (clock.boottime - clock.monotonic)
