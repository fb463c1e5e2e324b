"""When this boot first reached each milestone: marks under /run, written once, read at every start.

They are only shown. The gate decides nothing by them; if one cannot be written, that time is lost.
"""

from __future__ import annotations

import logging

from ..core.common.paths import FIRST
from ..core.gate.states import Gate, Phase
from ..host.marks import read_mark, write_mark
from ..model.errors import ActionFailed
from ..model.finding import Diagnosis

log = logging.getLogger(__name__)

NAMES = ("look", "seen", "stable", "open", "registered")
"""The first cycle · NVML showed every GPU · it did so often enough · the gate opened · the node was
ready and the kubelet listed its GPUs."""


class Milestones:
    """When each was first reached in this boot: boottime, seconds."""

    def __init__(self) -> None:
        self.at: dict[str, float] = {}
        for name in NAMES:
            found = read_mark(f"{FIRST}{name}")
            if found is not None:
                self.at[name] = found.at

    def note(self, gate: Gate, diagnosis: Diagnosis, now: float, stable_probes: int) -> None:
        """Write the milestones that the cycle reached first. `now`: boottime of its snapshot."""
        true = {
            "look": True,
            "seen": bool(diagnosis.fingerprint),
            "stable": gate.good >= stable_probes,
            "open": gate.phase is Phase.OPEN,
            "registered": gate.ready and diagnosis.registered is not None,
        }
        for name in NAMES:
            if not true[name] or name in self.at:
                continue
            self.at[name] = now
            try:
                write_mark("/", f"{FIRST}{name}", gate.why, at=now)
            except ActionFailed as failed:
                log.debug("could not write a milestone: %s", failed.sentence)
