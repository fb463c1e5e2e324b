"""The ledger of disruptive actions, read: what was done, for which cause, and what may still be done.

Its lines are written by node/ledger.py, fsynced before anything is done.
"""

from __future__ import annotations

import math

from ..model.runtime import LedgerEntry
from . import parse

OUTCOME = "outcome"
CURED = "the kubelet lists every GPU"
BACKOFF_S = 60.0
"""After an action that did not cure; doubled with each further one."""
MAX_BACKOFF_S = 3600.0


def read(data: bytes) -> tuple[LedgerEntry, ...] | None:
    """The entries of the ledger, one JSON object a line. A last line that was cut off by a power failure is left
    out: it was not fsynced, so nothing was done for it. Any other line that is none makes the ledger unreadable."""
    lines = data.decode("utf-8", "replace").splitlines(keepends=True)
    entries = []
    for line in lines:
        if not line.endswith("\n"):
            continue
        stored = parse.json_object(line.encode())
        try:
            assert stored is not None
            assert math.isfinite(stored["at"])
            entries.append(LedgerEntry(
                float(stored["at"]), str(stored["boot_id"]), int(stored["number"]), str(stored["what"]),
                str(stored["target"]), str(stored["cause"]), str(stored["evidence"]), str(stored["outcome"])))
        except (AssertionError, KeyError, TypeError, ValueError, OverflowError):
            return None
    return tuple(entries)


def actions(entries: tuple[LedgerEntry, ...], boot_id: str) -> tuple[LedgerEntry, ...]:
    """The actions of this boot, oldest first."""
    return tuple(e for e in entries if e.boot_id == boot_id and e.what != OUTCOME)


def outcome_of(entries: tuple[LedgerEntry, ...], action: LedgerEntry) -> str:
    """How an action ended, "" where nobody wrote it down yet."""
    return next((e.outcome for e in entries if e.what == OUTCOME and e.number == action.number), "")


def next_number(entries: tuple[LedgerEntry, ...]) -> int:
    return max((e.number for e in entries), default=0) + 1


def allowed_at(entries: tuple[LedgerEntry, ...], boot_id: str, per_hour: int, per_boot: int) -> float | None:
    """Realtime, seconds, from which one more action is within the budget; None: not again in this boot."""
    done = actions(entries, boot_id)
    if len(done) >= per_boot:
        return None
    earliest, uncured = 0.0, _uncured(entries, done)
    if uncured:
        earliest = done[-1].at + min(MAX_BACKOFF_S, BACKOFF_S * 2.0 ** (uncured - 1))
    if len(done) >= per_hour:
        earliest = max(earliest, done[-per_hour].at + 3600.0)
    return earliest


def _uncured(entries: tuple[LedgerEntry, ...], done: tuple[LedgerEntry, ...]) -> int:
    """Actions in a row, up to the last one, that nobody saw cure anything."""
    count = 0
    for action in reversed(done):
        if outcome_of(entries, action) == CURED:
            break
        count += 1
    return count
