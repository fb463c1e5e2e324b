"""The access program, run beside the cycle: its deadline, what its lines mean, and what they have
said so far."""

from __future__ import annotations

import asyncio
import errno
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from ...core.access import containers
from ...core.common import parse
from ...model.access import (
    AccessState,
    CurrentAccess,
    Device,
    GrantResult,
    Question,
    ScopeDevices,
    Sighting,
    Verdict,
)
from ...model.actions import CheckAccess
from ...model.errors import BusError, ErrorKind
from ...model.reading import Reading, Refusal, Seen, Why
from ...model.runtime import Access
from ...transport.clock import boottime
from ...transport.device_cgroups import started
from ...transport.process import Outcome, run_once
from ...transport.systemd import SystemdBus
from ...transport.unit_devices import device_policy
from ..journal import reload_requested_by

PROGRAM = Path(__file__).with_name("access_program.py")
WITHIN_S = 3.0
EACH_S = 0.05
"added to it for each container: one took 0.1 to 0.3 ms, on a busy machine"
GRACE_S = 0.5
ANSWER_BYTES = 4 << 20
AT_ONCE = 128
"""containers asked about in one run of the program: its arguments must fit, and a run that breaks
costs no more"""
SCOPES_AT_ONCE = 10

_GONE = (errno.ENOENT, errno.ENODEV, errno.ESRCH)


async def ask(pid: int, path: str) -> Reading[Access]:
    """May this process open this device node now? 4.5 s at the latest."""
    argv = [sys.executable, "-I", "-S", str(PROGRAM), "--pid", str(pid), path]
    ended = await run_once(argv, WITHIN_S, ANSWER_BYTES, grace_s=GRACE_S)
    if ended.kind is ErrorKind.TIMED_OUT:
        return Refusal(Why.TIMED_OUT, ended.sentence)
    if ended.kind is not None or ended.code != 0:
        # A broken program of ours says nothing about the node.
        return Refusal(
            Why.NOT_ASKED, f"the access probe broke: {ended.sentence or ended.err or ended.code}"
        )
    return access_of(ended.out, pid, path, boottime())


def access_of(line: bytes, pid: int, path: str, at: float) -> Reading[Access]:
    """The access in the program's line about this process and node; a line that is none says
    nothing."""
    said = parse.json_object(line)
    try:
        if said is None or said["v"] != 1 or said["pid"] != pid:
            raise ValueError("another version or process")
        (answer,) = said["answers"]
        access, detail, number, way = (
            answer["access"],
            answer["detail"],
            answer["errno"],
            said["way"],
        )
        if (
            answer["path"] != path
            or type(number) is not int
            or type(detail) is not str
            or type(way) is not str
        ):
            raise ValueError("another node, or parts of another kind")
        if access not in ("allowed", "denied", "unknown") or (access != "unknown" and not way):
            raise ValueError(f"access {access!r} by {way!r}")
    except (KeyError, TypeError, ValueError) as exc:
        return Refusal(
            Why.NOT_ASKED, f"the access probe returned malformed output ({exc}): {line[:80]!r}"
        )
    if access == "unknown":
        return Refusal(Why.MISSING if number in _GONE else Why.NOT_PERMITTED, detail)
    return Seen(Access(path, access == "allowed", way), at)


async def ask_many(questions: Sequence[Question]) -> tuple[Verdict, ...]:
    """A verdict on each, in order, by as few runs of the program as can be. One that breaks leaves
    all unknown."""
    found: list[Verdict] = []
    for first in range(0, len(questions), AT_ONCE):
        some = questions[first : first + AT_ONCE]
        argv = [sys.executable, "-I", "-S", str(PROGRAM)]
        for question in some:
            argv += ["--pid", str(question.pid), *(device.word for device in question.devices)]
        ended = await run_once(argv, WITHIN_S + EACH_S * len(some), ANSWER_BYTES, grace_s=GRACE_S)
        found += verdicts_of(ended, some, boottime())
    return tuple(found)


def verdicts_of(ended: Outcome, questions: Sequence[Question], at: float) -> list[Verdict]:
    """What a run says of each. Only whole lines of a run that ended well count, each only of its
    own question."""
    if ended.kind is not None or ended.code != 0:
        why = f"the access program broke: {ended.sentence or ended.err or ended.code}"
        return [unknown(question, at, why) for question in questions]
    lines = ended.out.splitlines()
    if len(lines) != len(questions):
        why = f"the access program printed {len(lines)} lines for {len(questions)}"
        return [unknown(question, at, why) for question in questions]
    return [verdict_of(line, question, at) for line, question in zip(lines, questions, strict=True)]


def verdict_of(line: bytes, question: Question, at: float) -> Verdict:
    """The program's line about this container; a line that is none leaves everything unknown."""
    said = parse.json_object(line)
    try:
        if said is None or said["v"] != 1 or said["pid"] != question.pid:
            raise ValueError("another version or process")
        way, rules = said["way"], said["rules"]
        if {type(way), type(rules), type(said["started"])} != {str}:
            raise ValueError("parts of another kind")
        rows = _rows(said["answers"], question.devices, bool(way and rules))
    except (KeyError, TypeError, ValueError) as exc:
        return unknown(
            question, at, f"the access program returned malformed output ({exc}): {line[:80]!r}"
        )
    if said["started"] not in ("", question.started):
        return unknown(question, at, f"process {question.pid} is another one by now")
    access = tuple((row.device, row.access) for row in rows)
    return Verdict(
        question.container_id,
        question.pid,
        question.started,
        rules or question.rules,
        at,
        way,
        (containers.UNUSED_DEVICE, CurrentAccess.ALLOWED) in access,
        access,
        next((row.detail for row in rows if row.access is CurrentAccess.UNKNOWN), ""),
        question.rules,
    )


class _Row(NamedTuple):
    """What the program reports of one device; `detail` is why its access is unknown."""

    device: Device
    access: CurrentAccess
    detail: str


def _rows(answers: Any, devices: Sequence[Device], has_way: bool) -> list[_Row]:
    """A row of each device, in order. Raises KeyError, TypeError or ValueError if the answers are
    malformed."""
    rows = [_row(answer, device) for answer, device in zip(answers, devices, strict=True)]
    if not has_way and any(row.access is not CurrentAccess.UNKNOWN for row in rows):
        raise ValueError("an answer without a way")
    return rows


def _row(answer: dict[str, Any], device: Device) -> _Row:
    now, detail = CurrentAccess(answer["access"]), answer["detail"]
    if (answer["kind"], answer["major"], answer["minor"]) != (
        device.kind,
        device.major,
        device.minor,
    ):
        raise ValueError("another node")
    if type(detail) is not str:
        raise ValueError("parts of another kind")
    return _Row(device, now, detail)


def unknown(question: Question, at: float, detail: str) -> Verdict:
    return Verdict(
        question.container_id,
        question.pid,
        question.started,
        question.rules,
        at,
        "",
        False,
        tuple((device, CurrentAccess.UNKNOWN) for device in question.devices),
        detail,
        question.rules,
    )


def _any_lost(before: set[tuple[str, Device]], sightings: Sequence[Sighting]) -> bool:
    """Whether a container lost a device by a reload that was not denied `before`."""
    new = [s for s in sightings if s.denied_at and (s.container_id, s.device) not in before]
    return any(s.reload_at >= s.allowed_at - 1.0 for s in new)


KEPT = 256
"""outcomes, the newest of each container"""


class DeviceAccess:
    """Owns what this agent knows of device access: what the access program answered, and what came
    of updates of device lists. Starts the access program, one run at a time."""

    def __init__(self, on_done: Callable[[str], None], bus: SystemdBus | None = None) -> None:
        """`on_done(sentence)` is called from the loop whenever `state` has changed."""
        self._on_done = on_done
        self._bus = bus
        self._task: asyncio.Task[None] | None = None
        self.state = AccessState()

    def start(self, action: CheckAccess) -> None:
        """Begin; it reports by `on_done`. Nothing happens while another one is under way."""
        if self.state.asking_since is None:
            self.state = replace(self.state, asking_since=boottime())
            self._task = asyncio.get_running_loop().create_task(self._run(action))

    async def finished(self) -> AccessState:
        """The state once the check under way, if there is one, has ended."""
        if self._task is not None:
            await asyncio.wait([self._task])
        return self.state

    def updates_begin(self) -> None:
        """Device lists of scopes are being updated from now on."""
        self.state = replace(self.state, adding_since=boottime())

    def updates_end(self, results: tuple[GrantResult, ...], more_follow: bool) -> None:
        """Keep the newest result of each container."""
        known = {row.container_id: row for row in (*self.state.added, *results)}
        kept = tuple(sorted(known.values(), key=lambda row: row.at)[-KEPT:])
        self.state = replace(
            self.state, added=kept, adding_since=boottime() if more_follow else None
        )

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=2 * GRACE_S)

    async def _run(self, action: CheckAccess) -> None:
        lost = False
        try:
            # Few device lists are had meanwhile; many, 1 ms of our own CPU each, come after the
            # verdicts.
            first, rest = action.scopes[:SCOPES_AT_ONCE], action.scopes[SCOPES_AT_ONCE:]
            verdicts, _ = await asyncio.gather(ask_many(action.questions), self._read_scopes(first))
            lost = self._keep(action, verdicts)
            if rest:
                self._on_done(f"of {len(action.questions)} containers")
                await self._read_scopes(rest)
        finally:
            self.state = replace(self.state, asking_since=None)
        self._on_done(f"of {len(action.questions)} containers" if not rest else "device lists")
        if lost:
            who = await reload_requested_by(action.reload_at)
            if who:
                self.state = replace(
                    self.state, asked_by=(*self.state.asked_by[-7:], (action.reload_at, who))
                )
                self._on_done("requester of the reload")

    def _keep(self, action: CheckAccess, verdicts: Sequence[Verdict]) -> bool:
        """Take new verdicts in, let go of containers that are gone; True where one lost access by a
        reload."""
        asked = {question.container_id: question for question in action.questions}
        others = [v for v in self.state.verdicts if v.container_id not in asked]
        alive = [v for v in others if started(v.pid) == v.started]
        ids = {v.container_id for v in alive}
        kept: list[Sighting] = [s for s in self.state.sightings if s.container_id in ids]
        before = {(s.container_id, s.device) for s in self.state.sightings if s.denied_at}
        for verdict in verdicts:
            kept += containers.remember(
                self.state.sightings,
                verdict,
                asked[verdict.container_id].other_until,
                action.reload_at,
            )
        verdicts = (*alive, *verdicts)
        scopes = self._scopes_of(action, verdicts)
        self.state = replace(self.state, verdicts=verdicts, sightings=tuple(kept), scopes=scopes)
        return _any_lost(before, kept)

    def _scopes_of(
        self, action: CheckAccess, verdicts: Sequence[Verdict]
    ) -> tuple[ScopeDevices, ...]:
        """The scopes that are asked about, or whose container has a verdict."""
        asked = {unit for unit, _ in action.scopes}
        names = tuple(f"{verdict.container_id}.scope" for verdict in verdicts)
        return tuple(s for s in self.state.scopes if s.unit in asked or s.unit.endswith(names))

    async def _read_scopes(self, wanted: Sequence[tuple[str, str]]) -> None:
        for first in range(0, len(wanted), SCOPES_AT_ONCE):
            rows = await asyncio.gather(
                *(self._scope(*each) for each in wanted[first : first + SCOPES_AT_ONCE])
            )
            others = [s for s in self.state.scopes if s.unit not in {row.unit for row in rows}]
            self.state = replace(self.state, scopes=(*others, *rows))

    async def _scope(self, unit: str, rules: str) -> ScopeDevices:
        if self._bus is None:
            return ScopeDevices(unit, rules, boottime(), problem="no connection to D-Bus was made")
        try:
            row = await device_policy(self._bus, unit)
        except BusError as exc:
            return ScopeDevices(unit, rules, boottime(), problem=exc.sentence)
        return ScopeDevices(unit, rules, boottime(), row.policy, row.allow)
