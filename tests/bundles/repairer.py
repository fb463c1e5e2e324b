"""The repair that would follow from one snapshot."""

from __future__ import annotations

from agent.core.plugin import repair
from agent.model.actions import Rebuild, RestartUnit, SendHup
from agent.model.finding import Diagnosis
from agent.model.settings import Settings
from agent.model.snapshot import Snapshot

WORDS = {Rebuild: "rebuild", SendHup: "hup", RestartUnit: "restart-unit"}
AT_ONCE_S = 3.0


def would_do(snapshot: Snapshot, diagnosis: Diagnosis, settings: Settings) -> str:
    """While the node stays as it is, its GPUs having been stable for half a minute."""
    return and_when(snapshot, diagnosis, settings).removeprefix("later ")


def and_when(snapshot: Snapshot, diagnosis: Diagnosis, settings: Settings) -> str:
    """The same; "later …" where it would not be done at once."""
    now, memory = snapshot.clock.boottime, repair.RepairState()
    stable_since = now - 30 if diagnosis.fingerprint else None
    for _ in range(20):
        mended = repair.step(memory, diagnosis, stable_since, 0, now, settings)
        memory = mended.repair
        for action in mended.actions:
            return ("later " if now > snapshot.clock.boottime + AT_ONCE_S else "") + WORDS[
                type(action)
            ]
        if mended.wake_at is None:
            break
        now = max(mended.wake_at, now + 0.1)
    return "held" if memory.held else "none"
