"""`gpu-gate timeline [BUNDLE]`: this boot as a race is read, on a live node or from an evidence
bundle."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ... import __version__
from ...core.collect import look
from ...core.doctor.timeline import Timeline, timeline
from ...host.evidence import bundle
from ...host.tape import Replay
from ...model.settings import Settings
from ...model.snapshot import Scene
from ..chain import wrapped
from ..one_look import one_look

_INDENT = 22


def run(settings: Settings, source: str, as_json: bool) -> int:
    """Always 0: a timeline is no verdict."""
    if source:
        scene = asyncio.run(look(Replay(bundle.read(Path(source))), settings))
    else:
        scene, _ = asyncio.run(one_look(settings))
    told = timeline(scene, settings)
    print(json.dumps(report(scene, told), indent=1) if as_json else "\n".join(text(scene, told)))
    return 0


def report(scene: Scene, told: Timeline) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    before: float | None = None
    for moment in told.moments:
        gap = None if before is None else round(moment.at - before, 3)
        rows.append(
            {
                "at": round(moment.at, 3),
                "gap": gap,
                "what": moment.what,
                "text": moment.text,
                "source": moment.source,
                "of": moment.of,
                "converted": moment.is_theirs,
            }
        )
        before = moment.at
    return {
        "version": 1,
        "gpu_gate": __version__,
        "boot_id": scene.boot_id,
        "boot_at": round(scene.clock.realtime - scene.clock.boottime, 3),
        "looked_at": scene.clock.boottime,
        "moments": rows,
        "sentences": list(told.sentences),
        "unknown": list(told.unknown),
    }


def text(scene: Scene, told: Timeline) -> list[str]:
    """The sentences first, then the moments: seconds since boot, and since the line above."""
    lines = [
        line for sentence in told.sentences for line in wrapped("", _capital(sentence) + ".", 2)
    ]
    began = scene.clock.realtime - scene.clock.boottime
    lines += [
        *([""] if lines else []),
        f"Since boot ({_utc(began)}), seen after {scene.clock.boottime:.1f} s:",
    ]
    is_set = any("clock was set" in sentence for sentence in told.unknown)
    before: float | None = None
    for moment in told.moments:
        gap = "" if before is None else f"+{moment.at - before:.1f}"
        star = "*" if is_set and moment.is_theirs else " "
        lines += wrapped(
            f"{moment.at:>9.1f}{star}{gap:>10}  ", f"{moment.text} [{moment.source}]", _INDENT
        )
        before = moment.at
    if told.unknown:
        lines += ["", "Not known:"]
        lines += [line for sentence in told.unknown for line in wrapped("  ", sentence, 4)]
    return lines


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _utc(realtime: float) -> str:
    try:
        return f"{datetime.fromtimestamp(realtime, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return "at a time that is none"
