"""Which actions wait: one that failed, or that had no effect, is not tried again at once. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ..model.actions import Action, Release

RETRY_S = 60.0
RELEASE_RETRY_S = 2.0


class ActionBackoff:
    """The memory of one engine. Instants are boottime, seconds."""

    def __init__(self) -> None:
        self._until: dict[Action, float] = {}
        self._done: set[Action] = set()
        "what the last cycle did: asked for again, it had no effect"

    def due(
        self, actions: Sequence[Action], is_stalled: bool, now: float
    ) -> tuple[list[Action], list[Action]]:
        """Of these actions: those to execute now, and those that had no effect and wait from now
        on. A collection that stalled shows no effect of any action, and proves nothing."""
        # An action that is no longer asked for was done by somebody else: it may be due again.
        self._until = {a: until for a, until in self._until.items() if a in actions and until > now}
        again = [a for a in actions if a in self._done and a not in self._until]
        if not is_stalled:
            self._until.update(dict.fromkeys(again, now + RETRY_S))
            self._done = set()
        due = [a for a in actions if a not in self._until and a not in self._done]
        return due, [] if is_stalled else again

    def done(self, action: Action) -> None:
        self._done.add(action)

    def failed(self, action: Action, now: float) -> None:
        self._until[action] = now + (RELEASE_RETRY_S if isinstance(action, Release) else RETRY_S)
