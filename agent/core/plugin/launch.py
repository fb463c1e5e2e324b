"""What is done once NVML is stable and before GPU work starts: the CDI spec written again, the
plugin launched.

Pure, beside the gate as core/plugin/repair.py is. Its memory may be lost at any moment: a spec is
then refreshed once more, and whether the plugin was launched is read from its mark.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...model.actions import Action, RefreshCdi
from ...model.cdi import Refresh
from ...model.finding import Diagnosis
from ..common.watched import CDI_UNIT

CDI_WITHIN_S = 20.0
"""The kubelet's release waits at most so long for a CDI spec: nvidia-ctk takes 1 to 3 s where the
driver is kept initialised, and a node without a spec still does all the work that needs no GPU."""
AGAIN_S = 60.0
TRIES = 3
"""Where the unit was asked and never ran (D-Bus away, a condition that does not hold)."""


@dataclass(frozen=True, slots=True)
class Launch:
    """The memory."""

    evidence: str = ""
    "what the CDI unit was last asked to mend"
    invocation: str = ""
    "of that unit, when it was asked"
    asked_at: float = 0.0
    tries: int = 0
    launched_at: float | None = None
    "boottime when the plugin was last launched: its mark may take a while"


@dataclass(frozen=True, slots=True)
class Launched:
    """What one look decided."""

    launch: Launch
    actions: tuple[Action, ...] = ()
    holds: str = ""
    "why the release, and the plugin, still wait"
    wake_at: float | None = None


def step(launch: Launch, diagnosis: Diagnosis, open_since: float | None, now: float) -> Launched:
    """`open_since`: boottime since which NVML is stable, None while it is not."""
    if open_since is None or diagnosis.paused:
        return Launched(launch)
    refresh = diagnosis.refresh
    if refresh is None:
        return _launched(replace(launch, evidence="", tries=0), diagnosis, now)
    is_new = refresh.evidence != launch.evidence
    ran = not is_new and not refresh.is_running and refresh.invocation != launch.invocation
    actions: tuple[Action, ...] = ()
    if _is_due(launch, refresh, is_new, ran, now):
        launch = replace(
            launch,
            evidence=refresh.evidence,
            invocation=refresh.invocation,
            asked_at=now,
            tries=1 if is_new else launch.tries + 1,
        )
        actions = (RefreshCdi(CDI_UNIT, refresh.because),)
    until = open_since + CDI_WITHIN_S
    awaited = bool(actions) or refresh.is_running or not (is_new or ran)
    if awaited and now < until:
        return Launched(
            launch, actions, f"{CDI_UNIT} is to repair the CDI spec: {refresh.because}", until
        )
    after = _launched(launch, diagnosis, now)
    return replace(after, actions=actions + after.actions)


def _is_due(launch: Launch, refresh: Refresh, is_new: bool, ran: bool, now: float) -> bool:
    """Once for what is wrong; again only where it never ran, and never while it runs by another's
    hand."""
    if refresh.is_running or ran or (launch.asked_at and now < launch.asked_at + AGAIN_S):
        return False
    return is_new or launch.tries < TRIES


def _launched(launch: Launch, diagnosis: Diagnosis, now: float) -> Launched:
    if diagnosis.launch is None or (
        launch.launched_at is not None and now < launch.launched_at + AGAIN_S
    ):
        return Launched(launch)
    return Launched(replace(launch, launched_at=now), (diagnosis.launch,))
