"""The ledger of disruptive actions, read: what was done, for which cause, and what may still be
done.

Its lines are written by host/ledger.py, fsynced before anything is done.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ...model.host import Host
from ...model.reading import Reading, Refusal, Seen
from ...model.runtime import LedgerEntry
from ..common import parse
from ..common.files import parsed
from ..common.paths import STATE

OUTCOME = "outcome"
NVML_FAILED = "nvml-failed"
"""NVML failed after the action of that number: a later failure of the plugin is news."""
HUP = "hup"
CURED = "the kubelet lists every GPU"
LASTS_S = 3600.0
"""What was cured and is as it was after so long has happened anew (a daemon-reload each night);
before, it never was cured."""
NOT_CURED = "not cured"
REPAIR_FAILED = "failed"
"""How the outcome of an action begins that failed and changed nothing."""
BACKOFF_S = 60.0
"""After an action that did not cure; doubled with each further one."""
MAX_BACKOFF_S = 3600.0
MAX_TRY_S = 300.0
"""The same after one that failed: it changed nothing, and the runtime may be well again any
time."""


async def collect(host: Host) -> Reading[tuple[LedgerEntry, ...]]:
    """The disruptive actions of this node. No ledger yet is an empty one; a torn one is a
    refusal."""
    found = parsed(await host.tail(f"{STATE}/ledger.jsonl", 1 << 20), read, "the ledger")
    if isinstance(found, Refusal) and found.is_missing:
        return Seen((), 0.0)
    return found


def read(data: bytes) -> tuple[LedgerEntry, ...] | None:
    """The entries of the ledger, one JSON object a line. A last line that was cut off by a power
    failure is left out: it was not fsynced, so nothing was done for it. Any other line that is none
    makes the ledger unreadable."""
    lines = data.decode("utf-8", "replace").splitlines(keepends=True)
    entries = []
    for line in lines:
        if not line.endswith("\n"):
            continue
        stored = parse.json_object(line.encode())
        try:
            if stored is None or not math.isfinite(stored["at"]):
                return None
            since_boot = stored.get("boottime")  # lines of an earlier version have none
            if since_boot is not None and not math.isfinite(since_boot):
                return None
            entries.append(
                LedgerEntry(
                    float(stored["at"]),
                    str(stored["boot_id"]),
                    int(stored["number"]),
                    str(stored["what"]),
                    str(stored["target"]),
                    str(stored["cause"]),
                    str(stored["evidence"]),
                    str(stored["outcome"]),
                    None if since_boot is None else float(since_boot),
                )
            )
        except (KeyError, TypeError, ValueError, OverflowError):
            return None
    return tuple(entries)


def by_this_clock(
    entries: tuple[LedgerEntry, ...], boot_id: str, offset: float
) -> tuple[LedgerEntry, ...]:
    """With the times of this boot's as the clock would tell them now, `offset` being realtime less
    boottime: one that was set since must neither shorten a pause nor make one of eight hours."""
    return tuple(
        replace(e, at=e.boottime + offset) if e.boottime is not None and e.boot_id == boot_id else e
        for e in entries
    )


def actions(entries: tuple[LedgerEntry, ...], boot_id: str) -> tuple[LedgerEntry, ...]:
    """The actions of this boot, oldest first."""
    return tuple(
        e for e in entries if e.boot_id == boot_id and e.what not in (OUTCOME, NVML_FAILED)
    )


def outcome_of(entries: tuple[LedgerEntry, ...], action: LedgerEntry) -> str:
    """How an action ended, by the last word on it; "" where nobody wrote one down yet."""
    return next(
        (e.outcome for e in reversed(entries) if e.what == OUTCOME and e.number == action.number),
        "",
    )


def did_take(entries: tuple[LedgerEntry, ...], action: LedgerEntry) -> bool:
    """False only where it was written down that the action changed nothing."""
    return not outcome_of(entries, action).startswith(REPAIR_FAILED)


def lasts_until(entries: tuple[LedgerEntry, ...], action: LedgerEntry) -> float | None:
    """Realtime, seconds, from which the same trouble is another one than what this action cured;
    None: it did not."""
    cured = [
        e.at
        for e in entries
        if e.what == OUTCOME and e.number == action.number and e.outcome == CURED
    ]
    return cured[-1] + LASTS_S if cured else None


def nvml_failed_since(entries: tuple[LedgerEntry, ...], action: LedgerEntry) -> bool:
    return any(e.what == NVML_FAILED and e.number >= action.number for e in entries)


def next_number(entries: tuple[LedgerEntry, ...]) -> int:
    return max((e.number for e in entries), default=0) + 1


def is_next_rung(done: tuple[LedgerEntry, ...], cause: str, target: str) -> bool:
    """The last action was a SIGHUP for this very cause and container: what follows is the same
    attempt."""
    return (
        bool(done) and done[-1].what == HUP and (done[-1].cause, done[-1].target) == (cause, target)
    )


def allowed_at(
    entries: tuple[LedgerEntry, ...], boot_id: str, per_hour: int, per_boot: int
) -> float | None:
    """Realtime, seconds, from which one more action is within the budget; None: not again in this
    boot. What did not take is not charged, but it is not tried again at once."""
    tries = _tries(actions(entries, boot_id))
    charged = [a for a in tries if did_take(entries, a)]
    if len(charged) >= per_boot:
        return None
    earliest, uncured = 0.0, _uncured(entries, tries)
    if uncured:
        limit = MAX_BACKOFF_S if did_take(entries, tries[-1]) else MAX_TRY_S
        earliest = tries[-1].at + min(limit, BACKOFF_S * 2.0 ** (uncured - 1))
    if len(charged) >= per_hour:
        earliest = max(earliest, charged[-per_hour].at + 3600.0)
    return earliest


def _tries(done: tuple[LedgerEntry, ...]) -> list[LedgerEntry]:
    """A ladder counts once, by its last rung."""
    return [
        a
        for a, after in zip(done, (*done, None)[1:], strict=True)
        if after is None or not is_next_rung((a,), after.cause, after.target)
    ]


def _uncured(entries: tuple[LedgerEntry, ...], tries: list[LedgerEntry]) -> int:
    """Attempts in a row, up to the last one, that nobody saw cure anything."""
    count = 0
    for action in reversed(tries):
        if outcome_of(entries, action) == CURED:
            break
        count += 1
    return count
