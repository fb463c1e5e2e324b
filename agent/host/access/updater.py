"""Adds to DeviceAllow= of containers' scopes: every step is verified, and the first surprise ends
it.

Beside the cycle, one batch at a time: for each container everything it may do is tried
(access_program.py --sweep), one call adds what core/access/grants.py names, and everything is tried
again.
docs/access.md.
"""

from __future__ import annotations

import asyncio
import errno
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...core.access import grants as allow
from ...core.access.device_list import ANY, Number, entry_of, rights_of
from ...core.common import parse
from ...core.common.paths import ALLOW_STOPPED, RUN
from ...model.access import Device, GrantResult
from ...model.actions import GrantDevices, ScopeGrant
from ...model.errors import ActionFailed, BusError, ProgramError
from ...transport.clock import boottime
from ...transport.device_cgroups import AccessUndetermined, started
from ...transport.line_program import Dialogue
from ...transport.systemd import SystemdBus
from ...transport.unit_devices import allow_devices, device_policy
from ..marks import write_mark
from .checks import PROGRAM, DeviceAccess

ANSWER_WITHIN_S = 3.0
"""A sweep of 1,000 numbers takes 15 ms at first and 3 ms later; its program starts in 60 ms."""
CALL_WITHIN_S = 2.0
GRACE_S = 0.5


class DeviceAllowUpdater:
    """Updates one batch of scopes at a time; DeviceAccess keeps the results."""

    def __init__(
        self,
        bus: SystemdBus,
        access: DeviceAccess,
        on_done: Callable[[tuple[GrantResult, ...]], None],
        root: str = "/",
    ) -> None:
        self._bus = bus
        self._access = access
        self._on_done = on_done
        self._root = Path(root)
        self._task: asyncio.Task[None] | None = None
        self._next: GrantDevices | None = None
        self._is_stopped = False  # by a surprise whose mark could not be left

    def begin(self, action: GrantDevices) -> None:
        """Start the batch. Where one is under way, the newest that was asked for meanwhile follows
        it."""
        if self._task is not None and not self._task.done():
            self._next = action
            return
        self._access.updates_begin()
        self._task = asyncio.get_running_loop().create_task(self._do(action))

    async def finished(self) -> None:
        if self._task is not None:
            await asyncio.wait([self._task])

    async def close(self) -> None:
        """A batch under way is given up where it stands: every call is whole in itself."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=2 * GRACE_S)

    async def _do(self, action: GrantDevices | None) -> None:
        while action is not None:
            done: tuple[GrantResult, ...] = ()
            before = {row.container_id: row.problem for row in self._access.state.added}
            try:
                done = await self._batch(action)
            finally:
                follows, self._next = self._next, None
                self._access.updates_end(done, more_follow=follows is not None)
            self._on_done(
                tuple(
                    row
                    for row in done
                    if row.named or row.problem != before.get(row.container_id, "")
                )
            )
            action = follows

    async def _batch(self, action: GrantDevices) -> tuple[GrantResult, ...]:
        """What came of each container that something was done for, or could not be."""
        began = boottime()
        if self._is_stopped or (self._root / RUN.lstrip("/") / ALLOW_STOPPED).exists():
            return ()
        done: list[GrantResult] = []
        try:
            majors = parse.majors((self._root / "proc/devices").read_bytes())
            program = await Dialogue.start([sys.executable, "-I", "-S", str(PROGRAM), "--sweep"])
        except OSError as exc:
            return (
                _said(
                    action.allowances[0],
                    problem=f"/proc/devices could not be read ({exc.strerror})",
                ),
            )
        except ProgramError as problem:
            return (_said(action.allowances[0], problem=problem.sentence),)
        assert isinstance(program, Dialogue)
        try:
            for allowance in action.allowances:
                one = await self._one(program, allowance, action.prevent, majors)
                if one is not None:
                    one = self._stop(one) if one.lost else one
                    done.append(replace(one, at=boottime(), took_s=round(boottime() - began, 3)))
                    if one.lost:
                        break
        finally:
            await program.end(GRACE_S)
        return tuple(done)

    def _stop(self, surprise: GrantResult) -> GrantResult:
        """The first surprise is the last: said by a mark, which outlives this agent. Where that
        cannot be left, this agent adds nothing more all the same, and what it says of the surprise
        says so."""
        try:
            write_mark(
                self._root,
                ALLOW_STOPPED,
                f"{surprise.who} lost {', '.join(surprise.lost)} when devices were "
                f"added to {surprise.scope}; nothing more is added to any scope until the next "
                "boot",
            )
        except ActionFailed as failed:
            self._is_stopped = True
            return replace(
                surprise, problem="; ".join(filter(None, (surprise.problem, failed.sentence)))
            )
        return surprise

    async def _one(
        self, program: Dialogue, of: ScopeGrant, prevent: bool, majors: dict[str, int]
    ) -> GrantResult | None:
        """None where nothing is to be done."""
        named: tuple[tuple[str, str], ...] = ()
        try:
            if not prevent and not _denied(
                of, (await _sweep(program, of, tuple(d for d, _ in of.give)))[0]
            ):
                return None
            row = await device_policy(self._bus, of.scope)
            before, rules = await _sweep(program, of)
            denied = _denied(of, before)
            if (
                not allow.may_add(row.policy, row.allow)
                or allow.may_all(before)
                or not (prevent or denied)
            ):
                return _said(of, rules=rules)
            named = allow.entries(row.policy, row.allow, before, denied, majors)
            if (
                not named
            ):  # the list has it all: what denies is a program that somebody else put there
                return _said(
                    of, rules=rules, still_denied=_names(of, denied), problem=_others(of, denied)
                )
            await allow_devices(self._bus, of.scope, named, CALL_WITHIN_S)
            after, rules = await _sweep(program, of)
        except (AccessUndetermined, ProgramError, BusError) as problem:
            if started(of.pid) != of.started:  # it has ended meanwhile
                return None
            return _said(of, named=_words(named), problem=str(problem))
        verified = allow.verify(before, after, denied)
        missing = tuple(Device(*number) for number in verified.missing)
        return _said(
            of,
            rules=rules,
            named=_words(named),
            still_denied=_names(of, missing),
            problem=_others(of, missing),
            given_back=_names(of, tuple(d for d in denied if d not in missing)),
            lost=tuple(entry_of(number) for number in verified.lost),
        )


def _said(of: ScopeGrant, **values: Any) -> GrantResult:
    return GrantResult(of.container_id, of.scope, of.who, boottime(), **values)


def _others(of: ScopeGrant, denied: tuple[Device, ...]) -> str:
    return (
        f"a device program that is not systemd's denies {', '.join(_names(of, denied))}: only "
        "the runtime can "
        "change that; start the pod anew"
        if denied
        else ""
    )


def _words(named: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    return tuple(" ".join(entry) for entry in named)


async def _sweep(
    program: Dialogue, of: ScopeGrant, only: tuple[Device, ...] = ()
) -> tuple[dict[Number, frozenset[str]], str]:
    """The rights it has now, by number, and the rules in force. Raises
    AccessUndetermined if that cannot be determined, ProgramError if the program ends."""
    asked: dict[str, object] = {"pid": of.pid, "started": of.started}
    if only:
        asked["devices"] = [device.word for device in only]
    line = await program.ask(json.dumps(asked).encode(), ANSWER_WITHIN_S)
    said = parse.json_object(line)
    try:
        if (
            said is None
            or said["v"] != 1
            or said["pid"] != of.pid
            or not isinstance(said["allowed"], dict)
        ):
            raise ValueError("another version or process")
        if said["detail"]:
            raise AccessUndetermined(errno.EPROTO, str(said["detail"]))
        return (
            {_number(word): frozenset(rights) for word, rights in said["allowed"].items()},
            str(said["rules"]),
        )
    except (KeyError, TypeError, ValueError) as exc:
        raise AccessUndetermined(
            errno.EPROTO, f"the sweep returned malformed output ({exc}): {line[:80]!r}"
        ) from exc


def _number(word: str) -> Number:
    kind, major, minor = word.split(":")
    if kind not in ("c", "b"):
        raise ValueError(f"{word} is no device number")
    return kind, ANY if major == "*" else int(major), ANY if minor == "*" else int(minor)


def _denied(of: ScopeGrant, now: dict[Number, frozenset[str]]) -> tuple[Device, ...]:
    return tuple(
        d for d, _ in of.give if not {"r", "w"} <= rights_of(now, (d.kind, d.major, d.minor))
    )


def _names(of: ScopeGrant, devices: tuple[Device, ...]) -> tuple[str, ...]:
    return tuple(name for device, name in of.give if device in devices)
