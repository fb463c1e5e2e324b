"""One answer of a recorded node is lost or wrong: no crash, no node becomes ready, no forbidden
action.

Every answer of a bundle, every kind of harm, by dice. The suite plays a few of them; HARM_ROUNDS=5
all, for long.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import zlib
from dataclasses import replace

import pytest

from agent.core.doctor.timeline import timeline
from agent.core.gate import transitions as gate
from agent.core.plugin import candidates as plugin
from agent.host.tape import Replay, Tape
from agent.model.errors import BundleError
from agent.model.finding import Diagnosis, Verdict
from agent.model.reading import Seen
from agent.model.runtime import ContainerState, PluginLogState
from agent.model.settings import Settings
from agent.service.commands.doctor import examine
from agent.service.commands.timeline import text as timeline_text
from agent.service.doctor_report import DoctorReport, report, text

from .casenode import CaseNode
from .harm import Harm, harms, plain
from .load import tape
from .repairer import would_do
from .test_captures import CAPTURES, DEFAULTS, STATES
from .test_cases import ALL, taped

ROUNDS = int(os.environ.get("HARM_ROUNDS", "1"))
SHARE = 0.01 if ROUNDS == 1 else 1.0
"""Of all answers, in the suite."""
STEPS = 12
CUDA = Tape.key("cuda")
"""Only --deep asks this: a missing question is no answer."""
EVERY = [
    *(f"capture {state}" for state in STATES),
    *(f"case {n} {s.case}" for n, s in enumerate(ALL)),
]
BUNDLES = EVERY[::6] if ROUNDS == 1 else EVERY


def opened(name: str) -> tuple[Tape, Settings]:
    kind, what, *_ = name.split(" ")
    if kind == "capture":
        return tape(CAPTURES / what, DEFAULTS), DEFAULTS
    return taped(ALL[int(what)])[1], CaseNode(ALL[int(what)].node).settings


def assessment(recorded: Tape, settings: Settings) -> DoctorReport:
    """Also all that is printed."""
    opinion = asyncio.run(examine(Replay(recorded), settings))
    assert "\n".join(text(opinion)).encode("utf-8", "surrogatepass")
    assert json.dumps(report(opinion))
    assert timeline_text(opinion.snapshot, timeline(opinion.snapshot, settings))
    return opinion


def gets_ready(diagnosis: Diagnosis, settings: Settings, now: float) -> bool:
    """The agent's decision while consecutive probes and snapshots agree."""
    state = gate.Gate(started_at=now)
    for number in range(1, STEPS + 1):
        now += 2.0
        probe = diagnosis.report
        if probe is not None:
            taken = probe.ended_at - probe.started_at
            probe = replace(probe, number=number, started_at=now - 0.5 - taken, ended_at=now - 0.5)
        again = replace(
            diagnosis, report=probe, registered_at=now - 0.1 if diagnosis.registered else 0.0
        )
        state = gate.step(state, again, now, settings).gate
    return state.ready


def is_lawful(opinion: DoctorReport, does: str, settings: Settings) -> bool:
    """Could the action be right on a node with these answers? Judged from the snapshot alone
    (docs/design.md, 5)."""
    snapshot, sights = opinion.snapshot, opinion.snapshot.plugin.plugins
    units = snapshot.boot.units.value if isinstance(snapshot.boot.units, Seen) else ()
    running = any(u.is_active for u in units)
    if not (
        running
        and isinstance(snapshot.kubelet.allocatable, Seen)
        and isinstance(snapshot.plugin.ledger, Seen)
    ):
        return False
    if does == "restart-unit":
        return not sights and plugin.unit(snapshot.boot.units, settings) is not None
    if len(sights) != 1 or any(
        plugin.is_anothers(o, sights[0]) for o in snapshot.plugin.socket_owners
    ):
        return False
    sight = sights[0]
    log, may = (
        plugin.log_of(sight),
        sight.access.value.allowed if isinstance(sight.access, Seen) else None,
    )
    if does == "hup":
        return (
            may is True
            and plugin.answers_sighup(sight)
            and sight.container.state is ContainerState.RUNNING
        )
    known = may is False or (log is not None and log.says is not PluginLogState.UNHEALTHY)
    return (
        known
        and isinstance(sight.detail, Seen)
        and sight.restart_policy in ("", "Always")
        and sight.container.state in (ContainerState.RUNNING, ContainerState.CREATED)
    )


def is_let_off(meant: DoctorReport, found: DoctorReport) -> bool:
    """Only access was wrong, the kubelet lists every GPU, and access is unknown now: unknown access
    does not make a node not ready (docs/access.md). Nor does an unread CDI spec; the doctor calls
    neither fine."""
    broken, registered = meant.broken, meant.diagnosis.registered
    if broken is not None and broken.condition == "CdiSpec":
        return found.exit_code != 0 and any(
            f.reason == "CdiUnknown" for f in found.diagnosis.findings
        )
    if (
        broken is None
        or registered is None
        or registered.verdict is not Verdict.HOLDS
        or not (broken.condition == "WorkloadAccess" or broken.reason == "PluginAccessDenied")
    ):
        return False
    access = [f for f in found.findings if f.condition == broken.condition]
    plugins = found.snapshot.plugin.plugins
    return not any(f.verdict is Verdict.HOLDS for f in access) or (
        broken.link == 8
        and not any(isinstance(s.access, Seen) and s.access.value.allowed for s in plugins)
    )


def harmed(whole: Tape, key: str, harm: Harm) -> Tape:
    left = {k: a for k, a in whole.answers.items() if k != key}
    return Tape(left if harm.kind == "missing" else {**left, key: harm.answer})


@pytest.mark.parametrize("name", BUNDLES)
def test_another_answer_to_one_question_is_safe(name: str) -> None:
    whole, settings = opened(name)
    whole = Tape({key: plain(answer) for key, answer in whole.answers.items()})
    meant = assessment(whole, settings)
    was = would_do(meant.snapshot, meant.diagnosis, settings)
    was_ready = gets_ready(meant.diagnosis, settings, meant.snapshot.clock.boottime)
    dice = random.Random(zlib.crc32(name.encode()) + ROUNDS)
    for _ in range(ROUNDS):
        for key in sorted(whole.answers):
            for harm in harms(whole.answers[key], dice):
                if dice.random() > SHARE:
                    continue
                told = f"{key}: {harm.kind} {str(harm.answer)[:300]}"
                try:
                    found = assessment(harmed(whole, key, harm), settings)
                except BundleError as refused:
                    assert refused.sentence
                    continue
                except Exception as exc:
                    raise AssertionError(told) from exc
                does = would_do(found.snapshot, found.diagnosis, settings)
                assert does in (was, "none", "held") or is_lawful(found, does, settings), (
                    f"{told}: {was} to {does}"
                )
                if harm.is_fact or key == CUDA or is_let_off(meant, found):
                    continue
                ready = gets_ready(found.diagnosis, settings, found.snapshot.clock.boottime)
                assert was_ready or not ready, f"{told}: gets ready"
                assert meant.exit_code == 0 or found.exit_code != 0, f"{told}: is fine"
