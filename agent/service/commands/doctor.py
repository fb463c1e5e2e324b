"""`doctor` and `probe`: one look at a node, live or on tape, by the same look and diagnose."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path

from ...core.collect import collect
from ...core.common.paths import DRIVER_VERSION
from ...core.diagnose import diagnose
from ...core.doctor import cluster as cluster_rules
from ...core.doctor.collect import collect_diagnostics
from ...core.gpu.nvml_codes import name_of
from ...host.codec import encode
from ...host.evidence import bundle
from ...host.probes.runner import Probes
from ...host.tape import Replay
from ...model.cluster import ClusterReport
from ...model.host import DiagnosticHost
from ...model.settings import Settings
from ...model.snapshot import ProbeState
from ..chain import wants_colour
from ..doctor_report import DoctorReport, judge, report, text
from ..one_snapshot import one_snapshot


def doctor(
    settings: Settings, source: str, as_json: bool, deep: bool = False, cluster: bool = False
) -> int:
    """0: every link that was asked holds; 1: one is broken; 4: the first trouble is that we do not
    know."""
    # A live node is judged by its tape: what is said of it now is what its evidence will say.
    tape = (
        bundle.read(Path(source)) if source else asyncio.run(one_snapshot(settings, deep))[1].tape
    )
    word = _cluster(settings) if cluster else None
    said = asyncio.run(examined(Replay(tape), settings, word))
    print(json.dumps(report(said), indent=1) if as_json else "\n".join(text(said, wants_colour())))
    return said.exit_code


async def examined(
    host: DiagnosticHost, settings: Settings, word: ClusterReport | None = None
) -> DoctorReport:
    """One look, and the doctor's own questions after it. `word`: what the cluster's monitoring says
    of this node."""
    snapshot = await collect(host, settings)
    diagnosis = diagnose(snapshot, settings)
    if word is not None:
        more = cluster_rules.findings(word, snapshot, settings, diagnosis.registered)
        diagnosis = replace(diagnosis, findings=(*diagnosis.findings, *more))
    return judge(snapshot, diagnosis, await collect_diagnostics(host, settings, snapshot))


def _cluster(settings: Settings) -> ClusterReport:
    from .. import cluster  # TLS and urllib, which nobody else here needs

    return cluster.ask(settings)


def probe(settings: Settings, as_json: bool) -> int:
    """One probe of our own, now. 0: every GPU NVML was asked about answered; 1: not."""

    async def once() -> ProbeState:
        probes = Probes(lambda _: None, settings.probe_timeout_s, settings.driver_root)
        probes.start(overlap=False)
        state = await probes.finished()
        await probes.close()
        return state

    if not Path(DRIVER_VERSION).exists():
        print(
            "the nvidia module is not loaded, and a probe would load it: modprobe nvidia",
            file=sys.stderr,
        )
        return 1
    last = asyncio.run(once()).last
    assert last is not None
    if as_json:
        print(json.dumps({"version": 1, **encode(last)}, indent=1))
    else:
        for gpu in last.gpus:
            print(f"{gpu.bus_id}  {gpu.uuid}  /dev/nvidia{gpu.minor}  {gpu.name}")
        for error in last.errors:
            print(
                f"{error.call} {error.bus_id or (error.index if error.index >= 0 else '')}: "
                f"{name_of(error.code)}"
            )
        print(
            f"{last.end.value}: {len(last.gpus)} GPUs in {last.ended_at - last.started_at:.2f} s"
            + (f"; {last.detail}" if last.detail else "")
        )
    return 0 if last.end.value == "answered" and not last.errors else 1
