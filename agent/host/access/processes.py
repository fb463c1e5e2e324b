"""The processes of running containers, and what governs their devices now: read in this very
process, in microseconds each, nothing tried. A container's status is asked of the runtime once: its
pid never changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from ...model.access import Device, Process
from ...model.errors import RpcError
from ...transport.clock import boottime
from ...transport.device_cgroups import (
    AccessUndetermined,
    Cgroups,
    Mounts,
    read,
    reads_maps,
    rules,
    said,
    started,
)
from .. import cri

STATUS_WITHIN_S = 0.7
"""New containers' statuses may take so long in one snapshot (1 to 3 ms each); the rest comes with
the next one."""


@dataclass(frozen=True, slots=True)
class _Known:
    """What never changes of a running container."""

    pid: int
    started: str
    spec: tuple[tuple[Device, str], ...]


class _LastRules(NamedTuple):
    """The rules that a container had when they were last read; times are of boottime()."""

    rules: str
    seen_at: float
    other_until: float
    "when other rules were last seen; 0.0: never"


class Processes:
    """Remembers what never changes of the containers that are asked for, and when their rules were
    last others."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._last: dict[str, _LastRules] = {}
        self._fixed: dict[int, bool] = {}
        """program ids to: reads no map. The kernel gives an id again only after two thousand
        million others"""
        self._mounts: Mounts | None = None
        self._own = Cgroups("")

    async def read(self, socket: str, container_ids: Sequence[str]) -> tuple[Process, ...]:
        """The processes of these containers, without those whose status did not come in time.
        Raises RpcError if the runtime does not answer and no container is known."""
        wanted = set(container_ids)
        self._known = {i: known for i, known in self._known.items() if i in wanted}
        self._last = {i: last for i, last in self._last.items() if i in wanted}
        await self._learn(socket, [i for i in container_ids if i not in self._known])
        now, in_force = boottime(), set[int]()
        with suppress(OSError, ValueError, IndexError):
            self._mounts = self._mounts or Mounts(read("/proc/self/mountinfo"))
            self._own = Cgroups.of("self")
        found = tuple(
            self._process(i, self._known[i], now, in_force)
            for i in container_ids
            if i in self._known
        )
        self._fixed = {number: fixed for number, fixed in self._fixed.items() if number in in_force}
        return found

    async def _learn(self, socket: str, new: Sequence[str]) -> None:
        """Ask the runtime about containers that are not known yet. Raises RpcError if it does not
        answer and no container is known."""
        try:
            details = await cri.containers(socket, new, STATUS_WITHIN_S) if new else ()
        except RpcError:
            if not self._known:
                raise
            details = ()  # those that are known are read all the same
        for detail in details:
            self._known[detail.id] = _Known(
                detail.pid, started(detail.pid) if detail.pid else "", detail.device_rules
            )

    def _process(self, container_id: str, known: _Known, now: float, in_force: set[int]) -> Process:
        if not known.pid:
            return self._unread(container_id, known, "the runtime does not say which process it is")
        try:
            if not known.started or started(known.pid) != known.started:
                return self._unread(container_id, known, f"its process {known.pid} is gone")
            cgroups = Cgroups.of(known.pid)
        except (OSError, ValueError) as exc:
            return self._unread(
                container_id, known, f"its process {known.pid} could not be read: {said(exc)}"
            )
        word, fixed, problem = "", False, ""
        try:
            word, ids = rules(cgroups, self._mounts or Mounts(""), self._own)
            in_force.update(ids)
            fixed = all([self._is_fixed(number) for number in ids])
        except AccessUndetermined as unsure:
            problem = unsure.detail
        except (OSError, ValueError) as exc:
            problem = f"what governs its devices could not be read: {said(exc)}"
        last = self._last.get(container_id, _LastRules(word, now, 0.0))
        if word:
            other_until = last.other_until if last.rules == word else last.seen_at
            self._last[container_id] = _LastRules(word, now, other_until)
        return Process(
            container_id,
            known.pid,
            known.started,
            cgroups.v2,
            cgroups.v1,
            word,
            fixed,
            self._last.get(container_id, _LastRules("", 0.0, 0.0)).other_until,
            problem,
            known.spec,
        )

    def _is_fixed(self, number: int) -> bool:
        if number not in self._fixed:
            try:
                self._fixed[number] = not reads_maps(number)
            except OSError:
                return False
        return self._fixed[number]

    @staticmethod
    def _unread(container_id: str, known: _Known, problem: str) -> Process:
        return Process(container_id, known.pid, "", None, None, "", False, 0.0, problem, known.spec)
