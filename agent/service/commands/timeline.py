"""`gpu-gate timeline [BUNDLE]`: the events of a boot in order, live or from an evidence bundle."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ... import __version__
from ...core.collect import collect
from ...core.doctor.timeline import Timeline, timeline
from ...host.evidence import bundle
from ...host.tape import Replay
from ...model.settings import Settings
from ...model.snapshot import Snapshot
from ..chain import wrapped
from ..one_snapshot import one_snapshot

_INDENT = 22


def run(settings: Settings, source: str, as_json: bool) -> int:
    """Print the timeline. Always returns 0: a timeline has no verdict."""
    if source:
        snapshot = asyncio.run(collect(Replay(bundle.read(Path(source))), settings))
    else:
        snapshot, _ = asyncio.run(one_snapshot(settings))
    found = timeline(snapshot, settings)
    print(
        json.dumps(report(snapshot, found), indent=1)
        if as_json
        else "\n".join(text(snapshot, found))
    )
    return 0


def report(snapshot: Snapshot, found: Timeline) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    before: float | None = None
    for boot_event in found.boot_events:
        gap = None if before is None else round(boot_event.at - before, 3)
        rows.append(
            {
                "at": round(boot_event.at, 3),
                "gap": gap,
                "what": boot_event.what,
                "text": boot_event.text,
                "source": boot_event.source,
                "of": boot_event.of,
                "converted": boot_event.is_theirs,
            }
        )
        before = boot_event.at
    return {
        "version": 1,
        "gpu_gate": __version__,
        "boot_id": snapshot.boot.boot_id,
        "boot_at": round(snapshot.clock.realtime - snapshot.clock.boottime, 3),
        "looked_at": snapshot.clock.boottime,
        "moments": rows,
        "sentences": list(found.sentences),
        "unknown": list(found.unknown),
    }


def text(snapshot: Snapshot, found: Timeline) -> list[str]:
    """The sentences first, then the events: seconds since boot, and since the line above."""
    lines = [
        line for sentence in found.sentences for line in wrapped("", _capital(sentence) + ".", 2)
    ]
    began = snapshot.clock.realtime - snapshot.clock.boottime
    lines += [
        *([""] if lines else []),
        f"Since boot ({_utc(began)}), seen after {snapshot.clock.boottime:.1f} s:",
    ]
    is_set = any("clock was set" in sentence for sentence in found.unknown)
    before: float | None = None
    for boot_event in found.boot_events:
        gap = "" if before is None else f"+{boot_event.at - before:.1f}"
        star = "*" if is_set and boot_event.is_theirs else " "
        lines += wrapped(
            f"{boot_event.at:>9.1f}{star}{gap:>10}  ",
            f"{boot_event.text} [{boot_event.source}]",
            _INDENT,
        )
        before = boot_event.at
    if found.unknown:
        lines += ["", "Not known:"]
        lines += [line for sentence in found.unknown for line in wrapped("  ", sentence, 4)]
    return lines


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _utc(realtime: float) -> str:
    try:
        return f"{datetime.fromtimestamp(realtime, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return "at an invalid time"
