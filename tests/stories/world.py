"""A simulated GPU node in virtual time. It answers what a Host is asked, in files and folders, so
that look() and its parsers are exercised, and it changes as real nodes do.

A change may come with a signal of a kind: udev (module, bind), systemd (units, reload), inotify
(/dev, /run, the kubelet's folders). Who is told of a signal, and whether it gets there, is not the
node's business.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from agent.core.common.paths import RUN, STATE
from agent.host.live import ALLOCATABLE_FRESH_S, QUIET_S
from agent.host.tape import Recorder
from agent.model.access import AccessState, Allocation, Process
from agent.model.actions import (
    Action,
    LaunchUnit,
    Learn,
    LinkDevChar,
    LoadModule,
    MakeNodes,
    PlaceManifest,
    RefreshCdi,
    Release,
)
from agent.model.errors import ActionFailed
from agent.model.kernel import KernelLine
from agent.model.reading import Reading, Refusal, Seen, Why
from agent.model.runtime import Access, ContainerDetail, Runtime
from agent.model.settings import Settings
from agent.model.snapshot import Clock, Devices, Entry, Manager, ProbeState, Unit
from agent.model.wake import WakeReason, WakeSource

from .disk import Disk
from .gpus import Card, Hardware
from .kubelet import Kubelet
from .pods import Pod
from .runtime import Cri
from .timeline import BOOT, Timeline
from .toolkit import Toolkit
from .workloads import Workloads

SOURCES = {
    "udev": WakeSource.UDEV,
    "systemd": WakeSource.UNIT,
    "inotify": WakeSource.FOLDER,
}
SIGNALS = tuple(SOURCES)
MANIFEST = "/etc/kubernetes/manifests/kube-apiserver.yaml"
NO_BUS = Refusal(Why.FAILED, "no D-Bus: /run/dbus/system_bus_socket is not there")
REALTIME = 1_760_000_000.0
"realtime less boottime, in seconds"


class World:
    """One node. Also a Host: its read-only face."""

    def __init__(
        self, gpus: int = 8, settings: Settings | None = None, kubelet: bool = True
    ) -> None:
        self.settings = settings or Settings()
        self.time = Timeline()
        self.disk = Disk()
        self.hardware = Hardware(self.disk, gpus)
        self.systemd: dict[str, Unit] = {}
        self._starts = 0
        self.reloaded_at = 1.0
        self.bus: Refusal | None = None
        "why systemd does not answer"
        self.hang = ""
        '"", S (a hang that SIGKILL ends) or D'
        self.persistence = True
        self.init_s = 1.0
        "seconds to bring up one GPU, where the driver is not kept initialised"
        self.driver_starts = 0
        "how often probes brought the driver up"
        self.hands: dict[str, str] = {}
        'action to "fails" or "does nothing"'
        self.lookup_s = 0.0
        "how long a look takes"
        self.is_quiet, self.reuse_s = False, 0.0
        "how old answers of systemd and the kubelet may be, as agent/host/live.py has it"
        self._old: dict[str, Seen[Any]] = {}
        self.clock_off_s = 0.0
        "how far the clock was set since the boot"
        self.boot_id = "b007b007-0000-4000-8000-000000000001"
        self.kernel: list[KernelLine] = []
        self.ledger: list[str] = []
        self.ledger_mood = ""
        '"" or unwritable'
        self.disk_full = False
        self.probes: Callable[[], ProbeState] = ProbeState
        self.on_signal: Callable[[str, WakeReason], None] = lambda kind, reason: None
        self.on_thaw: Callable[[], None] = lambda: None
        self.on_word: Callable[[str], None] = lambda sentence: None
        self.disk.folder("/dev/char")
        self.disk.folder(RUN)
        self.disk.folder(STATE)
        for name in ("nvidia-persistenced.service", "containerd.service"):
            self.set_unit(name, "active", since=BOOT - 50)
        self.disk.write("/proc/sys/kernel/random/boot_id", f"{self.boot_id}\n")
        self.workloads = Workloads(self)
        self.checks: Callable[[], AccessState] = AccessState
        self.cri = Cri(self)
        self.kubelet = Kubelet(self, kubelet)
        self.kubelet.pods = [Pod(self)] if kubelet else []
        self.toolkit = Toolkit(self)
        for number, name in enumerate(
            ("trainer", "nvidia-dcgm-exporter", "config-manager-sidecar")
        ):
            self.cri.create(self.cri.sandbox(f"{name}-{number}", {}), name, f"registry/{name}:1", 0)

    # What the stories change.

    @property
    def now(self) -> float:
        return self.time.now

    @property
    def realtime(self) -> float:
        return REALTIME + self.clock_off_s + self.now

    @property
    def control_plane(self) -> bool:
        return self.disk.has(MANIFEST)

    def signal(self, kind: str, source: WakeSource | None = None) -> None:
        self.on_signal(kind, WakeReason(source or SOURCES[kind]))

    def may_reuse(self, is_quiet: bool, within_s: float) -> None:
        self.is_quiet, self.reuse_s = is_quiet, within_s

    def record(self) -> Recorder:
        return Recorder(self)

    def say(self, sentence: str) -> None:
        self.on_word(sentence)

    def set_unit(
        self, name: str, active: str, since: float | None = None, load: str = "loaded"
    ) -> None:
        before = self.systemd.get(name)
        started = active == "active"
        self._starts += started
        old = before.active_since if before else None
        at = (since if since is not None else self.now) if started else old
        unlike = f"{self._starts * 0x9E3779B1 & 0xFFFFFFFF:08x}" * 4
        invocation = unlike if started else (before.invocation_id if before else "")
        self.systemd[name] = Unit(
            name,
            load,
            active,
            "running" if started else "dead",
            invocation,
            at,
            "enabled" if load == "loaded" else "",
        )

    def mark(self, name: str, reason: str) -> None:
        self.disk.write(f"{RUN}/{name}", json.dumps({"reason": reason, "at": self.now}))
        self.signal("inotify")

    def pause(self, for_s: float | None) -> None:
        until = {"until": self.now + for_s} if for_s is not None else {}
        self.disk.write(
            f"{RUN}/paused", json.dumps({"reason": "changing the driver", "at": self.now, **until})
        )
        self.signal("inotify")

    def is_paused(self) -> bool:
        """By a mark that has not ended, or by the one unit that pauses by default."""
        mark = self.disk.read(f"{RUN}/paused", 65536, self.now)
        until = json.loads(mark.value).get("until") if isinstance(mark, Seen) else 0.0
        mig = self.systemd.get("nvidia-mig-manager.service")
        return until is None or self.now < until or (mig is not None and mig.active == "activating")

    def thaw(self) -> None:
        self.hang = ""
        self.on_thaw()

    def load_driver(self, nodes: bool = True, links: bool = True) -> None:
        """The module is there, whole; nodes and links where udev rules make them."""
        self.hardware.module = "live"
        self.prints(f"NVRM: loading NVIDIA UNIX x86_64 Kernel Module  {self.hardware.version}")
        self.hardware.show()
        if nodes:
            self.hardware.make_nodes()
        if links:
            self.hardware.make_links()

    def prints(self, text: str) -> None:
        """A line of the kernel's log. It sends no signal."""
        self.kernel.append(KernelLine(self.now, text))

    def unload_driver(self) -> None:
        self.hardware.module, self.hardware.uvm = "", False
        self.hardware.show()
        for name in self.disk.names("/dev"):
            if name.startswith("nvidia"):
                self.disk.remove(f"/dev/{name}")

    def expected(self) -> list[Card]:
        """The cards that a truthful gate would wait for: its settings aside, what is for containers
        here."""
        excluded, given = self.settings.exclude_gpus, self.hardware.given
        mine = ("nvidia", "") if given is None else ("nvidia",)
        return [
            c
            for c in self.hardware.cards
            if c.on_bus
            and c.driver in mine
            and c.bus_id not in excluded
            and (given is None or c.bus_id in given)
        ]

    def seen_nodes(self) -> set[str]:
        """Device nodes that can be read."""
        listed = self.disk.list("/dev", "nvidia*", self.now)
        return set() if isinstance(listed, Refusal) else {f"/dev/{e.name}" for e in listed.value}

    # What hands do.

    def act(self, action: Action) -> None:
        """Do what an additive hand was told, or ActionFailed."""
        mood = self.hands.get(type(action).__name__, "")
        if mood == "fails":
            raise ActionFailed(type(action).__name__)
        if mood:
            return
        match action:
            case Release():
                self.mark("released", action.reason)
                self.kubelet.on_released()
            case LinkDevChar():
                for name, target in action.links:
                    self.disk.link(f"/dev/char/{name}", target)
                self.signal("inotify")
            case MakeNodes():
                for minor in action.minors:
                    self.hardware.make_node(
                        "/dev/nvidiactl" if minor == 255 else f"/dev/nvidia{minor}"
                    )
                if action.uvm:
                    self.hardware.make_node("/dev/nvidia-uvm")
                    self.hardware.make_node("/dev/nvidia-uvm-tools")
                self.signal("inotify")
            case LoadModule():
                self.load_driver(links=False)
                self.signal("udev")
            case RefreshCdi():
                self.toolkit.refresh()
            case LaunchUnit():
                self.mark("launched", action.unit)
                self.kubelet.launch()
            case PlaceManifest():
                self.disk.write(
                    action.target, self.disk.read(action.source, 1 << 20, self.now).value
                )
                self.mark("launched", action.target)
                self.kubelet.pods.append(Pod(self, "gpu-gate-plugin"))
                self.kubelet.launch()
            case Learn():
                stored = {"machine": "this-machine", "bus_ids": list(action.bus_ids)}
                self.disk.write(f"{STATE}/learned.json", json.dumps(stored))
            case _:
                raise AssertionError(f"no hand of this world: {action}")

    # What a Host is asked.

    async def clock(self) -> Clock:
        return Clock(self.now, self.now, self.realtime)

    async def machine(self) -> str:
        return "this-machine"

    async def file(self, path: str, limit: int = 65536) -> Reading[bytes]:
        return self.disk.read(path, limit, self.now)

    async def tail(self, path: str, limit: int = 65536) -> Reading[bytes]:
        return self.disk.read(path, limit, self.now, from_end=True)

    async def folder(self, path: str, match: str = "*") -> Reading[tuple[Entry, ...]]:
        return self.disk.list(path, match, self.now)

    async def document(self, path: str, limit: int = 1 << 20) -> Reading[bytes]:
        return self.disk.read(path, limit, self.now)

    async def absent(self, paths: Sequence[str]) -> Reading[tuple[str, ...]]:
        return Seen(tuple(p for p in paths if not self.disk.has(p)), self.now)

    async def units(self, names: Sequence[str]) -> Reading[tuple[Unit, ...]]:
        return self._fresh("units", lambda: self._units(names))

    def _units(self, names: Sequence[str]) -> Reading[tuple[Unit, ...]]:
        if self.bus is not None:
            return self.bus
        unknown = Unit("", "not-found", "inactive", "dead", "", None)
        return Seen(tuple(self.systemd.get(n) or replace(unknown, name=n) for n in names), self.now)

    async def manager(self) -> Reading[Manager]:
        return self._fresh(
            "manager", lambda: self.bus or Seen(Manager("252", self.reloaded_at), self.now)
        )

    async def probe(self) -> Reading[ProbeState]:
        return Seen(self.probes(), self.now)

    async def allocatable(self, socket: str) -> Reading[tuple[Devices, ...]]:
        return self._fresh("allocatable", self.kubelet.allocatable, ALLOCATABLE_FRESH_S)

    async def runtime(self, socket: str) -> Reading[Runtime]:
        return self.cri.runtime(socket)

    async def container(self, socket: str, container_id: str) -> Reading[ContainerDetail]:
        return self.cri.container(socket, container_id)

    async def access(self, pid: int, path: str) -> Reading[Access]:
        return self.cri.access(pid, path)

    async def listener(self, path: str) -> Reading[int]:
        return self.cri.listener(path)

    async def allocations(self, socket: str) -> Reading[tuple[Allocation, ...]]:
        return self.workloads.allocations()

    async def processes(
        self, socket: str, container_ids: Sequence[str]
    ) -> Reading[tuple[Process, ...]]:
        return self.workloads.processes(tuple(container_ids))

    async def access_state(self) -> Reading[AccessState]:
        return Seen(self.checks(), self.now)

    async def kernel_log(self) -> Reading[tuple[KernelLine, ...]]:
        return Seen(tuple(self.kernel), self.now)

    async def trouble(self) -> tuple[str, ...]:
        return ()

    def _fresh(
        self, what: str, ask: Callable[[], Reading[Any]], within_s: float = 0.0
    ) -> Reading[Any]:
        """The last answer, where that may still be given; a refusal is never given twice."""
        old = self._old.pop(what, None)
        within_s = max(within_s, QUIET_S if self.is_quiet else self.reuse_s)
        answer = old if old is not None and self.now - old.at < within_s else ask()
        if isinstance(answer, Seen):
            self._old[what] = answer
        return answer
