"""Which action rests: one that failed, or that had no effect, is not asked of its hand again at
once. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ..model.actions import Action, Release

RETRY_S = 60.0
RELEASE_RETRY_S = 2.0


class ActionBackoff:
    """The memory of one agent. Instants are boottime, seconds."""

    def __init__(self) -> None:
        self._until: dict[Action, float] = {}
        self._done: set[Action] = set()
        "what the last step did: asked for again, it had no effect"

    def due(
        self, actions: Sequence[Action], stalled: bool, now: float
    ) -> tuple[list[Action], list[Action]]:
        """Of these: what is to be done now, and what had no effect and rests from now on. A look
        that `stalled` has seen no effect of any hand, and says nothing of it."""
        # What is no longer asked for has come about by other hands: it may be asked for anew.
        self._until = {a: until for a, until in self._until.items() if a in actions and until > now}
        again = [a for a in actions if a in self._done and a not in self._until]
        if not stalled:
            self._until.update(dict.fromkeys(again, now + RETRY_S))
            self._done = set()
        due = [a for a in actions if a not in self._until and a not in self._done]
        return due, [] if stalled else again

    def done(self, action: Action) -> None:
        self._done.add(action)

    def failed(self, action: Action, now: float) -> None:
        self._until[action] = now + (RELEASE_RETRY_S if isinstance(action, Release) else RETRY_S)
