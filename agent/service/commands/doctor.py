"""`gpu-gate doctor [BUNDLE]`: check every link of a node, live or from an evidence bundle."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

from ...core.collect import collect
from ...core.diagnose import diagnose
from ...core.doctor import cluster as cluster_rules
from ...core.doctor.collect import collect_diagnostics
from ...host.evidence import bundle
from ...host.tape import Replay
from ...model.cluster import ClusterReport
from ...model.host import DiagnosticHost
from ...model.settings import Settings
from ..chain import wants_colour
from ..doctor_report import DoctorReport, assess, report, text
from ..one_snapshot import one_snapshot


def doctor(
    settings: Settings, source: str, as_json: bool, deep: bool = False, cluster: bool = False
) -> int:
    """Print the report. Returns 0 if every link that was checked holds, 1 if one is broken, 4 if
    none is known to be broken and one is unknown."""
    # A live node is recorded and replayed, so that its evidence bundle gives the same report.
    tape = (
        bundle.read(Path(source)) if source else asyncio.run(one_snapshot(settings, deep))[1].tape
    )
    monitoring = _cluster(settings) if cluster else None
    result = asyncio.run(examine(Replay(tape), settings, monitoring))
    print(
        json.dumps(report(result), indent=1) if as_json else "\n".join(text(result, wants_colour()))
    )
    return result.exit_code


async def examine(
    host: DiagnosticHost, settings: Settings, monitoring: ClusterReport | None = None
) -> DoctorReport:
    """Collect one snapshot and the doctor's own data, and diagnose both.

    `monitoring`: what the cluster's metric store and alert manager show of this node.
    """
    snapshot = await collect(host, settings)
    diagnosis = diagnose(snapshot, settings)
    if monitoring is not None:
        more = cluster_rules.findings(monitoring, snapshot, settings, diagnosis.registered)
        diagnosis = replace(diagnosis, findings=(*diagnosis.findings, *more))
    return assess(snapshot, diagnosis, await collect_diagnostics(host, settings, snapshot))


def _cluster(settings: Settings) -> ClusterReport:
    from .. import cluster  # imports TLS and urllib, which no other verb needs

    return cluster.ask(settings)
