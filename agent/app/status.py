"""What the faces answer from: the last cycle in memory, and /status, which is the whole truth of it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import __version__
from ..core.phases import Gate
from ..model.finding import Diagnosis
from ..model.scene import ProbeState, Scene
from ..model.settings import Settings
from ..node.codec import encode
from ..node.probes import boottime
from . import access
from .config import Problem

STATUS_VERSION = 1


@dataclass
class Snapshot:
    """What the faces answer from: the last cycle, in memory."""

    gate: Gate
    diagnosis: Diagnosis | None = None
    scene: Scene | None = None
    cycles: int = 0
    cycle_ended_at: float = 0.0
    cycle_took_s: float = 0.0
    cycle_lag_s: float = 0.0
    "how much later than due it began"
    wakes: dict[str, int] = field(default_factory=dict)


def status(seen: Snapshot, settings: Settings, probe: ProbeState, problems: Sequence[Problem]) -> dict[str, Any]:
    """The whole truth of the last cycle, as /status and `gpu-gate status --json` give it."""
    now = boottime()
    gate = seen.gate
    body: dict[str, Any] = {
        "version": STATUS_VERSION,
        "agent": {"version": __version__, "pid": os.getpid(), "up_s": round(now - gate.started_at, 1)},
        "gate": {
            "phase": gate.phase.value, "phase_number": gate.phase.number, "for_s": round(now - gate.since, 1),
            "why": gate.why, "reason": gate.reason, "released": bool(gate.released),
            "released_why": gate.released, "ready": gate.ready, "ready_why": gate.ready_why,
            "paused": gate.paused,
            "paused_for_s": round(max(0.0, gate.paused_until - now), 1) if gate.paused_until else None,
            "good_probes": gate.good, "wanted_probes": settings.stable_probes,
            "deadline_in_s": round(max(0.0, gate.deadline_at - now), 1)
            if gate.deadline_at and not gate.released else None,
            "validated_s_ago": round(now - gate.validated_at, 1) if gate.validated_at else None,
        },
        "cycle": {"number": seen.cycles, "age_s": round(now - seen.cycle_ended_at, 2),
                  "took_ms": round(seen.cycle_took_s * 1000, 1), "wakes": seen.wakes},
        "findings": [encode(f) for f in seen.diagnosis.findings] if seen.diagnosis else [],
        "access": access.rows(seen.diagnosis.gpu_containers, now) if seen.diagnosis else [],
        "expected": list(seen.diagnosis.expected) if seen.diagnosis else [],
        "probe": encode(probe),
        "trouble": list(seen.scene.trouble) if seen.scene else [],
        "config_problems": [str(p) for p in problems],
    }
    return body
