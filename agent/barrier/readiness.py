"""The agent's readiness: ready, not ready or unknown, each with its reason.

Not ready and unknown are treated differently: a broken link closes the barrier at once, while an
unknown state (the agent starts, probes settle, no answer) keeps the last one for WithdrawAfterSec.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..model.finding import ELSEWHERE

MESSAGE_CHARS = 300


@dataclass(frozen=True, slots=True)
class AgentReadiness:
    """What the agent reports about readiness."""

    ready: bool | None
    """None: unknown."""
    reason: str
    """A reason of docs/reasons.md."""
    message: str

    @property
    def line(self) -> str:
        """Reason and message in one printable line."""
        text = self.message if self.ready else f"{self.reason}: {self.message}"
        return "".join(c if c.isprintable() else "?" for c in text)


def no_answer(sentence: str) -> AgentReadiness:
    """The agent gave no answer."""
    return AgentReadiness(None, "AgentSilent", sentence)


def from_status(status: Mapping[str, Any]) -> AgentReadiness:
    """Read the agent's /status. What is missing there makes readiness unknown."""
    gate = _object(status.get("gate"))
    if _is_overdue(_object(status.get("cycle"))):
        return AgentReadiness(None, "CycleOverdue", "the agent's last cycle is too old")
    message = str(gate.get("ready_why") or gate.get("why") or "")[:MESSAGE_CHARS]
    if gate.get("ready") is True:
        return AgentReadiness(True, "Ready", message)
    reason = str(gate.get("reason") or "")
    blocking = _blocking(status.get("findings"))
    for verdict, ready in (("fails", False), ("unknown", None)):
        for finding in blocking:
            if finding.get("verdict") == verdict:
                return AgentReadiness(
                    ready, str(finding.get("reason") or reason or "NotReady"), message
                )
    return AgentReadiness(
        False if gate.get("phase") == "BLOCKED" else None, reason or "NotVerified", message
    )


def _is_overdue(cycle: Mapping[str, Any]) -> bool:
    age_s, limit_s = cycle.get("age_s"), cycle.get("overdue_after_s")
    if isinstance(age_s, (int, float)) and isinstance(limit_s, (int, float)):
        return age_s > limit_s
    return True


def _blocking(findings: Any) -> list[Mapping[str, Any]]:
    """The findings of this node that block readiness."""
    listed = map(_object, findings if isinstance(findings, list) else ())
    return [f for f in listed if f.get("blocks") is True and f.get("link") not in ELSEWHERE]


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
