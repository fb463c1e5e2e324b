"""/status: the whole last cycle as JSON."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import __version__
from ..core.doctor.broken import first_broken
from ..core.gate.states import Gate
from ..engine.history import Done
from ..engine.ports import LastCycle
from ..host.codec import encode
from ..model.settings import Settings
from ..model.snapshot import Clock, ProbeState
from . import access, status_parts
from .config import Problem

STATUS_VERSION = 1
OVERDUE_S = 10.0
"""A cycle is overdue if the last one ended longer ago than the heartbeat and this: twice the limit
of a cycle."""
MOST_FINDINGS = 200
MOST_CONTAINERS = 256
MOST_SENTENCES = 50


@dataclass(frozen=True)
class StatusInput:
    """What /status is made of."""

    seen: LastCycle
    settings: Settings
    probe: ProbeState
    problems: Sequence[Problem]
    milestones: Mapping[str, float]
    recent: Iterable[Done]
    clock: Clock


def status(source: StatusInput) -> dict[str, Any]:
    """The last cycle, for /status and `gpu-gate status --json` (docs/status.schema.json).

    A key may be added within a version; none is renamed or removed.
    """
    seen, now = source.seen, source.clock.boottime
    diagnosis, snapshot = seen.diagnosis, seen.snapshot
    containers = diagnosis.gpu_containers if diagnosis else ()
    broken = first_broken(diagnosis.findings) if diagnosis else None
    return {
        "version": STATUS_VERSION,
        "agent": {
            "version": __version__,
            "pid": os.getpid(),
            "up_s": round(now - seen.gate.started_at, 1),
        },
        "node": os.uname().nodename,
        "gate": _gate(seen.gate, source.settings, now),
        "cycle": {
            "number": seen.cycles,
            "age_s": round(now - seen.cycle_ended_at, 2),
            "took_ms": round(seen.cycle_took_s * 1000, 1),
            "wakes": {str(reason): count for reason, count in seen.wakes.items()},
            "overdue_after_s": source.settings.heartbeat_s + OVERDUE_S,
        },
        "findings": [encode(f) for f in diagnosis.findings[:MOST_FINDINGS]] if diagnosis else [],
        "first_broken": encode(broken) if broken else None,
        "access": access.rows(containers[:MOST_CONTAINERS], now),
        "access_left_out": max(0, len(containers) - MOST_CONTAINERS),
        "expected": list(diagnosis.expected) if diagnosis else [],
        "probe": encode(source.probe),
        "boot": status_parts.boot(snapshot, source.milestones, now, source.clock.realtime),
        "services": status_parts.services(snapshot),
        "registered": status_parts.registered(snapshot, source.settings),
        "plugins": status_parts.plugins(snapshot),
        "actions": status_parts.actions(snapshot, source.recent),
        "trouble": list(snapshot.trouble[:MOST_SENTENCES]) if snapshot else [],
        "config_problems": [str(p) for p in source.problems[:MOST_SENTENCES]],
    }


def _gate(gate: Gate, settings: Settings, now: float) -> dict[str, Any]:
    return {
        "phase": gate.phase.value,
        "phase_number": gate.phase.number,
        "for_s": round(now - gate.since, 1),
        "why": gate.why,
        "reason": gate.reason,
        "released": bool(gate.released),
        "released_why": gate.released,
        "ready": gate.ready,
        "ready_why": gate.ready_why,
        "paused": gate.paused,
        "paused_for_s": round(max(0.0, gate.paused_until - now), 1) if gate.paused_until else None,
        "good_probes": gate.good,
        "wanted_probes": settings.stable_probes,
        "deadline_in_s": round(max(0.0, gate.deadline_at - now), 1)
        if gate.deadline_at and not gate.released
        else None,
        "validated_s_ago": round(now - gate.validated_at, 1) if gate.validated_at else None,
    }
