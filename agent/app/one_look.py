"""One look at a live node, as the agent looks, without the agent: doctor, evidence and timeline share it."""

from __future__ import annotations

import asyncio
import sys

from ..core.look import look
from ..core.look.watched import watched_units
from ..core.rules import diagnose
from ..model.errors import BundleError
from ..model.host import Host
from ..model.reading import Reading, Seen
from ..model.scene import ProbeState, Scene
from ..model.settings import Settings
from ..node.access import AccessChecks
from ..node.codec import decode
from ..node.live import LiveHost
from ..node.probes import Probes, boottime
from ..node.tape import Recorder
from ..wire.bus import SystemdBus
from . import ask

CONNECT_S = 2.0


class _OneLook(LiveHost):
    """A live host whose NVML word is the agent's last one, where an agent runs: one probe at a time is enough."""

    def __init__(self, bus: SystemdBus, probes: Probes, agents: ProbeState | None) -> None:
        self.checks = AccessChecks(lambda _: None, bus)
        super().__init__(bus, probes, checks=self.checks)
        self._agents = agents

    async def probe(self) -> Reading[ProbeState]:
        return Seen(self._agents, boottime()) if self._agents is not None else await super().probe()


async def one_look(settings: Settings) -> tuple[Scene, Recorder]:
    """What one look saw, and its tape."""
    connected = asyncio.Event()
    bus = SystemdBus(lambda kind, _: connected.set() if kind == "connected" else None)
    probes = Probes(lambda _: None, settings.probe_timeout_s, settings.driver_root)
    await bus.watch(watched_units(settings))
    supervisor = asyncio.get_running_loop().create_task(bus.run())
    try:
        agents = _agents_probe(settings)
        host = _OneLook(bus, probes, agents)
        if agents is None:
            await _probe_if_loaded(host, probes)
        try:
            await asyncio.wait_for(connected.wait(), CONNECT_S)
        except asyncio.TimeoutError:
            print(f"systemd was not asked: {bus.problem}", file=sys.stderr)
        await _check_access(host, settings)
        recorder = Recorder(host)
        return await look(recorder, settings), recorder
    finally:
        supervisor.cancel()
        await asyncio.gather(supervisor, return_exceptions=True)
        await probes.close()


async def _check_access(host: _OneLook, settings: Settings) -> None:
    """What the agent does beside its cycle, done before the one look: the verdicts, then the scopes' device lists."""
    for _ in range(2):
        wanted = diagnose(await look(host, settings), settings).access_check
        if wanted is None:
            return
        host.checks.start(wanted)
        await host.checks.finished()


def _agents_probe(settings: Settings) -> ProbeState | None:
    try:
        found: ProbeState = decode(ProbeState, ask.status(listen=settings.listen).get("probe"))
    except (ask.NoAgent, BundleError):
        return None
    return found if found.last or found.running_since is not None or found.remains else None


async def _probe_if_loaded(host: Host, probes: Probes) -> None:
    """Never where the driver is not loaded: NVML would load it."""
    version = await host.file("/proc/driver/nvidia/version")
    if isinstance(version, Seen):
        probes.start(overlap=False)
        await probes.finished()
