"""`doctor` and `probe`: one look at a node, live or on tape, by the same look and diagnose."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from .. import __version__
from ..core.look import look
from ..core.rules import diagnose
from ..model.finding import Diagnosis
from ..model.scene import ProbeState
from ..model.settings import Settings
from ..node import bundle
from ..node.codec import encode
from ..node.probes import Probes
from ..node.tape import Replay
from .chain import chain, printable
from .one_look import one_look


def doctor(settings: Settings, source: str, as_json: bool) -> int:
    """0: every link that was asked holds; 1: one is broken; 4: the first trouble is that we do not know."""
    if source:
        tape = bundle.read(Path(source))
        scene = asyncio.run(look(Replay(tape), settings))
    else:
        scene, _ = asyncio.run(one_look(settings))
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
