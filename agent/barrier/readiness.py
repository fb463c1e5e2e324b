"""The agent's readiness: yes, no, or "not known", each with its reason.

Three values, because two of them are treated differently: a broken link closes the barrier at once,
while "not known" (an agent that starts, probes that settle, no answer) keeps the last state for
WithdrawAfterSec.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..model.finding import ELSEWHERE

MESSAGE_CHARS = 300


@dataclass(frozen=True, slots=True)
class AgentReadiness:
    """May GPU work start, as the agent reports it?"""

    ready: bool | None
    "None: not known"
    reason: str
    "a word of docs/reasons.md"
    message: str

    @property
    def line(self) -> str:
        """Reason and message in one printable line."""
        text = self.message if self.ready else f"{self.reason}: {self.message}"
        return "".join(c if c.isprintable() else "?" for c in text)


def silent(sentence: str) -> AgentReadiness:
    """The agent gave no answer."""
    return AgentReadiness(None, "AgentSilent", sentence)


def from_status(status: Mapping[str, Any]) -> AgentReadiness:
    """The readiness in the agent's /status. What is missing there leaves it not known."""
    gate, cycle = _object(status.get("gate")), _object(status.get("cycle"))
    if not _is_fresh(cycle.get("age_s"), cycle.get("overdue_after_s")):
        return AgentReadiness(None, "CycleOverdue", "the agent's last cycle is too old")
    message = str(gate.get("ready_why") or gate.get("why") or "")[:MESSAGE_CHARS]
    if gate.get("ready") is True:
        return AgentReadiness(True, "Ready", message)
    reason = str(gate.get("reason") or "")
    blocking = _blocking(status.get("findings"))
    for verdict, ready in (("fails", False), ("unknown", None)):
        found = next((f for f in blocking if f.get("verdict") == verdict), None)
        if found is not None:
            return AgentReadiness(ready, str(found.get("reason") or reason or "NotReady"), message)
    is_blocked = gate.get("phase") == "BLOCKED"
    return AgentReadiness(False if is_blocked else None, reason or "NotVerified", message)


def _is_fresh(age_s: object, limit_s: object) -> bool:
    numbers = isinstance(age_s, (int, float)) and isinstance(limit_s, (int, float))
    return numbers and age_s <= limit_s  # type: ignore[operator]


def _blocking(findings: object) -> list[Mapping[str, Any]]:
    """Findings that close readiness and that this node answers for."""
    rows = map(_object, findings if isinstance(findings, list) else ())
    return [f for f in rows if f.get("blocks") is True and f.get("link") not in ELSEWHERE]


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
