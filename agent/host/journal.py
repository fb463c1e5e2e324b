"""What gpu-gate asks of the journal. Each question is one run of journalctl with a deadline."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from ..core.common import parse
from ..core.doctor.journal import REQUEST
from ..transport.clock import boottime
from ..transport.process import Outcome, run_once

EVIDENCE_LINES, EVIDENCE_BYTES = 3000, 2 << 20
EVIDENCE_WITHIN_S = 3.0
RELOAD_LINES = 2000
RELOAD_WITHIN_S = 5.0
BEFORE_S, AFTER_S = 60.0, 2.0
"""systemd logs who requested a reload before it loads units; its timestamp of the load is later."""


async def entries(
    fields: Sequence[str],
    matches: Sequence[str],
    since: float,
    until: float,
    lines: int,
    within_s: float,
    limit_bytes: int = 1 << 20,
) -> Outcome:
    """Entries of this boot, one JSON object a line, the newest `lines` of them; `since` and `until`
    are Unix times in seconds."""
    return await run_once(
        [
            *("journalctl", "-q", "-b", "--no-pager", "-o", "json", "-n", str(lines)),
            f"--output-fields={','.join(fields)}",
            f"--since=@{since:.0f}",
            f"--until=@{until:.0f}",
            *matches,
        ],
        within_s,
        limit_bytes,
    )


async def as_evidence(units: Sequence[str]) -> bytes:
    """The end of this boot's journal as text: the kernel and these units. Where journalctl fails,
    the reason stands in its place: a missing journal is evidence too, and stops no repair."""
    matches = ["_TRANSPORT=kernel"]
    for unit in units:
        matches += ["+", f"_SYSTEMD_UNIT={unit}"]
    ended = await run_once(
        [
            *("journalctl", "--no-pager", "-b", "-n", str(EVIDENCE_LINES)),
            *("-o", "short-iso-precise", *matches),
        ],
        EVIDENCE_WITHIN_S,
        EVIDENCE_BYTES,
    )
    return ended.out or f"no journal: {ended.sentence or ended.err}\n".encode()


async def reload_requested_by(reload_at: float) -> str:
    """Who requested the daemon-reload at this boottime: "client PID 1234 ('systemctl') (unit
    session-1.scope)"; empty where the journal does not show it."""
    at = reload_at - boottime() + time.time()
    ended = await entries(
        ["MESSAGE"], ["_PID=1"], at - BEFORE_S, at + AFTER_S, RELOAD_LINES, RELOAD_WITHIN_S
    )
    return newest_request(ended.out.splitlines()) if ended.kind is None else ""


def newest_request(lines: Iterable[bytes]) -> str:
    """The last reload request among these JSON entries."""
    found = ""
    for line in lines:
        message = (parse.json_object(line) or {}).get("MESSAGE")
        request = REQUEST.search(message) if isinstance(message, str) else None
        found = request.group(1).rstrip(".")[:200] if request else found
    return found
