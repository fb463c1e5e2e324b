"""Whether gpu-gate is paused: by a person, or while work on the GPUs must not be disturbed."""

from __future__ import annotations

from ...model.condition import Condition, Link
from ...model.finding import Finding, Pause, Verdict
from ...model.reading import Refusal, Seen
from ...model.reason import Reason
from ...model.settings import Settings
from ...model.snapshot import Snapshot


def find(snapshot: Snapshot, settings: Settings) -> Pause | None:
    """The pause in force, None where there is none. A mark that exists and cannot be read pauses as
    well: somebody made it."""
    mark = snapshot.boot.paused
    if isinstance(mark, Seen):
        if not mark.value.until:
            return Pause(f"paused: {mark.value.reason}", None, True)
        if snapshot.clock.boottime < mark.value.until:
            return Pause(f"paused: {mark.value.reason}", mark.value.until, True)
    elif isinstance(mark, Refusal) and mark.is_telling and not mark.is_missing:
        return Pause(
            f"paused: /run/gpu-gate/paused is there and could not be read ({mark})", None, True
        )
    units = snapshot.boot.units.value_or(())
    working = [u.name for u in units if u.name in settings.pause_while and u.active == "activating"]
    return Pause(f"paused while {working[0]} is starting", None, False) if working else None


def findings(snapshot: Snapshot, pause: Pause | None) -> tuple[Finding, ...]:
    if pause is None:
        return ()
    left = (
        f" for {pause.until - snapshot.clock.boottime:.0f} s more"
        if pause.until is not None
        else ""
    )
    return (
        Finding(
            Link.NVML,
            Condition.NOT_PAUSED,
            Verdict.FAILS,
            f"{pause.why}{left}: no probe, no action",
            Reason.PAUSED if pause.by_person else Reason.PAUSED_FOR_WORK,
            blocks=False,
            next_step="gpu-gate resume" if pause.by_person else "",
        ),
    )
