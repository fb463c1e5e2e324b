"""The narrow waist: the few read-only questions that may be asked of a node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from .access import AccessState, Allocation, Process
from .diagnostics import CudaReport, JournalLine, Version
from .kernel import KernelLine
from .reading import Reading
from .runtime import Access, ContainerDetail, Runtime
from .snapshot import Clock, Devices, Entry, Manager, ProbeState, Unit


class Host(Protocol):
    """A node, live or on tape. Every answer is a value or a refusal; no question changes the
    node."""

    async def clock(self) -> Clock: ...

    async def machine(self) -> str:
        """A hash that names this very machine (DMI product UUID and machine-id): a copied disk has
        another."""

    async def file(self, path: str, limit: int = 65536) -> Reading[bytes]:
        """The first `limit` bytes of a file."""

    async def folder(self, path: str, match: str = "*") -> Reading[tuple[Entry, ...]]:
        """The names in a folder that match a shell pattern, sorted, at most 4,096."""

    async def units(self, names: Sequence[str]) -> Reading[tuple[Unit, ...]]:
        """These units as systemd knows them; unknown ones come with load "not-found"."""

    async def manager(self) -> Reading[Manager]: ...

    async def probe(self) -> Reading[ProbeState]:
        """What the NVML probes have said so far. Asking starts none."""

    async def allocatable(self, socket: str) -> Reading[tuple[Devices, ...]]:
        """What the kubelet lists as allocatable, by its pod-resources API."""

    async def tail(self, path: str, limit: int = 65536) -> Reading[bytes]:
        """The last `limit` bytes of a file."""

    async def document(self, path: str, limit: int = 1 << 20) -> Reading[bytes]:
        """A YAML or JSON file, by its name, as JSON text; FAILED where it holds neither, or more
        than `limit`."""

    async def absent(self, paths: Sequence[str]) -> Reading[tuple[str, ...]]:
        """Those of these paths that are not there. Links are followed, and nothing is opened: they
        may be device nodes."""

    async def runtime(self, socket: str) -> Reading[Runtime]:
        """Every sandbox and container of the CRI endpoint at this socket."""

    async def container(self, socket: str, container_id: str) -> Reading[ContainerDetail]:
        """One container's status and its runtime's own words about it."""

    async def access(self, pid: int, path: str) -> Reading[Access]:
        """May this process open this device node? Asked without opening it, and without disturbing
        the process."""

    async def listener(self, path: str) -> Reading[int]:
        """The pid of the process that listens on this unix socket. Nothing is sent to it."""

    async def allocations(self, socket: str) -> Reading[tuple[Allocation, ...]]:
        """What the kubelet allocated to which container, by its pod-resources API."""

    async def processes(
        self, socket: str, container_ids: Sequence[str]
    ) -> Reading[tuple[Process, ...]]:
        """These running containers' processes, and what governs their devices. Not yet read ones
        are left out."""

    async def access_state(self) -> Reading[AccessState]:
        """What the access program has said so far. Asking starts none."""

    async def kernel_log(self) -> Reading[tuple[KernelLine, ...]]:
        """The lines of this boot's kernel log that are about GPUs, oldest first. It waits for
        nothing."""

    async def trouble(self) -> tuple[str, ...]:
        """Signal sources that are lost."""


class DiagnosticHost(Host, Protocol):
    """A node that a doctor looks at: questions that start programs, and that no cycle of the
    daemon's asks."""

    async def journal(self, units: Sequence[str]) -> Reading[tuple[JournalLine, ...]]:
        """Lines of this boot's journal that tell something of GPUs, oldest first: of these units,
        of PID 1 and of the kernel; of the boot's first quarter of an hour and of the last hour."""

    async def versions(self, programs: Sequence[str]) -> tuple[Version, ...]:
        """What these programs say when asked for their version."""

    async def cuda(self) -> Reading[CudaReport]:
        """What CUDA said when a program of its own asked it. Asking starts none."""
