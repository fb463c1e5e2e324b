"""Mending: may the device plugin be started afresh now, how, and what came of it? Pure, under the
laws of docs/design.md §5: evidence first, two looks that agree, one at a time, a budget, and never
twice for one cause.

The memory here may be lost at any moment: what was done is read from the ledger, and what came of
it by looking.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from ...model.actions import Action, NoteNvmlFailed, NoteOutcome, Rebuild, RestartUnit, SendHup
from ...model.fault import Cure, Fault, RepairFacts
from ...model.finding import Diagnosis
from ...model.reading import Seen
from ...model.reason import Reason
from ...model.runtime import ContainerState, LedgerEntry
from ...model.settings import Settings
from . import candidates as plugin
from . import ledger

HUP_WITHIN_S = 10.0
"""A plugin that answers SIGHUP registers again within a tenth of a second (v0.14.5 … v0.20.0,
seen)."""
HUP_HEARD_S = 2.0
"""One that after so long still says that NVML failed has asked again in vain; one that asks NVML
says so."""
REFUSED_S = 60.0
AGREE_S = 1.0
"""Two looks that agree lie at least so far apart, in seconds."""
TWICE = 2
AGAIN_S = 0.6
"""Until the kubelet's second answer: it is not asked more often than twice a second."""
UNDONE_S = 40.0
"""No hand takes longer (a unit's restart 30 s, a container's stop and removal 20 s)."""
QUICK_S = 10.0
"""So long after an act, or the kubelet's start, its next answer is awaited as eagerly as the second
one."""


@dataclass(frozen=True, slots=True)
class RepairState:
    """The mender's memory."""

    suspect: str = ""
    "the cause the last looks agree on"
    suspect_since: float = 0.0
    is_armed: bool = False
    "the next look may lead to an act, so it is recorded: it is the evidence"
    acting: str = ""
    "the cause that was last acted on and is not settled"
    acted_at: float = 0.0
    settle_by: float = 0.0
    "boottime: by then the kubelet must list everything"
    held: str = ""
    "why nothing is done, with the remedy"
    held_reason: Reason = Reason.NONE
    refused_until: float = 0.0
    "boottime: a hand refused (no ledger, no evidence), and is not asked again before"
    bad_probe_at: float | None = None
    "boottime of the last failing probe of this agent: evidence that a later failure is a new one"


@dataclass(frozen=True, slots=True)
class RepairStep:
    """What one look decided about the plugin."""

    repair: RepairState
    actions: tuple[Action, ...] = ()
    wake_at: float | None = None


class RepairRefusal(NamedTuple):
    """Why no repair is begun."""

    reason: Reason
    why: str
    again_at: float | None = None
    "realtime, seconds; None: not by itself"


def step(
    repair: RepairState,
    diagnosis: Diagnosis,
    open_since: float | None,
    listed: int,
    now: float,
    settings: Settings,
) -> RepairStep:
    """`open_since`: boottime since which NVML is stable, None while it is not; `listed`: answers of
    the kubelet in a row that list everything."""
    decided = _step(repair, diagnosis, open_since, listed, now, settings)
    view = diagnosis.repair_facts
    if view is None:
        return decided
    return replace(
        decided, actions=decided.actions + _news(repair, view) + _undone(repair, view, now)
    )


def _step(
    repair: RepairState,
    diagnosis: Diagnosis,
    open_since: float | None,
    listed: int,
    now: float,
    settings: Settings,
) -> RepairStep:
    view = diagnosis.repair_facts
    if repair.acting:
        return _settle(repair, view, listed, now, settings.verify_within_s)
    if open_since is None or view is None or diagnosis.paused or not view.may_act:
        return RepairStep(_free(repair))
    fault = view.fault
    if fault is None:
        return _calm(repair, view, listed, now)
    if now < repair.refused_until:
        return RepairStep(repair, wake_at=repair.refused_until)
    if fault.cure is Cure.WAIT:
        return RepairStep(_free(repair))
    if fault.cure is Cure.PERSON:
        return _person(repair, fault.reason, f"{fault.because}; next step: {fault.next_step}", now)
    due = _due(fault, view, open_since, now, settings)
    if now < due:
        return RepairStep(_free(repair), wake_at=due)
    if fault.barred:
        return _person(repair, fault.reason, f"{fault.because}; next step: {fault.next_step}", now)
    if view.listed > 0 and not (fault.access_denied or settings.repair_partial):
        return _person(
            repair,
            Reason.PARTLY_REGISTERED,
            f"the kubelet lists some GPUs; {fault.because}; next step: a fresh "
            "start may find all of them: [Plugin] RepairPartial=yes, or crictl stop and rm",
            now,
        )
    return _act(repair, view, fault, now, settings)


def refuse(repair: RepairState, sentence: str, now: float) -> RepairState:
    """The hand did not do it: held, with its sentence, for a while."""
    return replace(
        repair,
        acting="",
        suspect="",
        is_armed=False,
        held=sentence,
        held_reason=Reason.REPAIR_REFUSED,
        refused_until=now + REFUSED_S,
    )


def _free(repair: RepairState) -> RepairState:
    """Nothing is suspected, and nothing held."""
    return RepairState(refused_until=repair.refused_until, bad_probe_at=repair.bad_probe_at)


def _news(repair: RepairState, view: RepairFacts) -> tuple[Action, ...]:
    """NVML that failed since the last action is news, and must outlive this agent's memory."""
    done = ledger.actions(view.entries, view.boot_id)
    if not done or repair.bad_probe_at is None or repair.bad_probe_at + view.offset <= done[-1].at:
        return ()
    return (
        ()
        if ledger.nvml_failed_since(view.entries, done[-1])
        else (NoteNvmlFailed(done[-1].number),)
    )


def _undone(repair: RepairState, view: RepairFacts, now: float) -> tuple[Action, ...]:
    """An agent that was killed before it could act: what it was to end runs on, long after."""
    done = ledger.actions(view.entries, view.boot_id)
    if (
        repair.acting
        or not done
        or view.fault is None
        or done[-1].what == ledger.HUP
        or not _runs_on(view.fault, done[-1])
        or ledger.outcome_of(view.entries, done[-1])
        or now + view.offset < done[-1].at + UNDONE_S
    ):
        return ()
    return _outcome(view, f"{ledger.REPAIR_FAILED}: what it was to end runs on")


def _person(repair: RepairState, reason: Reason, sentence: str, now: float) -> RepairStep:
    """Held once two looks agree: two plugins are there for a moment in every rolling update."""
    agreed_at = (repair.suspect_since if repair.suspect == reason else now) + AGREE_S
    if repair.held_reason == reason or now >= agreed_at:
        return RepairStep(
            replace(repair, suspect="", is_armed=False, held=sentence, held_reason=reason)
        )
    return RepairStep(
        replace(repair, suspect=reason, suspect_since=agreed_at - AGREE_S, is_armed=False),
        wake_at=agreed_at,
    )


def _due(
    fault: Fault, view: RepairFacts, open_since: float, now: float, settings: Settings
) -> float:
    """Boottime from which a fault is one. A mark of failure is one at once; silence is one after a
    while."""
    if fault.cure is Cure.FRESH_START:
        return 0.0
    done = ledger.actions(view.entries, view.boot_id)
    # What it says after our own SIGHUP is our doing, and was waited for.
    hupped = bool(done) and done[-1].what == ledger.HUP and done[-1].target == _target(fault)
    marks = (fault.began_at, 0.0 if hupped else fault.said_at, view.kubelet_since, open_since)
    return max((at for at in marks if at <= now), default=0.0) + settings.register_within_s


def _act(
    repair: RepairState, view: RepairFacts, fault: Fault, now: float, settings: Settings
) -> RepairStep:
    target, cause = (
        _target(fault),
        f"{fault.reason} {_whose(fault)} kubelet {view.kubelet_invocation[:12]}",
    )
    if repair.suspect != f"{cause} {target}":
        # What was held stays so until this is agreed on.
        return RepairStep(
            replace(repair, suspect=f"{cause} {target}", suspect_since=now, is_armed=True),
            wake_at=now + AGREE_S,
        )
    if now < repair.suspect_since + AGREE_S:
        return RepairStep(repair, wake_at=repair.suspect_since + AGREE_S)
    refusal = _refusal(view, cause, target, now + view.offset, settings)
    if refusal is not None:
        reason, sentence, later = refusal
        held = replace(
            repair, is_armed=False, held=f"{fault.because}; {sentence}", held_reason=reason
        )
        return RepairStep(held, wake_at=later - view.offset if later is not None else None)
    if not repair.is_armed:  # nothing is in the way any more, but this look was not recorded
        return RepairStep(replace(repair, is_armed=True), wake_at=now)
    hupped = any(
        e.what == ledger.HUP and (e.target, e.cause) == (target, cause) for e in view.entries
    )
    action = _hand(fault, cause, ledger.next_number(view.entries), hupped)
    within_s = HUP_WITHIN_S if isinstance(action, SendHup) else settings.verify_within_s
    acting = replace(
        repair, acting=cause, acted_at=now, settle_by=now + within_s, suspect="", is_armed=False
    )
    return RepairStep(acting, (action,), now + AGAIN_S)


def _target(fault: Fault) -> str:
    return fault.sight.container.id if fault.sight else f"{fault.unit} {fault.invocation[:12]}"


def _whose(fault: Fault) -> str:
    if fault.sight is None:
        return fault.unit
    return f"{plugin.pod_name(fault.sight)}/{fault.sight.container.name}"


def _refusal(
    view: RepairFacts, cause: str, target: str, realtime: float, settings: Settings
) -> RepairRefusal | None:
    """Why nothing may be done; None where it may."""
    if view.ledger_problem:
        return RepairRefusal(
            Reason.LEDGER_UNREADABLE,
            f"the ledger could not be read ({view.ledger_problem}); next step: mv it away",
        )
    if settings.repair == "report":
        return RepairRefusal(
            Reason.REPAIR_OFF, "Repair=report: gpu-gate would start the plugin afresh"
        )
    return _was_in_vain(view, cause, target, realtime) or _over_budget(
        view, cause, target, realtime, settings
    )


def _was_in_vain(
    view: RepairFacts, cause: str, target: str, realtime: float
) -> RepairRefusal | None:
    """The same cause again, without new evidence."""
    entries = view.entries
    same = [e for e in ledger.actions(entries, view.boot_id) if e.cause == cause]
    if not same or same[-1].target == target or ledger.nvml_failed_since(entries, same[-1]):
        return None
    again_at = ledger.lasts_until(entries, same[-1])
    if again_at is not None and realtime >= again_at:
        return None
    came = "did not cure it" if again_at is None else "cured it for less than an hour"
    return RepairRefusal(
        Reason.SAME_CAUSE_AGAIN,
        f"a fresh start for this cause {came}; evidence: {same[-1].evidence or 'none'}; next "
        f"step: crictl logs {target[:12]}; once the cause is gone, crictl stop and rm "
        f"{target[:12]}",
        again_at,
    )


def _over_budget(
    view: RepairFacts, cause: str, target: str, realtime: float, settings: Settings
) -> RepairRefusal | None:
    entries, done = view.entries, ledger.actions(view.entries, view.boot_id)
    if ledger.is_next_rung(done, cause, target):
        return None
    at = ledger.allowed_at(
        entries, view.boot_id, settings.repairs_per_hour, settings.repairs_per_boot
    )
    if at is None:
        return RepairRefusal(
            Reason.BUDGET_SPENT,
            f"{settings.repairs_per_boot} actions in this boot are all that is allowed; next "
            "step: see why one does not last, then [Plugin] RepairsPerBoot=",
        )
    wait_s = at - realtime
    if wait_s <= 0:
        return None
    if ledger.did_take(entries, done[-1]):
        return RepairRefusal(
            Reason.BUDGET_SPENT, f"the next action is allowed in {wait_s:.0f} s", at
        )
    return RepairRefusal(
        Reason.REPAIR_FAILED,
        f"repair {done[-1].number} {ledger.outcome_of(entries, done[-1])}; it is tried again in "
        f"{wait_s:.0f} s; next step: systemctl status containerd; crictl stop {target[:12]}",
        at,
    )


def _hand(fault: Fault, cause: str, number: int, hupped: bool) -> Action:
    """The ladder: its unit; SIGHUP where that is known to answer and was not tried; else stop and
    remove the one container."""
    if fault.sight is None:
        return RestartUnit(number, fault.unit, fault.invocation, cause, fault.because)
    container = fault.sight.container
    if fault.hup_answers and not hupped:
        pid = fault.sight.detail.value.pid if isinstance(fault.sight.detail, Seen) else 0
        return SendHup(number, container.id, pid, cause, fault.because)
    return Rebuild(number, container.id, cause, fault.because)


def _settle(
    repair: RepairState, view: RepairFacts | None, listed: int, now: float, within_s: float
) -> RepairStep:
    """After an action: the kubelet must list everything in two answers, or the action did not cure
    it. It is given `within_s` from the hand's end: a CRI stop alone may take 15 s."""
    if view is not None and listed >= TWICE:
        return RepairStep(
            RepairState(bad_probe_at=repair.bad_probe_at), _outcome(view, ledger.CURED)
        )
    if listed:
        return RepairStep(repair, wake_at=now + AGAIN_S)
    if _is_under_way(repair, view, now):
        repair = replace(repair, settle_by=max(repair.settle_by, now + within_s))
    if now < repair.settle_by and not _is_in_vain(repair, view, now):
        soon = AGAIN_S if now < repair.acted_at + QUICK_S else 2.0
        return RepairStep(repair, wake_at=min(now + soon, repair.settle_by))
    noted = _outcome(view, ledger.NOT_CURED) if view is not None else ()
    return RepairStep(RepairState(bad_probe_at=repair.bad_probe_at), noted, wake_at=now)


def _is_under_way(repair: RepairState, view: RepairFacts | None, now: float) -> bool:
    """What the hand was to end runs on, and nobody wrote down that it failed. SIGHUP ends nothing,
    and is sent at once."""
    done = ledger.actions(view.entries, view.boot_id) if view is not None else ()
    if view is None or view.fault is None or not done or done[-1].what == ledger.HUP:
        return False
    return (
        _runs_on(view.fault, done[-1])
        and ledger.did_take(view.entries, done[-1])
        and now < repair.acted_at + UNDONE_S
    )


def _is_in_vain(repair: RepairState, view: RepairFacts | None, now: float) -> bool:
    """It is known before its time that the action did nothing: the hand failed and the same
    container runs on, or SIGHUP was heard and NVML failed the plugin again."""
    fault = view.fault if view is not None else None
    done = ledger.actions(view.entries, view.boot_id) if view is not None else ()
    if view is None or fault is None or not done:
        return False
    if not _runs_on(fault, done[-1]):
        return False
    if not ledger.did_take(view.entries, done[-1]):
        return True
    return (
        done[-1].what == ledger.HUP
        and fault.cure is Cure.FRESH_START
        and now >= repair.acted_at + HUP_HEARD_S
    )


def _runs_on(fault: Fault, action: LedgerEntry) -> bool:
    """What the action was to end is still there, and running."""
    if fault.sight is None:
        return bool(fault.invocation) and action.target.endswith(fault.invocation[:12])
    container = fault.sight.container
    return container.id == action.target and container.state is ContainerState.RUNNING


def _calm(repair: RepairState, view: RepairFacts, listed: int, now: float) -> RepairStep:
    """Nothing is wrong with the plugin, or nothing can be said about it. An action whose end nobody
    saw (the agent was restarted) was a cure only where the kubelet now lists everything."""
    noted = _outcome(view, ledger.CURED) if listed else ()
    if noted and listed < TWICE:
        return RepairStep(_free(repair), wake_at=now + AGAIN_S)
    return RepairStep(_free(repair), noted)


def _outcome(view: RepairFacts, outcome: str) -> tuple[Action, ...]:
    """Write the last action's outcome down, once. What did not take at first may have taken after
    all."""
    done = ledger.actions(view.entries, view.boot_id)
    if not done:
        return ()
    known = ledger.outcome_of(view.entries, done[-1])
    if known and (ledger.did_take(view.entries, done[-1]) or outcome != ledger.CURED):
        return ()
    return (NoteOutcome(done[-1].number, outcome, done[-1].evidence),)
