"""A simulated GPU node in virtual time. It answers what a Host is asked, in files and folders, so that look() and
its parsers are exercised, and it changes as real nodes do.

A change may come with a signal of a kind: udev (module, bind), systemd (units, reload), inotify (/dev, /run, the
kubelet's folders). Who is told of a signal, and whether it gets there, is not the node's business.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

from agent.core.paths import RUN, STATE
from agent.model.plan import Action, Learn, LinkDevChar, LoadModule, MakeNodes, Release
from agent.model.reading import Reading, Refusal, Seen, Why
from agent.model.scene import Clock, Devices, Entry, Manager, ProbeState, Unit
from agent.model.settings import Settings

from .disk import Disk
from .gpus import Card, Hardware
from .kubelet import Kubelet
from .timeline import BOOT, Timeline

SIGNALS = ("udev", "systemd", "inotify")
MANIFEST = "/etc/kubernetes/manifests/kube-apiserver.yaml"
NO_BUS = Refusal(Why.FAILED, "no D-Bus: /run/dbus/system_bus_socket is not there")


class World:
    """One node. Also a Host: its read-only face."""

    def __init__(self, gpus: int = 8, settings: Settings | None = None, kubelet: bool = True) -> None:
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
        self.probes: Callable[[], ProbeState] = ProbeState
        self.on_signal: Callable[[str], None] = lambda kind: None
        self.on_thaw: Callable[[], None] = lambda: None
        self.on_word: Callable[[str], None] = lambda sentence: None
        self.disk.folder("/dev/char")
        self.disk.folder(RUN)
        self.disk.folder(STATE)
        for name in ("nvidia-persistenced.service", "containerd.service"):
            self.set_unit(name, "active", since=BOOT - 50)
        self.kubelet = Kubelet(self, kubelet)

    # What the stories change.

    @property
    def now(self) -> float:
        return self.time.now

    @property
    def control_plane(self) -> bool:
        return self.disk.has(MANIFEST)

    def signal(self, kind: str) -> None:
        self.on_signal(kind)

    def say(self, sentence: str) -> None:
        self.on_word(sentence)

    def set_unit(self, name: str, active: str, since: float | None = None, load: str = "loaded") -> None:
        before = self.systemd.get(name)
        started = active == "active"
        self._starts += started
        old = before.active_since if before else None
        at = (since if since is not None else self.now) if started else old
        invocation = f"{self._starts:032x}" if started else (before.invocation_id if before else "")
        self.systemd[name] = Unit(name, load, active, "running" if started else "dead", invocation, at,
                                "enabled" if load == "loaded" else "")

    def mark(self, name: str, reason: str) -> None:
        self.disk.write(f"{RUN}/{name}", json.dumps({"reason": reason, "at": self.now}))
        self.signal("inotify")

    def thaw(self) -> None:
        self.hang = ""
        self.on_thaw()

    def load_driver(self, nodes: bool = True, links: bool = True) -> None:
        """The module is there, whole; nodes and links where udev rules make them."""
        self.hardware.module = "live"
        self.hardware.show()
        if nodes:
            self.hardware.make_nodes()
        if links:
            self.hardware.make_links()

    def unload_driver(self) -> None:
        self.hardware.module, self.hardware.uvm = "", False
        self.hardware.show()
        for name in self.disk.names("/dev"):
            if name.startswith("nvidia"):
                self.disk.remove(f"/dev/{name}")

    def expected(self) -> list[Card]:
        """The cards that a truthful gate would wait for: its settings aside, what is for containers here."""
        excluded = self.settings.exclude_gpus
        return [c for c in self.hardware.cards if c.on_bus and c.driver in ("nvidia", "")
                and c.bus_id not in excluded
                and (self.hardware.given is None or c.bus_id in self.hardware.given)]

    # What hands do.

    def act(self, action: Action) -> bool:
        """Do what a hand was told; False where it failed."""
        mood = self.hands.get(type(action).__name__, "")
        if mood:
            return mood != "fails"
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
                    self.hardware.make_node("/dev/nvidiactl" if minor == 255 else f"/dev/nvidia{minor}")
                if action.uvm:
                    self.hardware.make_node("/dev/nvidia-uvm")
                    self.hardware.make_node("/dev/nvidia-uvm-tools")
                self.signal("inotify")
            case LoadModule():
                self.load_driver(links=False)
                self.signal("udev")
            case Learn():
                stored = {"machine": "this-machine", "bus_ids": list(action.bus_ids)}
                self.disk.write(f"{STATE}/learned.json", json.dumps(stored))
            case _:
                raise AssertionError(f"no hand of this world: {action}")
        return True

    # What a Host is asked.

    async def clock(self) -> Clock:
        return Clock(self.now, self.now, 1_760_000_000.0 + self.now)

    async def machine(self) -> str:
        return "this-machine"

    async def file(self, path: str, limit: int = 65536) -> Reading[bytes]:
        return self.disk.read(path, limit, self.now)

    async def folder(self, path: str, match: str = "*") -> Reading[tuple[Entry, ...]]:
        return self.disk.list(path, match, self.now)

    async def units(self, names: Sequence[str]) -> Reading[tuple[Unit, ...]]:
        if self.bus is not None:
            return self.bus
        unknown = Unit("", "not-found", "inactive", "dead", "", None)
        return Seen(tuple(self.systemd.get(n) or replace(unknown, name=n) for n in names), self.now)

    async def manager(self) -> Reading[Manager]:
        return self.bus if self.bus is not None else Seen(Manager("252", self.reloaded_at), self.now)

    async def probe(self) -> Reading[ProbeState]:
        return Seen(self.probes(), self.now)

    async def allocatable(self, socket: str) -> Reading[tuple[Devices, ...]]:
        return self.kubelet.allocatable()

    async def trouble(self) -> tuple[str, ...]:
        return ()
