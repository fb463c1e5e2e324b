"""The Host of a case: the answers that a captured state lacks and the doctor needs."""

from __future__ import annotations

from collections.abc import Sequence

from agent.model.access import AccessState, Allocation, Process, ScopeDevices, Sighting, Verdict
from agent.model.diagnostics import CudaReport, JournalLine, Version
from agent.model.kernel import KernelLine
from agent.model.reading import Reading, Refusal, Seen, Why
from agent.model.snapshot import Manager

from .node import BOOTTIME, CapturedNode


class CaseHost(CapturedNode):
    """A host that answers every question."""

    def __init__(self, realtime: float) -> None:
        super().__init__(realtime)
        self.unknown = []
        self.reload_at = 5.0
        self.asked: list[tuple[float, str]] = []
        self.kernel: list[KernelLine] = []
        self.lines: list[JournalLine] = []
        self.said: Reading[CudaReport] = Refusal(Why.NOT_ASKED, "asked by --deep")
        self.rows: list[Allocation] = []
        self.process: list[Process] = []
        self.verdicts: list[Verdict] = []
        self.sightings: list[Sighting] = []
        self.scopes: list[ScopeDevices] = []

    async def manager(self) -> Reading[Manager]:
        return Seen(Manager("252", self.reload_at), BOOTTIME)

    async def kernel_log(self) -> Reading[tuple[KernelLine, ...]]:
        return Seen(tuple(self.kernel), BOOTTIME)

    async def listener(self, path: str) -> Reading[int]:
        return Seen(812 if path.endswith("kubelet.sock") else 4711, BOOTTIME)

    async def allocations(self, socket: str) -> Reading[tuple[Allocation, ...]]:
        return Seen(tuple(self.rows), BOOTTIME)

    async def processes(
        self, socket: str, container_ids: Sequence[str]
    ) -> Reading[tuple[Process, ...]]:
        return Seen(tuple(p for p in self.process if p.container_id in container_ids), BOOTTIME)

    async def access_state(self) -> Reading[AccessState]:
        return Seen(
            AccessState(
                tuple(self.verdicts), tuple(self.sightings), tuple(self.scopes), tuple(self.asked)
            ),
            BOOTTIME,
        )

    async def journal(self, units: Sequence[str]) -> Reading[tuple[JournalLine, ...]]:
        return Seen(tuple(self.lines), BOOTTIME)

    async def versions(self, programs: Sequence[str]) -> tuple[Version, ...]:
        return ()

    async def cuda(self) -> Reading[CudaReport]:
        return self.said
