"""One snapshot of a live node, as the agent collects it, without the agent: doctor, evidence and
timeline share it."""

from __future__ import annotations

import sys

from ..core.common.paths import DRIVER_VERSION
from ..core.doctor.collect import collect_diagnostics
from ..engine.cycle import observe
from ..host.access.checks import DeviceAccess
from ..host.codec import decode
from ..host.diagnostics import LiveDiagnosticHost, ask_cuda
from ..host.probes.runner import Probes
from ..host.tape import FullRecorder
from ..model.diagnostics import CudaReport
from ..model.errors import BundleError
from ..model.host import Host
from ..model.reading import Reading, Refusal, Seen, Why
from ..model.settings import Settings
from ..model.snapshot import ProbeEnd, ProbeState, Snapshot
from ..transport.clock import boottime
from ..transport.systemd import SystemdBus
from . import ask
from .connection import systemd

FRESH_S = 10.0
"""The agent's word about NVML is taken for so long: on a quiet node it asks every ten minutes."""


class _OneSnapshotHost(LiveDiagnosticHost):
    """A live host whose NVML word is the agent's, where that stands: one probe at a time is
    enough."""

    def __init__(self, bus: SystemdBus, probes: Probes, agents: ProbeState | None) -> None:
        self.checks = DeviceAccess(lambda _: None, bus)
        super().__init__(bus, probes, checks=self.checks)
        self._agents = agents

    async def probe(self) -> Reading[ProbeState]:
        return Seen(self._agents, boottime()) if self._agents is not None else await super().probe()


async def one_snapshot(settings: Settings, deep: bool = False) -> tuple[Snapshot, FullRecorder]:
    """One snapshot, and its tape with the doctor's own questions; `deep`: CUDA among them."""
    probes = Probes(lambda _: None, settings.probe_timeout_s, settings.driver_root)
    async with systemd() as bus:
        if bus.problem:
            print(f"systemd was not asked ({bus.problem}): systemctl status dbus", file=sys.stderr)
        try:
            agents = _agents_probe(settings)
            host = _OneSnapshotHost(bus, probes, agents)
            if agents is None:
                await _probe_if_loaded(host, probes)
            await _check_access(host, settings)
            if deep:
                host.cuda_report = await _cuda(host, settings)
            recorder = FullRecorder(host)
            snapshot, _ = await observe(recorder, settings)
            await collect_diagnostics(recorder, settings, snapshot)
            return snapshot, recorder
        finally:
            await probes.close()


async def _cuda(host: _OneSnapshotHost, settings: Settings) -> Reading[CudaReport]:
    """Never where the driver is not loaded, nor where NVML hangs: CUDA would hang in the same
    place."""
    if not isinstance(await host.file(DRIVER_VERSION), Seen):
        return Refusal(Why.NOT_ASKED, "the nvidia module is not loaded")
    probed = await host.probe()
    state = probed.value_or(ProbeState())
    if state.remains or (state.last and state.last.end is ProbeEnd.HUNG):
        return Refusal(Why.NOT_ASKED, "NVML hangs")
    return await ask_cuda(settings.driver_root, settings.probe_timeout_s)


async def _check_access(host: _OneSnapshotHost, settings: Settings) -> None:
    """What the agent does beside its cycle, done before the one look: the verdicts, then the
    scopes' device lists."""
    for _ in range(2):
        wanted = (await observe(host, settings))[1].access_check
        if wanted is None:
            return
        host.checks.start(wanted)
        await host.checks.finished()


def _agents_probe(settings: Settings) -> ProbeState | None:
    """The agent's word; None where no agent runs, and where its word is old and NVML may well be
    asked once more: nobody has paused, nothing hangs, and the agent is not asking now."""
    try:
        status = ask.status(listen=settings.listen)
        found: ProbeState = decode(ProbeState, status.get("probe"))
    except (ask.NoAgent, BundleError):
        return None
    if status["gate"].get("paused") or found.running_since is not None or found.remains:
        return found
    stands = found.last and (
        found.last.end is ProbeEnd.HUNG or boottime() - found.last.ended_at <= FRESH_S
    )
    return found if stands else None


async def _probe_if_loaded(host: Host, probes: Probes) -> None:
    """Never where the driver is not loaded: NVML would load it."""
    if isinstance(await host.file(DRIVER_VERSION), Seen):
        probes.start(overlap=False)
        await probes.finished()
