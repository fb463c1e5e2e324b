"""`gpu-gate evidence`: keep what one look saw."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ..model.settings import Settings
from ..node import bundle
from .one_look import one_look


def evidence(settings: Settings, target: str, deep: bool = False) -> int:
    """Write the tape of one look."""
    scene, recorder = asyncio.run(one_look(settings, deep))
    folder = Path(target) if target else Path(f"gpu-gate-evidence-{scene.clock.realtime:.0f}")
    bundle.write(recorder.tape, folder)
    print(f"{folder}: {len(recorder.tape.answers)} answers; read it with: gpu-gate doctor {folder}")
    return 0
