"""Outages of the API server: logged at begin and end; retries with growing random pauses."""

from __future__ import annotations

import logging
import random

from ..model.errors import ApiError

log = logging.getLogger(__name__)

FIRST_S, MOST_S, MOST_RETRY_AFTER_S = 1.0, 30.0, 300.0
FORGET_S = 60.0
"""A failure later than this after the last one starts again with the shortest pause."""
ORDINARY = (409, 410)
"""Conflict (another client wrote first) and Gone (the history has expired): the Node is read again.
Neither is an outage."""
NEXT_STEPS = {
    401: "is the token expired? /usr/share/doc/gpu-gate-node/barrier.md makes a new one",
    403: "its rights: /usr/share/doc/gpu-gate-node/examples/gpu-gate-node.yaml",
    404: "is that the node's name? kubectl get nodes, then [Node] Name=",
}


class Outage:
    """One kind of request, and whether it fails at present."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.sentence = ""
        """Why it fails; empty while it works."""
        self._since = 0.0
        self._failed_at = -FORGET_S
        self._pause_s = FIRST_S

    def failed(self, error: ApiError, now: float) -> float:
        """Record a failure; return the seconds to wait before the next try.

        The pause is random between its half and its whole, so that a fleet that lost its API
        server does not come back all at once.
        """
        if now - self._failed_at > FORGET_S:
            self._pause_s = FIRST_S
        pause_s = random.uniform(self._pause_s / 2, self._pause_s)  # noqa: S311
        self._failed_at, self._pause_s = now, min(MOST_S, self._pause_s * 2)
        if error.code in ORDINARY:
            return pause_s / 4
        step = NEXT_STEPS.get(error.code, "")
        sentence = f"{error}; {step}" if step else str(error)
        if not self.sentence:
            self._since = now
            log.warning("%s fails; retrying: %s", self.what, sentence)
        self.sentence = sentence
        return max(pause_s, min(error.retry_after_s, MOST_RETRY_AFTER_S))

    def ended(self, now: float) -> None:
        """Record a success."""
        if self.sentence:
            log.info("%s works again after %.0f s", self.what, now - self._since)
        self.sentence = ""
