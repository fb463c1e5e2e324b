"""The chain as text: what was seen before what we think, one line a condition, 80 columns where
they suffice."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

LINKS = {
    1: "PCI",
    2: "driver",
    3: "device nodes",
    4: "persistence",
    5: "NVML",
    6: "runtime",
    7: "kubelet",
    8: "plugin",
    9: "socket",
    10: "registration",
    11: "node",
    12: "workloads",
    13: "metrics",
    14: "alert",
}
COLUMNS = 78
_COLOURS = {"holds": "32", "fails": "31", "unknown": "33"}
_DIM = "2"


def wants_colour() -> bool:
    """On a terminal, unless NO_COLOR is set (no-color.org)."""
    return (
        sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    )


def chain(
    findings: Sequence[dict[str, Any]], colour: bool = False, broken: dict[str, Any] | None = None
) -> list[str]:
    """Lines for findings as JSON (the agent's, or encoded ones of our own). What comes after the
    broken link is dim: it follows."""
    broken = broken or next(
        (f for f in findings if f.get("verdict") == "fails" and f.get("blocks", True)), None
    )
    lines: list[str] = []
    for finding in findings:
        verdict = str(finding.get("verdict", "unknown"))
        blocks = bool(finding.get("blocks", True)) or finding == broken
        mark = {"holds": "HOLDS  ", "fails": "FAILS  " if blocks else "note   "}.get(
            verdict, "UNKNOWN"
        )
        link = int(finding.get("link", 0))
        follows = broken is not None and link > int(broken.get("link", 0))
        if colour and not follows:
            mark = painted(mark, _COLOURS.get(verdict, "0"))
        age_s = finding.get("age_s") or 0
        age = f" ({age_s:.0f} s ago)" if age_s >= 1 else ""
        part = wrapped(
            f"{link:>2} {LINKS.get(link, '?'):<13}{mark} ",
            str(finding.get("because", "")) + age,
            24,
        )
        if finding == broken and finding.get("next_step"):
            part += wrapped(" " * 24 + "next: ", str(finding["next_step"]), 30)
        lines += [painted(line, _DIM) for line in part] if colour and follows else part
    return lines


def painted(text: str, code: str) -> str:
    return f"\033[{code}m{text}\033[0m"


def printable(text: str) -> str:
    """Text that may have come from anywhere (a bundle, a file's name), safe on a terminal."""
    return "".join(c if c.isprintable() else "?" for c in text).encode("utf-8", "replace").decode()


def wrapped(head: str, text: str, indent: int) -> list[str]:
    """`head` and the text, in lines of COLUMNS; `indent` is theirs from the second on. A word that
    is too long stays whole: it may be a path to be pasted."""
    parts = textwrap.wrap(
        printable(text), COLUMNS - indent, break_long_words=False, break_on_hyphens=False
    ) or [""]
    return [head + parts[0], *(" " * indent + part for part in parts[1:])]


def verdict_line(gate: dict[str, Any]) -> str:
    """One line: may GPU work start here?"""
    phase, why = gate.get("phase", "?"), gate.get("ready_why") or gate.get("why", "")
    return printable(f"{'READY' if gate.get('ready') else 'NOT READY'} ({phase}): {why}")
