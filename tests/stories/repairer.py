"""The disruptive hands of one simulated agent, with the behaviour of agent/host/repairer.py and
host/ledger.py: evidence, ledger, and then the deed beside the cycle, one at a time."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

from agent.core.common.paths import STATE
from agent.core.plugin.ledger import NVML_FAILED, OUTCOME, REPAIR_FAILED
from agent.host.repairer import STOP_GRACE_S
from agent.host.tape import Tape
from agent.model.actions import (
    Disruptive,
    NoteNvmlFailed,
    NoteOutcome,
    Rebuild,
    RestartUnit,
    SendHup,
)
from agent.model.errors import ActionFailed
from agent.model.runtime import LedgerEntry

if TYPE_CHECKING:
    from .world import World

LEDGER = f"{STATE}/ledger.jsonl"
EVIDENCE = f"{STATE}/evidence"


class Died(Exception):
    """The agent was killed in the middle of a cycle."""


class PluginRepairer:
    """One disruptive action at a time."""

    def __init__(
        self, world: World, passes: Callable[[str], None], on_done: Callable[[str], None]
    ) -> None:
        """`passes(moment)` is told of evidence, ledger, stop; it may raise Died."""
        self._world, self._passes, self._on_done = world, passes, on_done
        self.busy = self.gone = False
        self.evidence: dict[str, Tape] = {}
        "by path, the tapes that were kept"

    def begin(self, action: Disruptive, tape: Tape | None, socket: str) -> None:
        world = self._world
        if self.busy:
            raise ActionFailed("another repair is still running")
        if tape is None:
            raise ActionFailed(
                "this snapshot was not recorded, so there is no evidence: no repair was begun"
            )
        shown = f"{EVIDENCE}/{int(world.realtime)}-{action.number}"
        if world.disk_full:
            raise ActionFailed("less than 32 MiB are free for evidence, so no repair was begun: df")
        self.evidence[shown] = tape
        world.disk.write(f"{shown}/manifest.json", "{}")
        self._passes("evidence")
        what, target = named(action)
        try:
            self._append(what, action.number, target=target, cause=action.cause, evidence=shown)
        except ActionFailed:
            world.disk.remove(shown)
            raise
        self._passes("ledger")
        self.busy = True
        self._do(action)

    def note(self, action: NoteOutcome | NoteNvmlFailed) -> None:
        if isinstance(action, NoteNvmlFailed):
            self._append(NVML_FAILED, action.number)
        else:
            self._append(OUTCOME, action.number, evidence=action.evidence, outcome=action.outcome)

    def kill(self) -> None:
        self.gone = True

    def _append(
        self,
        what: str,
        number: int,
        target: str = "",
        cause: str = "",
        evidence: str = "",
        outcome: str = "",
    ) -> None:
        world = self._world
        entry = LedgerEntry(
            world.realtime, world.boot_id, number, what, target, cause, evidence, outcome, world.now
        )
        if world.ledger_mood == "unwritable" or world.disk_full:
            raise ActionFailed(
                "could not write the ledger (Read-only file system), so no repair was begun"
            )
        world.ledger.append(json.dumps(asdict(entry)) + "\n")
        world.disk.write(LEDGER, "".join(world.ledger))

    def _do(self, action: Disruptive) -> None:
        world = self._world
        match action:
            case Rebuild():
                world.cri.stop(
                    action.container_id, STOP_GRACE_S, lambda wrong: self._stopped(action, wrong)
                )
            case SendHup():
                box = next(
                    (b for b in world.cri.boxes.values() if b.pid == action.pid and b.is_running),
                    None,
                )
                if (
                    box is not None
                    and box.made.id == action.container_id
                    and box.plugin is not None
                ):
                    world.time.after(0.01, box.plugin.hup)
                world.time.after(0.02, lambda: self._done(f"SIGHUP sent to pid {action.pid}"))
            case RestartUnit():
                for pod in world.kubelet.pods:
                    if getattr(pod, "name", "") == action.unit:
                        pod.restart()  # type: ignore[union-attr]
                world.time.after(0.5, lambda: self._done(f"{action.unit}: done"))

    def _stopped(self, action: Rebuild, wrong: str) -> None:
        world = self._world
        if self.gone:
            return
        if not wrong:
            try:
                self._passes("stop")
            except Died:
                return
            if not world.cri.works:
                self._done(
                    f"container {action.container_id[:12]} stopped, but not removed "
                    "(connection refused)"
                )
                return
        if wrong:
            self._failed(action, wrong)
            return
        world.cri.remove(action.container_id)
        world.kubelet.removed(action.container_id)
        self._done(f"container {action.container_id[:12]} removed")

    def _failed(self, action: Rebuild, why: str) -> None:
        outcome = f"{REPAIR_FAILED}: {why}"
        sentence = f"repair {action.number} {outcome}"
        try:
            self.note(NoteOutcome(action.number, outcome, ""))
        except ActionFailed as failed:
            sentence = f"{sentence}; {failed.sentence}"
        self._done(sentence)

    def _done(self, sentence: str) -> None:
        self.busy = False
        if not self.gone:
            self._on_done(sentence)


def named(action: Disruptive) -> tuple[str, str]:
    match action:
        case RestartUnit():
            return "restart-unit", f"{action.unit} {action.invocation[:12]}"
        case SendHup():
            return "hup", action.container_id
        case Rebuild():
            return "rebuild", action.container_id
