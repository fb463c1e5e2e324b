"""The last actions of this agent that changed the node, and their outcomes, for people."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, replace

from ..model.access import GrantResult
from ..model.actions import (
    DISRUPTIVE,
    Action,
    CheckAccess,
    DropProbe,
    GrantDevices,
    NoteOutcome,
    StartProbe,
)

MOST_ACTIONS = 20
_QUIET = (StartProbe, DropProbe, CheckAccess, NoteOutcome, GrantDevices)
"""They change nothing on the node, or are reported by their result."""


@dataclass(frozen=True)
class Done:
    """An action of this agent's life."""

    at: float
    "realtime, seconds"
    kind: str
    why: str
    outcome: str
    number: int = 0
    "of a disruptive one, in the ledger"
    target: str = ""
    "the container that devices were named for"


class ActionHistory:
    """The last actions, and how many there were."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        "(kind, done or failed)"
        self.recent: deque[Done] = deque(maxlen=MOST_ACTIONS)

    def note(self, action: Action, at: float, failed: str = "") -> bool:
        """`failed`: why it did not take. False where the last one of its kind came to the very
        same."""
        kind = type(action).__name__
        self.counts[kind, "failed" if failed else "done"] += 1
        if isinstance(action, _QUIET):
            return True
        done = Done(
            round(at, 3),
            kind,
            action.sentence,
            f"failed: {failed}" if failed else "done",
            action.number if isinstance(action, DISRUPTIVE) else 0,
        )
        last = next((earlier for earlier in reversed(self.recent) if earlier.kind == kind), None)
        self._keep(done)
        return last is None or replace(last, at=done.at) != done

    def added(self, done: tuple[GrantResult, ...], at: float) -> None:
        """Devices were named in scopes' lists."""
        for one in done:
            if one.lost:
                outcome = (
                    f"failed: lost {', '.join(one.lost)}; nothing is added any more in this boot"
                )
            elif one.problem:
                outcome = f"failed: {one.problem}"
            elif one.given_back:
                outcome = f"given back: {', '.join(one.given_back)}"
            elif one.named:
                outcome = f"done: {len(one.named)} device nodes named"
            else:
                continue
            self._keep(
                Done(
                    round(at, 3),
                    GrantDevices.__name__,
                    f"named what {one.who} may open in its scope's "
                    "DeviceAllow=, so that a daemon-reload takes nothing away",
                    outcome,
                    target=one.container_id,
                )
            )

    def _keep(self, done: Done) -> None:
        if (
            self.recent and replace(self.recent[-1], at=done.at) == done
        ):  # tried again and again: said once
            self.recent.pop()
        self.recent.append(done)
