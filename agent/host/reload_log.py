"""Who asked for a daemon-reload, by systemd's own line in the journal. Read only when a loss was
found."""

from __future__ import annotations

import time
from collections.abc import Iterable

from ..core.common import parse
from ..core.doctor.journal import REQUEST
from ..transport.clock import boottime
from ..transport.process import run_once

WITHIN_S = 5.0
LINES = 2000
BEFORE_S, AFTER_S = 60.0, 2.0
"""systemd says who asked before it loads units; its stamp of the load lies after."""


async def asked_by(reload_at: float) -> str:
    """client PID 1234 ('systemctl') (unit session-1.scope), or ""; `reload_at` is boottime."""
    at = reload_at - boottime() + time.time()
    argv = [
        "journalctl",
        "-q",
        "-b",
        "--no-pager",
        "-o",
        "json",
        "--output-fields=MESSAGE",
        "-n",
        str(LINES),
        "_PID=1",
        f"--since=@{at - BEFORE_S:.0f}",
        f"--until=@{at + AFTER_S:.0f}",
    ]
    ended = await run_once(argv, WITHIN_S)
    return newest(ended.out.splitlines()) if not ended.word else ""


def newest(lines: Iterable[bytes]) -> str:
    """The last request among journal entries (journalctl -o json)."""
    found = ""
    for line in lines:
        message = (parse.json_object(line) or {}).get("MESSAGE")
        request = REQUEST.search(message) if isinstance(message, str) else None
        found = request.group(1)[:200] if request else found
    return found
