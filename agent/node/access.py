"""The access probe, run beside the cycle: its program, its deadline, and what its line means."""

from __future__ import annotations

import errno
import sys
from pathlib import Path

from ..core import parse
from ..model.reading import Reading, Refusal, Seen, Why
from ..model.runtime import Access
from ..wire.child import run_once
from .probes import boottime

PROGRAM = Path(__file__).with_name("access_probe.py")
WITHIN_S = 3.0
GRACE_S = 0.5
ANSWER_BYTES = 1 << 16

_GONE = (errno.ENOENT, errno.ENODEV, errno.ESRCH)


async def ask(pid: int, path: str) -> Reading[Access]:
    """May this process open this device node now? 4.5 s at the latest."""
    argv = [sys.executable, "-I", "-S", str(PROGRAM), "--pid", str(pid), path]
    ended = await run_once(argv, WITHIN_S, ANSWER_BYTES, grace_s=GRACE_S)
    if ended.word == "hung":
        return Refusal(Why.TIMED_OUT, ended.detail)
    if ended.word or ended.code != 0:
        # A broken program of ours says nothing about the node.
        return Refusal(Why.NOT_ASKED, f"the access probe broke: {ended.detail or ended.err or ended.code}")
    return access_of(ended.out, pid, path, boottime())


def access_of(line: bytes, pid: int, path: str, at: float) -> Reading[Access]:
    """The access in the program's line about this process and node; a line that is none says nothing."""
    said = parse.json_object(line)
    try:
        if said is None or said["v"] != 1 or said["pid"] != pid:
            raise ValueError("another version or process")
        (answer,) = said["answers"]
        access, detail, number, way = answer["access"], answer["detail"], answer["errno"], said["way"]
        if answer["path"] != path or type(number) is not int or type(detail) is not str or type(way) is not str:
            raise ValueError("another node, or parts of another kind")
        if access not in ("allowed", "denied", "unknown") or (access != "unknown" and not way):
            raise ValueError(f"access {access!r} by {way!r}")
    except (KeyError, TypeError, ValueError) as exc:
        return Refusal(Why.NOT_ASKED, f"the access probe printed junk ({exc}): {line[:80]!r}")
    if access == "unknown":
        return Refusal(Why.MISSING if number in _GONE else Why.NOT_PERMITTED, detail)
    return Seen(Access(path, access == "allowed", way), at)
