"""Mending: may the device plugin be started afresh now, how, and what came of it? Pure, under the laws of
docs/design.md §5: evidence first, two looks that agree, one at a time, a budget, and never twice for one cause.

The memory here may be lost at any moment: what was done is read from the ledger, and what came of it by looking.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..model.fault import Cure, Fault
from ..model.finding import Diagnosis, Verdict
from ..model.plan import Action, NoteOutcome, Rebuild, RestartUnit, SendHup
from ..model.reading import Seen
from ..model.runtime import LedgerEntry
from ..model.settings import Settings
from . import ledger, plugin

HUP_WITHIN_S = 10.0
"""A plugin that answers SIGHUP registers again within a tenth of a second (v0.14.5 … v0.20.0, seen)."""
REFUSED_S = 60.0
AGREE_S = 1.0
"""Two looks that agree lie at least so far apart, in seconds."""
TWICE = 2
AGAIN_S = 0.6
"""Until the kubelet's second answer: it is not asked more often than twice a second."""


@dataclass(frozen=True, slots=True)
class Mend:
    """The mender's memory."""

    suspect: str = ""
    "the cause the last looks agree on"
    suspect_since: float = 0.0
    acting: str = ""
    "the cause that was last acted on and is not settled"
    settle_by: float = 0.0
    "boottime: by then the kubelet must list everything"
    listed: int = 0
    "answers of the kubelet in a row that list everything"
    listed_at: float = 0.0
    "boottime of the last of them"
    held: str = ""
    "why nothing is done, with the remedy"
    held_reason: str = ""
    refused_until: float = 0.0
    "boottime: a hand refused (no ledger, no evidence), and is not asked again before"
    bad_probe_at: float | None = None
    "realtime of the last failing probe of this agent: evidence that a later failure is a new one"


@dataclass(frozen=True, slots=True)
class Mended:
    """What one look decided about the plugin."""

    mend: Mend
    actions: tuple[Action, ...] = ()
    wake_at: float | None = None


def step(mend: Mend, diagnosis: Diagnosis, open_since: float | None, now: float, settings: Settings) -> Mended:
    """`open_since`: boottime since which NVML is stable, None while it is not."""
    view = diagnosis.mending
    if mend.acting:
        return _settle(mend, diagnosis, now)
    if open_since is None or view is None or diagnosis.paused or not view.may_act:
        return Mended(replace(mend, suspect="", held="", held_reason=""))
    fault = view.fault
    if fault is None:
        return _calm(mend, diagnosis, now)
    if now < mend.refused_until:
        return Mended(mend, wake_at=mend.refused_until)
    if fault.cure is Cure.WAIT:
        return Mended(replace(mend, suspect="", held="", held_reason=""))
    if fault.cure is Cure.PERSON:
        return Mended(_held(mend, fault, fault.because, fault.next_step))
    due = _due(fault, view.kubelet_since, open_since, view.offset, now, settings)
    if now < due:
        return Mended(replace(mend, suspect="", held="", held_reason=""), wake_at=due)
    if fault.barred:
        return Mended(_held(mend, fault, fault.because, fault.next_step))
    if view.listed > 0 and not (fault.access_denied or settings.repair_partial):
        partly = replace(fault, reason="PartlyRegistered")
        return Mended(_held(mend, partly, f"the kubelet lists some GPUs; {fault.because}",
                            "a fresh start may find all of them: [Plugin] RepairPartial=yes, or crictl stop and rm"))
    return _act(mend, diagnosis, fault, now, settings)


def refuse(mend: Mend, sentence: str, now: float) -> Mend:
    """The hand did not do it: held, with its sentence, for a while."""
    return replace(mend, acting="", suspect="", held=sentence, held_reason="RepairRefused",
                   refused_until=now + REFUSED_S)


def _due(fault: Fault, kubelet_since: float, open_since: float, offset: float, now: float,
         settings: Settings) -> float:
    """Boottime from which a fault is one. A mark of failure is one at once; silence is one after a while."""
    if fault.cure is Cure.FRESH_START:
        return 0.0
    started = plugin.started_at(fault.sight) - offset if fault.sight else 0.0
    if started > now:  # the clock was set back since: what the container's stamp says is worth nothing
        started = 0.0
    return max(started, kubelet_since, open_since) + settings.register_within_s


def _act(mend: Mend, diagnosis: Diagnosis, fault: Fault, now: float, settings: Settings) -> Mended:
    view = diagnosis.mending
    assert view is not None
    target = fault.sight.container.id if fault.sight else f"{fault.unit} {fault.invocation[:12]}"
    cause = f"{fault.reason} {_whose(fault)} kubelet {view.kubelet_invocation[:12]}"
    if mend.suspect != f"{cause} {target}":
        return Mended(replace(mend, suspect=f"{cause} {target}", suspect_since=now, held="", held_reason=""),
                      wake_at=now + AGREE_S)
    if now < mend.suspect_since + AGREE_S:
        return Mended(mend, wake_at=mend.suspect_since + AGREE_S)
    refusal = _refusal(mend, view.entries, view.boot_id, cause, target, now + view.offset, settings)
    if view.ledger_problem:
        refusal = ("LedgerUnreadable", f"the ledger could not be read ({view.ledger_problem}): mv it away", None)
    elif settings.repair == "report":
        refusal = ("RepairOff", "Repair=report: gpu-gate would start the plugin afresh", None)
    if refusal is not None:
        reason, sentence, later = refusal
        held = replace(mend, held=f"{fault.because}; {sentence}", held_reason=reason)
        return Mended(held, wake_at=later - view.offset if later is not None else None)
    hupped = any(e.what == "hup" and e.target == target and e.cause == cause for e in view.entries)
    action = _hand(fault, cause, ledger.next_number(view.entries), hupped)
    within_s = HUP_WITHIN_S if isinstance(action, SendHup) else settings.verify_within_s
    acting = replace(mend, acting=cause, settle_by=now + within_s, listed=0, listed_at=diagnosis.registered_at,
                     held="", held_reason="", suspect="")
    return Mended(acting, (action,), now + 1.0)


def _whose(fault: Fault) -> str:
    if fault.sight is None:
        return fault.unit
    return f"{plugin.pod_name(fault.sight)}/{fault.sight.container.name}"


def _refusal(mend: Mend, entries: tuple[LedgerEntry, ...], boot_id: str, cause: str, target: str, realtime: float,
             settings: Settings) -> tuple[str, str, float | None] | None:
    """(reason word, sentence, realtime to try again) of why nothing may be done; None where it may."""
    same = [e for e in ledger.actions(entries, boot_id) if e.cause == cause]
    if same and same[-1].target != target:
        news = mend.bad_probe_at is not None and mend.bad_probe_at > same[-1].at
        if not news:
            return ("SameCauseAgain", "a fresh start for this cause did not cure it; evidence: "
                    f"{same[-1].evidence or 'none'}", None)
    at = ledger.allowed_at(entries, boot_id, settings.repairs_per_hour, settings.repairs_per_boot)
    if at is None:
        return "BudgetSpent", f"{settings.repairs_per_boot} actions in this boot are all that is allowed", None
    if realtime < at:
        return "BudgetSpent", f"the next action is allowed in {at - realtime:.0f} s", at
    return None


def _hand(fault: Fault, cause: str, number: int, hupped: bool) -> Action:
    """The ladder: its unit; SIGHUP where that is known to answer and was not tried; else stop and remove the one
    container."""
    if fault.sight is None:
        return RestartUnit(number, fault.unit, fault.invocation, cause, fault.because)
    container = fault.sight.container
    if fault.hup_answers and not hupped:
        pid = fault.sight.detail.value.pid if isinstance(fault.sight.detail, Seen) else 0
        return SendHup(number, container.id, pid, cause, fault.because)
    return Rebuild(number, container.id, cause, fault.because)


def _settle(mend: Mend, diagnosis: Diagnosis, now: float) -> Mended:
    """After an action: the kubelet must list everything in two answers, or the action did not cure it."""
    view = diagnosis.mending
    mend = _count_listed(mend, diagnosis)
    if view is not None and mend.listed >= TWICE:
        return Mended(Mend(bad_probe_at=mend.bad_probe_at), _outcome(view.entries, view.boot_id, True))
    if mend.listed:
        return Mended(mend, wake_at=now + AGAIN_S)
    if now < mend.settle_by:
        return Mended(mend, wake_at=min(now + 1.0, mend.settle_by))
    noted = _outcome(view.entries, view.boot_id, False) if view is not None else ()
    return Mended(Mend(bad_probe_at=mend.bad_probe_at), noted, wake_at=now)


def _calm(mend: Mend, diagnosis: Diagnosis, now: float) -> Mended:
    """Nothing is wrong with the plugin, or nothing can be said about it. An action whose end nobody saw (the agent
    was restarted) was a cure only where the kubelet now lists everything."""
    view = diagnosis.mending
    assert view is not None
    mend = _count_listed(replace(mend, suspect="", held="", held_reason=""), diagnosis)
    noted = _outcome(view.entries, view.boot_id, True) if mend.listed else ()
    if noted and mend.listed < TWICE:
        return Mended(mend, wake_at=now + AGAIN_S)
    return Mended(mend, noted)


def _count_listed(mend: Mend, diagnosis: Diagnosis) -> Mend:
    """The same answer counts once, however often it is looked at."""
    registered, view = diagnosis.registered, diagnosis.mending
    denied = view is not None and view.fault is not None and view.fault.access_denied  # listed, and of no use
    if registered is None or registered.verdict is not Verdict.HOLDS or denied:
        return replace(mend, listed=0)
    if diagnosis.registered_at <= mend.listed_at:
        return mend
    return replace(mend, listed=mend.listed + 1, listed_at=diagnosis.registered_at)


def _outcome(entries: tuple[LedgerEntry, ...], boot_id: str, cured: bool) -> tuple[Action, ...]:
    """Write the last action's outcome down, once."""
    done = ledger.actions(entries, boot_id)
    if not done or ledger.outcome_of(entries, done[-1]):
        return ()
    return (NoteOutcome(done[-1].number, ledger.CURED if cured else "not cured", done[-1].evidence),)


def _held(mend: Mend, fault: Fault, because: str, next_step: str) -> Mend:
    return replace(mend, suspect="", held=f"{because}; next step: {next_step}", held_reason=fault.reason)
