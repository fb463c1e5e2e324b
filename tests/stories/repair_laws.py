"""The laws of the disruptive hands (docs/design.md §5), judged at each of them by what the
simulated node is."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent.core.plugin import ledger
from agent.core.plugin.ledger import BACKOFF_S, CURED
from agent.host.tape import Tape
from agent.model.actions import Disruptive, Rebuild, SendHup
from agent.model.fault import RepairFacts
from agent.model.finding import Verdict
from agent.model.snapshot import ProbeEnd

from .repairer import named

if TYPE_CHECKING:
    from .machine import Machine

APART_S = 1.0
WORKLOADS = 3
"containers that are nobody's plugin"


class Broken(AssertionError):
    """A law does not hold."""


def hold(claim: bool, otherwise: str) -> None:
    if not claim:
        raise Broken(otherwise)


@dataclass(frozen=True)
class Saw:
    """One look: what it took for broken, and what was so."""

    at: float
    life: int
    key: tuple[str, str]
    "fault and target; empty where nothing was to be mended"
    listed: int
    may: str
    "why nothing may be done on this look, by what the node was"


@dataclass(frozen=True)
class Act:
    """A disruptive hand that was begun."""

    at: float
    what: str
    target: str
    cause: tuple[str, str, int]
    "reason, whose, and which start of the kubelet"


class MendLaws:
    """Over all lives of the agent: only the ledger and the node remember."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._looks: list[Saw] = []
        self.acts: list[Act] = []
        self.saw: Saw | None = None
        self._failed_at = 0.0
        "when a probe of any agent last found NVML not well"

    def looked(self, view: RepairFacts | None) -> None:
        """After every look; None where it stalled."""
        world, machine = self._machine.world, self._machine
        key = ("", "")
        if view is not None and view.fault is not None and view.may_act:
            key = view.fault.reason, self._target(view)
        if not key[0] and (self.saw is None or not self.saw.key[0]):
            self.saw = None
            return
        self.saw = Saw(
            world.now, machine.starts, key, len(world.kubelet.listed()), self._forbids(view)
        )
        self._looks = [*self._looks[-200:], self.saw]

    def _target(self, view: RepairFacts) -> str:
        fault = view.fault
        assert fault is not None
        return (
            fault.sight.container.id if fault.sight else (f"{fault.unit} {fault.invocation[:12]}")
        )

    def _forbids(self, view: RepairFacts | None) -> str:
        world = self._machine.world
        kubelet = world.kubelet
        diagnosis = self._machine.diagnosis
        unknown = (
            diagnosis is None
            or diagnosis.registered is None
            or diagnosis.registered.verdict is Verdict.UNKNOWN
        )
        says = (
            ("the look stalled", view is None),
            ("UNKNOWN", unknown),
            ("the kubelet is down", not kubelet.is_active),
            ("pod-resources is silent", kubelet.silent),
            ("systemd is silent", world.bus is not None),
            ("paused", world.is_paused()),
            ("Repair=report", world.settings.repair == "report"),
        )
        return next((word for word, holds in says if holds), "")

    def acted(self, action: Disruptive, tape: Tape | None) -> None:
        """A disruptive hand was begun in this cycle."""
        what, target = named(action)
        saw = self.saw
        hold(
            saw is not None and bool(saw.key[0]),
            f"{what} of {target[:12]} where nothing was seen to be wrong",
        )
        assert saw is not None
        hold(not saw.may, f"{what} although {saw.may}")
        self._kept(action, tape, saw)
        self._agreed(saw, target)
        self._in_budget()
        self._is_plugins(action, target, saw)
        whose = action.cause.split()[1]
        act = Act(
            self._machine.world.now,
            what,
            target,
            (saw.key[0], whose, self._machine.world.kubelet.starts),
        )
        self._is_news(act)
        self.acts.append(act)

    def _entries(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._machine.world.ledger]

    def _kept(self, action: Disruptive, tape: Tape | None, saw: Saw) -> None:
        """The evidence of this very look, then the ledger."""
        last = self._entries()[-1]
        kept = self._machine.repairer.evidence.get(last["evidence"])
        hold(
            (last["number"], last["what"], last["target"]) == (action.number, *named(action)),
            "no ledger before",
        )
        hold(kept is not None and kept is tape, "no evidence before")
        assert tape is not None
        clock = tape.answers[Tape.key("clock")]
        hold(clock["boottime"] == saw.at, "the evidence is of another look")
        numbers = [
            e["number"]
            for e in self._entries()
            if e["what"] not in (ledger.OUTCOME, ledger.NVML_FAILED)
        ]
        hold(len(numbers) == len(set(numbers)), f"one number twice in the ledger: {numbers}")

    def _agreed(self, saw: Saw, target: str) -> None:
        """An unbroken row of looks of this agent that saw the same, at least so long."""
        first = saw.at
        for look in reversed(self._looks):
            if (look.life, look.key) != (saw.life, saw.key) or look.may:
                break
            first = look.at
        hold(saw.key[1] == target, f"acted on {target[:12]}, saw {saw.key[1][:12]}")
        hold(
            saw.at - first >= APART_S - 1e-6,
            f"looks that agree lie only {saw.at - first:.2f} s apart",
        )

    def _in_budget(self) -> None:
        """A SIGHUP and the new container after it are one try; what changed nothing is not charged,
        and waits."""
        world = self._machine.world
        entries = self._entries()
        done = [e for e in entries if e["what"] not in (ledger.OUTCOME, ledger.NVML_FAILED)]
        said = {e["number"]: e["outcome"] for e in entries if e["what"] == ledger.OUTCOME}
        tries = [
            e
            for n, e in enumerate(done, 1)
            if not (
                e["what"] == "hup"
                and n < len(done)
                and all(e[key] == done[n][key] for key in ("cause", "target"))
            )
        ]
        charged = [
            e for e in tries if not said.get(e["number"], "").startswith(ledger.REPAIR_FAILED)
        ]
        lately = [e for e in charged if e["boottime"] > world.now - 3600.0]
        hold(len(lately) <= world.settings.repairs_per_hour, f"{len(lately)} repairs in one hour")
        hold(len(charged) <= world.settings.repairs_per_boot, f"{len(charged)} repairs in one boot")
        if len(tries) > 1:
            before = tries[-2]
            gap = world.now - before["boottime"]
            hold(
                said.get(before["number"]) == CURED or gap >= BACKOFF_S,
                f"{gap:.1f} s after one that did not cure",
            )

    def _is_plugins(self, action: Disruptive, target: str, saw: Saw) -> None:
        world = self._machine.world
        boxes = [p.box for p in world.kubelet.pods if hasattr(p, "box") and p.box is not None]
        if isinstance(action, (Rebuild, SendHup)):
            ids = {b.made.id for b in boxes}
            hold(
                target in ids
                or target in world.cri.removed
                or target not in world.cri.boxes
                or world.cri.boxes[target].plugin is not None,
                f"{target[:12]} is nobody's plugin",
            )
            hold(len(boxes) <= 1 or bool(self._machine.looked_s), "two plugins, and one was chosen")
        box = world.cri.boxes.get(target)
        denied = box is not None and box.plugin is not None and not box.plugin.allowed
        hold(
            not saw.listed or denied or world.settings.repair_partial,
            f"{saw.listed} are listed, and it is touched",
        )

    def _is_news(self, act: Act) -> None:
        """Never twice for one cause, unless NVML failed in between, or the first did not take."""
        same = [a for a in self.acts if a.cause == act.cause]
        if not same:
            return
        last = same[-1]
        if last.target == act.target:
            hold(act.what != "hup" or last.what != "hup", "SIGHUP twice for one cause")
            return
        cured = [
            e["boottime"]
            for e in self._entries()
            if e["what"] == ledger.OUTCOME and e["outcome"] == CURED
        ]
        lasted = any(last.at < at <= act.at - ledger.LASTS_S for at in cured)
        hold(
            self._failed_at > last.at or lasted,
            f"twice for {act.cause}, and NVML was well in between",
        )

    def check(self) -> None:
        """After every cycle."""
        wanted = len(self._machine.world.hardware.cards)
        for report in self._machine.asking.reports[-3:]:
            if report.end is not ProbeEnd.ANSWERED or report.errors or len(report.gpus) < wanted:
                self._failed_at = max(self._failed_at, report.ended_at)
        boxes = self._machine.world.cri.boxes.values()
        well = sum(
            b.plugin is None and b.is_running and b.made.name != "nvidia-device-plugin-ctr"
            for b in boxes
        )
        hold(well >= WORKLOADS, "a workload was touched")
