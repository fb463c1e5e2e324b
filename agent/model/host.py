"""The read-only questions that gpu-gate asks of a node."""

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
    """A node, live or on tape. Every answer is a value or a refusal. No question changes the
    node."""

    async def clock(self) -> Clock: ...

    async def machine(self) -> str:
        """A hash that identifies this machine (DMI product UUID and machine-id): a copied disk gets
        another."""

    async def file(self, path: str, limit: int = 65536) -> Reading[bytes]:
        """The first `limit` bytes of a file."""

    async def folder(self, path: str, match: str = "*") -> Reading[tuple[Entry, ...]]:
        """The names in a folder that match a shell pattern, sorted, at most 4,096."""

    async def units(self, names: Sequence[str]) -> Reading[tuple[Unit, ...]]:
        """These units of systemd; one that does not exist has the load state "not-found"."""

    async def manager(self) -> Reading[Manager]: ...

    async def probe(self) -> Reading[ProbeState]:
        """The results of the NVML probes so far. This starts no probe."""

    async def allocatable(self, socket: str) -> Reading[tuple[Devices, ...]]:
        """The allocatable devices in the kubelet's pod-resources API."""

    async def tail(self, path: str, limit: int = 65536) -> Reading[bytes]:
        """The last `limit` bytes of a file."""

    async def document(self, path: str, limit: int = 1 << 20) -> Reading[bytes]:
        """A YAML or JSON file (by its suffix) as JSON text; FAILED where it is malformed, or larger
        than `limit` bytes."""

    async def absent(self, paths: Sequence[str]) -> Reading[tuple[str, ...]]:
        """Those of these paths that do not exist. Links are followed, and nothing is opened: the
        paths may be device nodes."""

    async def runtime(self, socket: str) -> Reading[Runtime]:
        """Every sandbox and container of the CRI endpoint at this socket."""

    async def container(self, socket: str, container_id: str) -> Reading[ContainerDetail]:
        """One container's status, with the runtime's verbose info."""

    async def access(self, pid: int, path: str) -> Reading[Access]:
        """Whether this process may open this device node. The node is not opened, and the process
        not disturbed."""

    async def listener(self, path: str) -> Reading[int]:
        """The pid of the process that listens on this unix socket. No data is sent."""

    async def allocations(self, socket: str) -> Reading[tuple[Allocation, ...]]:
        """The devices of each container in the kubelet's pod-resources API."""

    async def processes(
        self, socket: str, container_ids: Sequence[str]
    ) -> Reading[tuple[Process, ...]]:
        """The processes of these running containers, and which rules govern their devices. Those
        that were not read yet are left out."""

    async def access_state(self) -> Reading[AccessState]:
        """The results of the access program so far. This does not start it."""

    async def kernel_log(self) -> Reading[tuple[KernelLine, ...]]:
        """The lines about GPUs in this boot's kernel log, oldest first. This never blocks."""

    async def trouble(self) -> tuple[str, ...]:
        """The problems of event sources that are unavailable, as sentences."""


class DiagnosticHost(Host, Protocol):
    """A node with the doctor's questions, which start programs. The daemon's cycle asks none of
    them."""

    async def journal(self, units: Sequence[str]) -> Reading[tuple[JournalLine, ...]]:
        """Lines about GPUs in this boot's journal, oldest first: from these units, from PID 1 and
        from the kernel, in the first 15 minutes of the boot and in the last hour."""

    async def versions(self, programs: Sequence[str]) -> tuple[Version, ...]:
        """The versions that these programs report."""

    async def cuda(self) -> Reading[CudaReport]:
        """The result of the CUDA probe. This does not start it."""
