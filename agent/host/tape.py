"""A tape of one snapshot: Recorder records every question and its answer, Replay answers from it.
host/evidence/bundle.py writes a tape to disk.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, Union

from ..model.access import AccessState, Allocation, Process
from ..model.diagnostics import CudaReport, JournalLine, Version
from ..model.errors import BundleError
from ..model.host import DiagnosticHost, Host
from ..model.kernel import KernelLine
from ..model.reading import Reading, Refusal, Seen, Why
from ..model.runtime import Access, ContainerDetail, Runtime
from ..model.snapshot import Clock, Devices, Entry, Manager, ProbeState, Unit
from .codec import decode, encode

T = TypeVar("T")


@dataclass
class Tape:
    """Answers by question. The key of a question is its name and arguments as JSON."""

    answers: dict[str, Any] = field(default_factory=dict)
    """encoded answers; file contents are bytes"""

    @staticmethod
    def key(question: str, *args: object) -> str:
        return json.dumps([question, *args])


class Recorder:
    """A Host that asks another one and records the answers."""

    def __init__(self, host: Host, tape: Tape | None = None) -> None:
        """`tape`: the tape to continue; a new one by default."""
        self._host = host
        self.tape = Tape() if tape is None else tape

    def _keep(self, answer: T, question: str, *args: object) -> T:
        self.tape.answers[Tape.key(question, *args)] = encode(answer)
        return answer

    async def clock(self) -> Clock:
        return self._keep(await self._host.clock(), "clock")

    async def machine(self) -> str:
        return self._keep(await self._host.machine(), "machine")

    async def file(self, path: str, limit: int = 65536) -> Reading[bytes]:
        return self._keep(await self._host.file(path, limit), "file", path)

    async def folder(self, path: str, match: str = "*") -> Reading[tuple[Entry, ...]]:
        return self._keep(await self._host.folder(path, match), "folder", path, match)

    async def units(self, names: Sequence[str]) -> Reading[tuple[Unit, ...]]:
        return self._keep(await self._host.units(names), "units", *names)

    async def manager(self) -> Reading[Manager]:
        return self._keep(await self._host.manager(), "manager")

    async def probe(self) -> Reading[ProbeState]:
        return self._keep(await self._host.probe(), "probe")

    async def allocatable(self, socket: str) -> Reading[tuple[Devices, ...]]:
        return self._keep(await self._host.allocatable(socket), "allocatable", socket)

    async def tail(self, path: str, limit: int = 65536) -> Reading[bytes]:
        return self._keep(await self._host.tail(path, limit), "tail", path)

    async def document(self, path: str, limit: int = 1 << 20) -> Reading[bytes]:
        return self._keep(await self._host.document(path, limit), "document", path)

    async def absent(self, paths: Sequence[str]) -> Reading[tuple[str, ...]]:
        return self._keep(await self._host.absent(paths), "absent", *paths)

    async def runtime(self, socket: str) -> Reading[Runtime]:
        return self._keep(await self._host.runtime(socket), "runtime", socket)

    async def container(self, socket: str, container_id: str) -> Reading[ContainerDetail]:
        return self._keep(
            await self._host.container(socket, container_id), "container", socket, container_id
        )

    async def access(self, pid: int, path: str) -> Reading[Access]:
        return self._keep(await self._host.access(pid, path), "access", pid, path)

    async def listener(self, path: str) -> Reading[int]:
        return self._keep(await self._host.listener(path), "listener", path)

    async def allocations(self, socket: str) -> Reading[tuple[Allocation, ...]]:
        return self._keep(await self._host.allocations(socket), "allocations", socket)

    async def processes(
        self, socket: str, container_ids: Sequence[str]
    ) -> Reading[tuple[Process, ...]]:
        return self._keep(await self._host.processes(socket, container_ids), "processes", socket)

    async def access_state(self) -> Reading[AccessState]:
        return self._keep(await self._host.access_state(), "access_state")

    async def trouble(self) -> tuple[str, ...]:
        return self._keep(await self._host.trouble(), "trouble")

    async def kernel_log(self) -> Reading[tuple[KernelLine, ...]]:
        return self._keep(await self._host.kernel_log(), "kernel_log")


class FullRecorder(Recorder):
    """With the doctor's questions."""

    def __init__(self, host: DiagnosticHost, tape: Tape | None = None) -> None:
        super().__init__(host, tape)
        self._diagnostic = host

    async def journal(self, units: Sequence[str]) -> Reading[tuple[JournalLine, ...]]:
        return self._keep(await self._diagnostic.journal(units), "journal")

    async def versions(self, programs: Sequence[str]) -> tuple[Version, ...]:
        return self._keep(await self._diagnostic.versions(programs), "versions")

    async def cuda(self) -> Reading[CudaReport]:
        return self._keep(await self._diagnostic.cuda(), "cuda")


class Replay:
    """A Host that answers from a tape. It refuses what is not on the tape as not recorded."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    def _find(self, kind: Any, question: str, *args: object) -> Any:
        found = self._tape.answers.get(Tape.key(question, *args))
        if found is None:
            return Refusal(Why.NOT_RECORDED, f"{question} {' '.join(map(str, args))}".strip())
        return decode(kind, found)

    def _reading(self, kind: type[T], question: str, *args: object) -> Reading[T]:
        found: Reading[T] = self._find(Union[Seen[kind], Refusal], question, *args)  # type: ignore[valid-type]
        return found

    async def clock(self) -> Clock:
        found = self._find(Clock, "clock")
        if isinstance(found, Refusal):
            raise BundleError("the bundle has no clock: it is not the tape of a snapshot")
        return found  # type: ignore[no-any-return]

    async def machine(self) -> str:
        found = self._find(str, "machine")
        return found if isinstance(found, str) else ""

    async def file(self, path: str, limit: int = 65536) -> Reading[bytes]:
        found = self._reading(bytes, "file", path)
        return Seen(found.value[:limit], found.at) if isinstance(found, Seen) else found

    async def folder(self, path: str, match: str = "*") -> Reading[tuple[Entry, ...]]:
        return self._reading(tuple[Entry, ...], "folder", path, match)

    async def units(self, names: Sequence[str]) -> Reading[tuple[Unit, ...]]:
        found = self._reading(tuple[Unit, ...], "units", *names)
        if isinstance(found, Seen) or found.why is not Why.NOT_RECORDED:
            return found
        # An older version asked for fewer units: the others are unknown, and not in the answer.
        asked = [words for key in self._tape.answers if (words := json.loads(key))[0] == "units"]
        if len(asked) != 1 or not set(asked[0][1:]) <= set(names):
            return found
        return self._reading(tuple[Unit, ...], *asked[0])

    async def manager(self) -> Reading[Manager]:
        return self._reading(Manager, "manager")

    async def probe(self) -> Reading[ProbeState]:
        return self._reading(ProbeState, "probe")

    async def allocatable(self, socket: str) -> Reading[tuple[Devices, ...]]:
        return self._reading(tuple[Devices, ...], "allocatable", socket)

    async def tail(self, path: str, limit: int = 65536) -> Reading[bytes]:
        found = self._reading(bytes, "tail", path)
        return Seen(found.value[-limit:], found.at) if isinstance(found, Seen) else found

    async def document(self, path: str, limit: int = 1 << 20) -> Reading[bytes]:
        found = self._reading(bytes, "document", path)
        return Seen(found.value[:limit], found.at) if isinstance(found, Seen) else found

    async def absent(self, paths: Sequence[str]) -> Reading[tuple[str, ...]]:
        return self._reading(tuple[str, ...], "absent", *paths)

    async def runtime(self, socket: str) -> Reading[Runtime]:
        return self._reading(Runtime, "runtime", socket)

    async def container(self, socket: str, container_id: str) -> Reading[ContainerDetail]:
        return self._reading(ContainerDetail, "container", socket, container_id)

    async def access(self, pid: int, path: str) -> Reading[Access]:
        return self._reading(Access, "access", pid, path)

    async def listener(self, path: str) -> Reading[int]:
        return self._reading(int, "listener", path)

    async def allocations(self, socket: str) -> Reading[tuple[Allocation, ...]]:
        return self._reading(tuple[Allocation, ...], "allocations", socket)

    async def processes(
        self,
        socket: str,
        container_ids: Sequence[str],  # noqa: ARG002
    ) -> Reading[tuple[Process, ...]]:
        return self._reading(tuple[Process, ...], "processes", socket)

    async def access_state(self) -> Reading[AccessState]:
        return self._reading(AccessState, "access_state")

    async def trouble(self) -> tuple[str, ...]:
        found = self._find(tuple[str, ...], "trouble")
        return () if isinstance(found, Refusal) else found

    async def kernel_log(self) -> Reading[tuple[KernelLine, ...]]:
        return self._reading(tuple[KernelLine, ...], "kernel_log")

    async def journal(self, units: Sequence[str]) -> Reading[tuple[JournalLine, ...]]:  # noqa: ARG002
        return self._reading(tuple[JournalLine, ...], "journal")

    async def versions(self, programs: Sequence[str]) -> tuple[Version, ...]:  # noqa: ARG002
        found = self._find(tuple[Version, ...], "versions")
        return () if isinstance(found, Refusal) else found

    async def cuda(self) -> Reading[CudaReport]:
        return self._reading(CudaReport, "cuda")
