"""`doctor`, `evidence` and `probe`: one look at a node, live or on tape, by the same look and diagnose."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from .. import __version__
from ..core.look import look
from ..core.look.watched import watched_units
from ..core.rules import diagnose
from ..model.errors import BundleError
from ..model.finding import Diagnosis
from ..model.host import Host
from ..model.reading import Reading, Seen
from ..model.scene import ProbeState, Scene
from ..model.settings import Settings
from ..node import bundle
from ..node.access import AccessChecks
from ..node.codec import decode, encode
from ..node.live import LiveHost
from ..node.probes import Probes, boottime
from ..node.tape import Recorder, Replay
from ..wire.bus import SystemdBus
from . import ask
from .chain import chain, printable

CONNECT_S = 2.0


class _OneLook(LiveHost):
    """A live host whose NVML word is the agent's last one, where an agent runs: one probe at a time is enough."""

    def __init__(self, bus: SystemdBus, probes: Probes, agents: ProbeState | None) -> None:
        self.checks = AccessChecks(lambda _: None, bus)
        super().__init__(bus, probes, checks=self.checks)
        self._agents = agents

    async def probe(self) -> Reading[ProbeState]:
        return Seen(self._agents, boottime()) if self._agents is not None else await super().probe()


async def _live(settings: Settings, record: bool) -> tuple[Scene, Recorder | None]:
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
        recorder = Recorder(host) if record else None
        return await look(recorder or host, settings), recorder
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


def doctor(settings: Settings, source: str, as_json: bool) -> int:
    """0: every link that was asked holds; 1: one is broken; 4: the first trouble is that we do not know."""
    if source:
        tape = bundle.read(Path(source))
        scene = asyncio.run(look(Replay(tape), settings))
    else:
        scene, _ = asyncio.run(_live(settings, record=False))
    diagnosis = diagnose(scene, settings)
    if as_json:
        print(json.dumps(_report(diagnosis), indent=1))
    else:
        print("\n".join(_text(diagnosis)))
    return _exit_code(diagnosis)


def _report(diagnosis: Diagnosis) -> dict[str, Any]:
    broken = diagnosis.first_broken()
    return {"version": 1, "gpu_gate": __version__, "scope": diagnosis.scope.value,
            "scope_because": diagnosis.scope_because, "first_broken": encode(broken) if broken else None,
            "findings": [encode(f) for f in diagnosis.findings]}


def _text(diagnosis: Diagnosis) -> list[str]:
    broken = diagnosis.first_broken()
    unknown = _first_unknown(diagnosis)
    if broken:
        line = f"Link {broken.link} is broken: {broken.condition}: {broken.because}"
    elif unknown:
        line = f"Nothing is seen broken, but {unknown.condition} is unknown: {unknown.because}"
    else:
        line = "Every link that was asked holds."
    return [printable(line), "", *chain([encode(f) for f in diagnosis.findings], sys.stdout.isatty())]


def _first_unknown(diagnosis: Diagnosis) -> Any:
    return next((f for f in diagnosis.findings if f.blocks and f.verdict.value == "unknown"), None)


def _exit_code(diagnosis: Diagnosis) -> int:
    if diagnosis.first_broken():
        return 1
    return 4 if _first_unknown(diagnosis) else 0


def evidence(settings: Settings, target: str) -> int:
    """Write the tape of one look."""
    scene, recorder = asyncio.run(_live(settings, record=True))
    assert recorder is not None
    folder = Path(target) if target else Path(f"gpu-gate-evidence-{scene.clock.realtime:.0f}")
    bundle.write(recorder.tape, folder)
    print(f"{folder}: {len(recorder.tape.answers)} answers; read it with: gpu-gate doctor {folder}")
    return 0


def probe(settings: Settings, as_json: bool) -> int:
    """One probe of our own, now. 0: every GPU NVML was asked about answered; 1: not."""
    async def once() -> ProbeState:
        probes = Probes(lambda _: None, settings.probe_timeout_s, settings.driver_root)
        probes.start(overlap=False)
        state = await probes.finished()
        await probes.close()
        return state

    if not Path("/proc/driver/nvidia/version").exists():
        print("the nvidia module is not loaded, and a probe would load it: modprobe nvidia", file=sys.stderr)
        return 1
    report = asyncio.run(once()).last
    assert report is not None
    if as_json:
        print(json.dumps({"version": 1, **encode(report)}, indent=1))
    else:
        for gpu in report.gpus:
            print(f"{gpu.bus_id}  {gpu.uuid}  /dev/nvidia{gpu.minor}  {gpu.name}")
        for error in report.errors:
            print(f"{error.call} {error.bus_id or (error.index if error.index >= 0 else '')}: "
                  f"{_named(error.code)}")
        print(f"{report.end.value}: {len(report.gpus)} GPUs in {report.ended_at - report.started_at:.2f} s"
              + (f"; {report.detail}" if report.detail else ""))
    return 0 if report.end.value == "answered" and not report.errors else 1


def _named(code: int) -> str:
    from ..core.nvml_codes import name_of

    return name_of(code)
