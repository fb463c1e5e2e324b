"""Trouble with the API server: told when it begins and when it ends, and waited out with growing,
random pauses."""

from __future__ import annotations

import logging
import random

from ..model.errors import ApiError

log = logging.getLogger(__name__)

FIRST_S, MOST_S, MOST_RETRY_AFTER_S = 1.0, 30.0, 300.0
FORGET_S = 60.0
"""Troubles further apart than this have nothing to do with each other."""
ORDINARY = (409, 410)
"""Somebody else wrote first, or the history is gone: the Node is read again, and that is no
outage."""
NEXT_STEPS = {
    401: "is the token expired? /usr/share/doc/gpu-gate-node/barrier.md makes a new one",
    403: "its rights: /usr/share/doc/gpu-gate-node/examples/gpu-gate-node.yaml",
    404: "is that the node's name? kubectl get nodes, then [Node] Name=",
}


class Outage:
    """One kind of request, and whether it is refused at present."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.sentence = ""
        "why it is refused; empty while it is not"
        self._since = 0.0
        self._failed_at = -FORGET_S
        self._pause_s = FIRST_S

    def failed(self, trouble: ApiError, now: float) -> float:
        """Seconds to wait. A fleet that lost its API server must not come back all at once: the
        pause is random, from half of it on."""
        if now - self._failed_at > FORGET_S:
            self._pause_s = FIRST_S
        pause_s = random.uniform(self._pause_s / 2, self._pause_s)  # noqa: S311
        self._failed_at, self._pause_s = now, min(MOST_S, self._pause_s * 2)
        if trouble.code in ORDINARY:
            return pause_s / 4
        step = NEXT_STEPS.get(trouble.code, "")
        sentence = f"{trouble}; {step}" if step else str(trouble)
        if not self.sentence:
            self._since = now
            log.warning("%s does not work, and is tried again: %s", self.what, sentence)
        self.sentence = sentence
        return max(pause_s, min(trouble.retry_after_s, MOST_RETRY_AFTER_S))

    def ended(self, now: float) -> None:
        """It worked."""
        if self.sentence:
            log.info("%s works again after %.0f s", self.what, now - self._since)
        self.sentence = ""
