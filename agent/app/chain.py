"""The chain as text: what was seen before what we think, one line a condition, 80 columns where they suffice."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

LINKS = {
    1: "PCI", 2: "driver", 3: "device nodes", 4: "persistence", 5: "NVML", 6: "runtime", 7: "kubelet",
    8: "plugin", 9: "socket", 10: "registration", 11: "node", 12: "workloads", 13: "metrics", 14: "alert",
}
_COLOURS = {"holds": "32", "fails": "31", "unknown": "33"}
_WIDTH = 78


def chain(findings: Sequence[dict[str, Any]], colour: bool = False) -> list[str]:
    """Lines for findings as JSON (the agent's, or encoded ones of our own)."""
    lines, broken = [], False
    for finding in findings:
        verdict = str(finding.get("verdict", "unknown"))
        blocks = bool(finding.get("blocks", True))
        mark = {"holds": "HOLDS  ", "fails": "FAILS  " if blocks else "note   "}.get(verdict, "UNKNOWN")
        if colour and not (broken and verdict != "holds"):
            mark = f"\033[{_COLOURS.get(verdict, '0')}m{mark}\033[0m"
        link = int(finding.get("link", 0))
        head = f"{link:>2} {LINKS.get(link, '?'):<13}{mark} "
        age_s = finding.get("age_s") or 0
        age = f" ({age_s:.0f} s ago)" if age_s >= 1 else ""
        lines += _wrapped(head, str(finding.get("because", "")) + age, 24)
        if verdict == "fails" and blocks and not broken:
            broken = True
            if finding.get("next_step"):
                lines += _wrapped(" " * 24 + "next: ", str(finding["next_step"]), 30)
    return lines


def printable(text: str) -> str:
    """Text that may have come from anywhere (a bundle, a file's name), safe on a terminal."""
    return "".join(c if c.isprintable() else "?" for c in text).encode("utf-8", "replace").decode()


def _wrapped(head: str, text: str, indent: int) -> list[str]:
    parts = textwrap.wrap(printable(text), _WIDTH - indent, break_long_words=False, break_on_hyphens=False) or [""]
    return [head + parts[0], *(" " * indent + part for part in parts[1:])]


def verdict_line(gate: dict[str, Any]) -> str:
    """One line: may GPU work start here?"""
    phase, why = gate.get("phase", "?"), gate.get("ready_why") or gate.get("why", "")
    return printable(f"{'READY' if gate.get('ready') else 'NOT READY'} ({phase}): {why}")
