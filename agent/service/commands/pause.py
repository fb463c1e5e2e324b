"""`gpu-gate pause`, `resume` and `forget`: they create or remove a small file; no agent needed."""

from __future__ import annotations

import os
import sys
import time

from ...core.common.paths import RUN, STATE
from ...host.marks import write_mark
from ...model.errors import GateError
from ...transport.clock import boottime
from ..setting_values import parse_span

LONGEST_S = 7 * 86400.0
"""A longer pause would outlast its reason, forgotten."""
UNTIL_RESUMED = "`gpu-gate resume` or the next boot"


def run(verb: str, span: str | None, why: str | None) -> int:
    """Run one of the three verbs. Returns 0, or 2 if `span` is not a time span.

    Raises GateError if the file cannot be changed.
    """
    try:
        span_s = _span_s(span) if span is not None else None
    except ValueError as exc:
        print(f"gpu-gate: --for {span}: {exc}", file=sys.stderr)
        return 2
    try:
        if verb == "pause":
            _pause(span_s, why or "by a person")
        elif verb == "resume":
            print("resumed" if _removed(f"{RUN}/paused") else "it was not paused")
        else:
            print(
                "forgotten: the GPUs that are stable next are remembered"
                if _removed(f"{STATE}/learned.json")
                else "no GPUs were remembered"
            )
    except OSError as exc:
        raise GateError(
            f"{exc.filename} could not be changed ({exc.strerror}): are you root?"
        ) from exc
    return 0


def _removed(path: str) -> bool:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True


def _span_s(span: str) -> float:
    seconds = parse_span(span)
    if not 1.0 <= seconds <= LONGEST_S:
        raise ValueError("must lie between 1s and 7d")
    return seconds


def _pause(span_s: float | None, why: str) -> None:
    """Write the mark. Its end is a boottime, so that setting the clock does not move it."""
    now = boottime()
    write_mark("/", "paused", why[:200], at=now, until=None if span_s is None else now + span_s)
    ends = (
        time.strftime("%F %T", time.localtime(time.time() + span_s)) + ", "
        if span_s is not None
        else ""
    )
    print(f"paused until {ends}{UNTIL_RESUMED}")
