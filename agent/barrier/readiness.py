"""The agent's word about readiness: yes, no, or "not known", each with its reason.

Three values, because two of them are treated differently: a broken link closes the barrier at once,
while "not known" (an agent that starts, probes that settle, no answer) lets the last word stand for
WithdrawAfterSec.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..model.finding import ELSEWHERE

MESSAGE_CHARS = 300


@dataclass(frozen=True, slots=True)
class Word:
    """What the agent says about readiness."""

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


def silent(sentence: str) -> Word:
    """The agent gave no answer."""
    return Word(None, "AgentSilent", sentence)


def from_status(status: Mapping[str, Any]) -> Word:
    """The word in the agent's /status. What is missing there leaves us not knowing."""
    gate, cycle = _object(status.get("gate")), _object(status.get("cycle"))
    age_s, most_s = cycle.get("age_s"), cycle.get("overdue_after_s")
    if (
        not isinstance(age_s, (int, float))
        or not isinstance(most_s, (int, float))
        or age_s > most_s
    ):
        return Word(None, "CycleOverdue", "what the agent last saw is too old")
    message = str(gate.get("ready_why") or gate.get("why") or "")[:MESSAGE_CHARS]
    if gate.get("ready") is True:
        return Word(True, "Ready", message)
    reason = str(gate.get("reason") or "")
    listed = status.get("findings")
    blocking = [
        f
        for f in map(_object, listed if isinstance(listed, list) else ())
        if f.get("blocks") is True and f.get("link") not in ELSEWHERE
    ]
    for verdict, ready in (("fails", False), ("unknown", None)):
        for finding in blocking:
            if finding.get("verdict") == verdict:
                return Word(ready, str(finding.get("reason") or reason or "NotReady"), message)
    return Word(False if gate.get("phase") == "BLOCKED" else None, reason or "NotVerified", message)


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
