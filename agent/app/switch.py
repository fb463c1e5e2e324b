"""`gpu-gate pause`, `resume` and `forget`: the verbs that only make or remove a small file. They need no agent."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from ..core.paths import RUN, STATE
from ..model.errors import GateError
from .values import parse_span

LONGEST_S = 7 * 86400.0
"""A pause that nobody ends outlives its reason."""
UNTIL_RESUMED = "`gpu-gate resume` or the next boot"


def run(verb: str, span: str | None, why: str | None) -> int:
    """Exit status: 0; 2 where the span is none. What cannot be changed is a GateError."""
    try:
        span_s = _span_s(span) if span is not None else None
    except ValueError as exc:
        print(f"gpu-gate: --for {span}: {exc}", file=sys.stderr)
        return 2
    mark = Path(RUN) / "paused"
    try:
        if verb == "pause":
            _pause(mark, span_s, why or "by a person")
        elif verb == "resume":
            mark.unlink(missing_ok=True)
        else:
            (Path(STATE) / "learned.json").unlink(missing_ok=True)
    except OSError as exc:
        raise GateError(f"{exc.filename} could not be changed ({exc.strerror}): are you root?") from exc
    return 0


def _span_s(span: str) -> float:
    seconds = parse_span(span)
    if not 1.0 <= seconds <= LONGEST_S:
        raise ValueError("must lie between 1s and 168h")
    return seconds


def _pause(mark: Path, span_s: float | None, why: str) -> None:
    """The end is an instant of boottime: no clock that is set can move it."""
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    kept = {"reason": why[:200], "at": round(now, 3)}
    if span_s is not None:
        kept["until"] = round(now + span_s, 3)
    mark.parent.mkdir(mode=0o755, exist_ok=True)
    new = mark.with_name(".paused.new")
    new.write_text(json.dumps(kept), encoding="utf-8")
    os.replace(new, mark)
    ends = time.strftime("%F %T", time.localtime(time.time() + span_s)) + ", " if span_s is not None else ""
    print(f"paused until {ends}{UNTIL_RESUMED}")
