"""Disruptive actions. Each writes the evidence and the ledger before it does anything
(docs/design.md).

They take long (a CRI stop 10 s), so they run beside the cycle, one at a time, and end with a wake.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

from ..core.common import parse
from ..core.common.layouts import KUBELET_UNITS
from ..core.common.watched import DRIVER_UNITS, RUNTIME_UNITS
from ..core.plugin.kinds import PLUGIN_UNITS
from ..core.plugin.ledger import HUP, NVML_FAILED, OUTCOME, REPAIR_FAILED
from ..model.actions import Disruptive, NoteNvmlFailed, NoteOutcome, Rebuild, RestartUnit, SendHup
from ..model.errors import ActionFailed, BusError, RpcError
from ..model.host import Host
from ..model.reading import Seen, unreachable
from ..model.runtime import LedgerEntry
from ..transport.systemd import SystemdBus
from . import cri, journal, ledger
from .live import clock_now
from .tape import Replay, Tape

STOP_GRACE_S = 10
"""The grace period that a kubelet gives a device plugin too (terminationGracePeriodSeconds in its
manifest)."""
STOP_WITHIN_S = 15.0
REMOVE_WITHIN_S = 5.0
UNIT_WITHIN_S = 30.0
JOURNAL_UNITS = (
    *KUBELET_UNITS,
    *RUNTIME_UNITS,
    *DRIVER_UNITS,
    *PLUGIN_UNITS,
    "gpu-gate.service",
    "init.scope",
)


class PluginRepairer:
    """Repairs the device plugin by one disruptive action at a time."""

    def __init__(
        self, host: Host, bus: SystemdBus, on_done: Callable[[str], None], root: str = "/"
    ) -> None:
        self._host = host
        self._bus = bus
        self._on_done = on_done
        self._root = Path(root)
        self._task: asyncio.Task[None] | None = None

    @property
    def is_busy(self) -> bool:
        return self._task is not None and not self._task.done()

    async def begin(self, action: Disruptive, tape: Tape | None, socket: str) -> None:
        """Write the evidence, then the ledger, then begin. Raises ActionFailed if nothing was
        done."""
        if self.is_busy:
            raise ActionFailed("another repair is still running")
        if tape is None:
            raise ActionFailed(
                "this snapshot was not recorded, so there is no evidence: no repair was begun"
            )
        boot_id = await self._boot_id()
        name = f"{int(clock_now().realtime)}-{action.number}"
        kept = ledger.keep_evidence(
            self._root, tape, name, {"journal.txt": await journal.as_evidence(JOURNAL_UNITS)}
        )
        shown = "/" + str(kept.relative_to(self._root))
        what, target = _named(action)
        try:
            if await self._list_changed(tape):
                raise ActionFailed(
                    "the kubelet's answer changed since the repair was decided, so it was not "
                    "begun; the next cycle decides again"
                )
            ledger.append(
                self._root, _entry(boot_id, action.number, what, target, action.cause, shown)
            )
        except ActionFailed:
            # Nothing was done, and the next cycles try again: their bundles must not displace those
            # of repairs that did something.
            shutil.rmtree(kept, ignore_errors=True)
            raise
        self._task = asyncio.get_running_loop().create_task(self._do(action, socket, shown))

    async def note(self, action: NoteOutcome | NoteNvmlFailed) -> None:
        boot_id = await self._boot_id()
        if isinstance(action, NoteNvmlFailed):
            ledger.append(self._root, _entry(boot_id, action.number, NVML_FAILED))
            return
        ledger.append(
            self._root,
            _entry(
                boot_id, action.number, OUTCOME, evidence=action.evidence, outcome=action.outcome
            ),
        )
        ledger.note_outcome(self._root, action.evidence, action.outcome)

    async def close(self) -> None:
        """Abandon a running action: the next agent reads the ledger and the node's state."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _do(self, action: Disruptive, socket: str, evidence: str) -> None:
        """Do it, and report. A failure is an outcome, which goes to the ledger at once."""
        try:
            match action:
                case RestartUnit():
                    job = await self._bus.start_unit(
                        action.unit, within_s=UNIT_WITHIN_S, member="RestartUnit"
                    )
                    result = f"{action.unit}: {job}"
                case SendHup():
                    result = await self._hup(action)
                case Rebuild():
                    result = await _rebuild(action, socket)
                case _:
                    unreachable(action)
        except (RpcError, BusError, ActionFailed) as exc:
            result = await self._failed(action, exc.sentence, evidence)
        except OSError as exc:
            result = await self._failed(action, exc.strerror or str(exc), evidence)
        self._on_done(result)

    async def _failed(self, action: Disruptive, why: str, evidence: str) -> str:
        result = f"repair {action.number} {REPAIR_FAILED}: {why}"
        try:
            await self.note(NoteOutcome(action.number, f"{REPAIR_FAILED}: {why}", evidence))
        except ActionFailed as exc:
            return f"{result}; {exc.sentence}"
        return result

    async def _hup(self, action: SendHup) -> str:
        """Signal the process only while it is in the container's cgroup: the pid may belong to
        another process by now. Raises ActionFailed if it does, and OSError."""
        pidfd = os.pidfd_open(action.pid)
        try:
            cgroup = await self._host.file(f"/proc/{action.pid}/cgroup")
            if not isinstance(cgroup, Seen) or action.container_id not in parse.text(cgroup.value):
                raise ActionFailed(
                    f"pid {action.pid} no longer belongs to container {action.container_id[:12]}: "
                    "no signal was sent"
                )
            signal.pidfd_send_signal(pidfd, signal.SIGHUP)
        finally:
            os.close(pidfd)
        return f"SIGHUP sent to pid {action.pid}"

    async def _list_changed(self, tape: Tape) -> bool:
        """True if the kubelet's list differs from the tape's: writing the evidence may take
        seconds, and a plugin may have registered meanwhile."""
        recorded = Replay(tape)
        for question, *arguments in map(json.loads, tuple(tape.answers)):
            if question == "allocatable" and isinstance(
                then := await recorded.allocatable(*arguments), Seen
            ):
                now = await self._host.allocatable(*arguments)
                if not isinstance(now, Seen) or now.value != then.value:
                    return True
        return False

    async def _boot_id(self) -> str:
        found = await self._host.file("/proc/sys/kernel/random/boot_id")
        return parse.text(found.value) if isinstance(found, Seen) else ""


def _entry(
    boot_id: str,
    number: int,
    what: str,
    target: str = "",
    cause: str = "",
    evidence: str = "",
    outcome: str = "",
) -> LedgerEntry:
    """A ledger entry with the present time."""
    now = clock_now()
    return LedgerEntry(
        now.realtime, boot_id, number, what, target, cause, evidence, outcome, now.boottime
    )


async def _rebuild(action: Rebuild, socket: str) -> str:
    """Stop and remove the container. The kubelet starts a stopped container again, removed or not:
    so only a failed stop fails the repair. Raises RpcError."""
    short = action.container_id[:12]
    await cri.stop_container(socket, action.container_id, STOP_GRACE_S, STOP_WITHIN_S)
    try:
        await cri.remove_container(socket, action.container_id, REMOVE_WITHIN_S)
    except RpcError as exc:
        return f"container {short} stopped, but not removed ({exc.sentence})"
    return f"container {short} removed"


def _named(action: Disruptive) -> tuple[str, str]:
    match action:
        case RestartUnit():
            return "restart-unit", f"{action.unit} {action.invocation[:12]}"
        case SendHup():
            return HUP, action.container_id
        case Rebuild():
            return "rebuild", action.container_id
        case _:
            return unreachable(action)
