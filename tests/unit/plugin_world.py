"""A tiny world for repairs: one plugin, a kubelet that lists what it registers, a ledger, and a
clock of its own.

The real core plays in it: gate.step decides, and the world does what was decided, well or badly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from agent.core.diagnose import diagnose
from agent.core.gate.states import Gate
from agent.core.gate.transitions import step
from agent.core.plugin import ledger
from agent.core.plugin import log as plugin_log
from agent.model.actions import NoteNvmlFailed, NoteOutcome, Rebuild, SendHup, StartProbe
from agent.model.finding import Diagnosis
from agent.model.runtime import Access, LedgerEntry, PluginSight
from agent.model.settings import Settings
from agent.model.snapshot import Clock, Devices, Snapshot

from .snapshots import (
    BOOT_ID,
    BUSES,
    FAILED_LOG,
    OFFSET,
    UUIDS,
    WELL_LOG,
    changed,
    container,
    detail,
    probed,
    sandbox,
    seen,
    snapshot,
    unit,
)

BOOTED = 1000.0
REBUILT_S = 1.5
"""From the removal of a container to the registration of the next one (facts of a real kubelet: 1.2
to 1.7 s)."""
HEALTHY, POD = snapshot(), sandbox()
read_log = lru_cache(plugin_log.read)
Cure = Callable[[int], bool]
"""Does the container that is built n-th register?"""


@dataclass
class World:
    """One node. `cures` is the rebuild that helps, `hup_cures` whether SIGHUP does."""

    cures: Cure = lambda built: built > 0
    hup_cures: bool = False
    version: str = "v0.9.0"
    deaf: bool = False
    "it registers when it starts, and never again"
    settings: Settings = field(default_factory=Settings)
    now: float = BOOTED
    built: int = 0
    registered: bool = False
    log: bytes = FAILED_LOG
    coming_at: float = 0.0
    "when the kubelet has built the next container; 0: none is coming"
    started_at: float = 60.0
    kubelet: int = 1
    kubelet_since: float = 50.0
    probe: int = 0
    probed_at: float = 0.0
    entries: list[LedgerEntry] = field(default_factory=list)
    acts: bool = True
    "False: the agent is killed after the ledger's line and before the act"
    gate: Gate = field(init=False)
    looks: int = 0
    decided: list[tuple[float, Any]] = field(default_factory=list)
    "every disruptive action that was decided, with its time"

    def __post_init__(self) -> None:
        self.gate = Gate(started_at=self.now, since=self.now)

    # --- the node

    def restart_kubelet(self) -> None:
        self.kubelet, self.kubelet_since = self.kubelet + 1, self.now
        self.registered = self.registered and not self.deaf

    def pass_time(self, until: float) -> None:
        if self.coming_at and self.coming_at <= until:
            self.built, self.started_at, self.coming_at = self.built + 1, self.coming_at - 1.0, 0.0
            self.registered = self.cures(self.built)
            self.log = WELL_LOG if self.registered else FAILED_LOG
        self.now = until

    def sights(self) -> tuple[PluginSight, ...]:
        if self.coming_at:
            return ()
        of = container(
            f"c{self.built}", image=f"plugin:{self.version}", created_at=OFFSET + self.started_at
        )
        access = seen(Access("/dev/nvidiactl", True, "cgroup-bpf"), self.now)
        return (PluginSight(of, POD, seen(detail(of)), seen(read_log(self.log)), access),)

    def snapshot(self) -> Snapshot:
        report: dict[str, Any] = {"number": self.probe, "started_at": self.probed_at}
        units = (
            unit("nvidia-persistenced.service"),
            replace(
                unit("kubelet.service", since=self.kubelet_since),
                invocation_id=f"kubelet{self.kubelet}",
            ),
        )
        devices = (Devices("nvidia.com/gpu", UUIDS),) if self.registered else ()
        return changed(
            HEALTHY,
            clock=Clock(self.now, self.now - 5, self.now + OFFSET),
            probe=probed(**report),
            units=seen(units, self.now),
            allocatable=seen(devices, self.now),
            plugins=self.sights(),
            ledger=seen(tuple(self.entries), self.now),
            learned=seen(BUSES),
        )

    # --- the agent

    def look(self) -> Diagnosis:
        """One cycle; the time of the next one is in `next_at`."""
        self.looks += 1
        diagnosis = diagnose(self.snapshot(), self.settings)
        done = step(self.gate, diagnosis, self.now, self.settings)
        self.gate, self.next_at = done.gate, done.wake_at
        for action in done.actions:
            self._act(action)
        return diagnosis

    def _act(self, action: Any) -> None:
        match action:
            case StartProbe():
                self.probe, self.probed_at = self.probe + 1, self.now
                self.next_at = min(self.next_at, self.now + 0.1)
            case NoteOutcome():
                self._write(action.number, ledger.OUTCOME, "", "", action.outcome)
            case NoteNvmlFailed():
                self._write(action.number, ledger.NVML_FAILED, "", "", "")
            case Rebuild() | SendHup():
                self.decided.append((self.now, action))
                self._write(
                    action.number,
                    "rebuild" if isinstance(action, Rebuild) else "hup",
                    action.container_id,
                    action.cause,
                    "",
                )
                if self.acts and isinstance(action, Rebuild):
                    self.coming_at, self.registered = self.now + REBUILT_S, False
                elif self.acts and self.hup_cures:
                    self.registered, self.log = True, WELL_LOG

    def _write(self, number: int, what: str, target: str, cause: str, outcome: str) -> None:
        self.entries.append(
            LedgerEntry(
                self.now + OFFSET, BOOT_ID, number, what, target, cause, f"/e/{number}", outcome
            )
        )

    def forget(self) -> None:
        """The agent is killed and started again: its memory is gone, the ledger stays."""
        self.gate = Gate(started_at=self.now, since=self.now)

    def live(self, for_s: float, until: Callable[[World], bool] | None = None) -> World:
        """Run a cycle whenever the agent requests one, for this long or until the condition is
        true."""
        ends = self.now + for_s
        while self.now < ends:
            self.look()
            if until and until(self):
                break
            self.pass_time(min(max(self.next_at, self.now + 0.05), ends))
        return self

    @property
    def actions(self) -> list[LedgerEntry]:
        return [e for e in self.entries if e.what not in (ledger.OUTCOME, ledger.NVML_FAILED)]

    @property
    def outcomes(self) -> list[str]:
        return [e.outcome for e in self.entries if e.what == ledger.OUTCOME]


def open_world(**changes: Any) -> World:
    """NVML is stable, and the agent has just seen that it is."""
    return World(**changes).live(60, lambda world: world.gate.open_since is not None)
