"""The chain as text: one entry per condition, at most 80 columns where possible."""

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
_MARKS = {"holds": "HOLDS  ", "fails": "FAILS  "}
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
    first_link = int(broken.get("link", 0)) if broken else max(LINKS)
    lines: list[str] = []
    for finding in findings:
        follows = int(finding.get("link", 0)) > first_link
        part = _entry(finding, finding == broken, colour and not follows)
        lines += [painted(line, _DIM) for line in part] if colour and follows else part
    return lines


def _entry(finding: dict[str, Any], is_broken: bool, colour: bool) -> list[str]:
    """The lines of one finding."""
    verdict, link = str(finding.get("verdict", "unknown")), int(finding.get("link", 0))
    mark = _MARKS.get(verdict, "UNKNOWN")
    if verdict == "fails" and not is_broken and not finding.get("blocks", True):
        mark = "note   "
    if colour:
        mark = painted(mark, _COLOURS.get(verdict, "0"))
    age_s = finding.get("age_s") or 0
    age = f" ({age_s:.0f} s ago)" if age_s >= 1 else ""
    because = f"{finding.get('because', '')}{age}"
    lines = wrapped(f"{link:>2} {LINKS.get(link, '?'):<13}{mark} ", because, 24)
    if is_broken and finding.get("next_step"):
        lines += wrapped(" " * 24 + "next: ", str(finding["next_step"]), 30)
    return lines


def painted(text: str, code: str) -> str:
    return f"\033[{code}m{text}\033[0m"


def printable(text: str) -> str:
    """Text that may have come from anywhere (a bundle, a file's name), safe on a terminal."""
    return "".join(c if c.isprintable() else "?" for c in text).encode("utf-8", "replace").decode()


def wrapped(head: str, text: str, indent: int) -> list[str]:
    """Wrap `head` and the text to COLUMNS; lines after the first are indented by `indent`. A long
    word is not broken: it may be a path to paste."""
    parts = textwrap.wrap(
        printable(text), COLUMNS - indent, break_long_words=False, break_on_hyphens=False
    ) or [""]
    return [head + parts[0], *(" " * indent + part for part in parts[1:])]


def verdict_line(gate: dict[str, Any]) -> str:
    """One line: may GPU work start here?"""
    phase, why = gate.get("phase", "?"), gate.get("ready_why") or gate.get("why", "")
    return printable(f"{'READY' if gate.get('ready') else 'NOT READY'} ({phase}): {why}")
