"""The wait unit, the kubelet and NVIDIA's device plugin of a simulated node (facts: docs/design.md §4, §6).

The plugin asks NVML once when it is started, registers what it saw, and never asks again by itself; only a new
kubelet.sock or a restart makes it. A lost GPU makes it exit, whatever fail-on-init-error says; it is started again
after 10 s, 20 s, …
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.core.deadline import hold_limit_s
from agent.model.reading import Reading, Refusal, Seen, Why
from agent.model.scene import Devices

if TYPE_CHECKING:
    from .world import World

RELEASED = "/run/gpu-gate/released"
SOCKETS = "/var/lib/kubelet/device-plugins"
REGISTERS_S = 0.3
WAIT_POLL_S = 0.05


class Kubelet:
    """The chain from the wait unit to the list of allocatable devices."""

    def __init__(self, world: World, installed: bool) -> None:
        self.world = world
        self.plugin_after_s = 1.0
        self.registered: tuple[str, ...] = ()
        self.waiting = False
        self._life = 0
        "counts starts of the plugin: an older one's events are void"
        self._crashes = 0
        self.unit = "kubelet.service"
        world.set_unit(self.unit, "inactive", load="loaded" if installed else "not-found")

    @property
    def is_active(self) -> bool:
        return self.world.systemd[self.unit].active == "active"

    def wait(self) -> None:
        """The wait unit starts; the kubelet is ordered after it."""
        world = self.world
        if world.disk.has(RELEASED):
            self.start()
        elif not world.settings.expected_gpus and not any(c.on_bus for c in world.hardware.cards):
            world.mark("released", "no NVIDIA GPU on the PCI bus")
            self.start()
        else:
            self.waiting = True
            world.mark("waiting", "the wait unit was started")
            limit = hold_limit_s(world.settings, world.control_plane)
            world.time.after(limit + 1.0, self._wait_is_over)

    def _wait_is_over(self) -> None:
        if self.waiting:
            self.world.say("the wait unit ends by itself, at its own deadline")
            self.world.mark("released", "the deadline is over; the agent did not answer")
            self.on_released()

    def on_released(self) -> None:
        """The mark is there: the wait unit sees it at its next poll."""
        if self.waiting:
            self.waiting = False
            self.world.time.after(2 * WAIT_POLL_S, self.start)

    def start(self) -> None:
        if not self.is_active:
            self._begin("the kubelet starts")

    def restart(self) -> None:
        self._begin("the kubelet restarts")

    def stop(self) -> None:
        self._life += 1
        self.registered = ()
        self.world.disk.remove(f"{SOCKETS}/kubelet.sock")
        self.world.set_unit(self.unit, "inactive")
        self.world.say("the kubelet stops")
        self.world.signal("systemd")

    def _begin(self, sentence: str) -> None:
        world = self.world
        world.disk.remove(SOCKETS)
        world.disk.socket(f"{SOCKETS}/kubelet.sock")
        world.set_unit(self.unit, "active")
        world.say(sentence)
        world.signal("systemd")
        world.signal("inotify")
        self.start_plugin()

    def start_plugin(self) -> None:
        self._life += 1
        self.registered = ()
        life = self._life
        self.world.time.after(self.plugin_after_s, lambda: self._ask_nvml(life))

    def _ask_nvml(self, life: int) -> None:
        world = self.world
        if life != self._life or not self.is_active:
            return
        if world.hang:
            world.time.after(1.0, lambda: self._ask_nvml(life))
            return
        said = world.hardware.enumerate()
        uuids = tuple(g["uuid"] for g in said["gpus"])
        if any(e["index"] >= 0 for e in said["errors"]):
            self._crashes += 1
            world.say("the plugin exits: error getting a GPU; it will be started again")
            world.time.after(min(300.0, 10.0 * 2 ** (self._crashes - 1)), lambda: self._ask_nvml(life))
        elif not uuids:
            why = f"Failed to initialize NVML: {said['errors'][0]['code']}" if said["errors"] else "No devices found"
            world.say(f"the plugin: {why}. Waiting indefinitely")
        else:
            world.disk.socket(f"{SOCKETS}/nvidia-gpu.sock")
            world.signal("inotify")
            world.time.after(REGISTERS_S, lambda: self._register(life, uuids))

    def _register(self, life: int, uuids: tuple[str, ...]) -> None:
        if life == self._life and self.is_active:
            self.registered = uuids
            self.world.say(f"the plugin registers {len(uuids)} GPUs")

    def allocatable(self) -> Reading[tuple[Devices, ...]]:
        if not self.is_active:
            return Refusal(Why.MISSING, "no kubelet has opened its pod-resources API")
        healthy = {c.uuid for c in self.world.hardware.mine() if not c.error}
        ids = tuple(sorted(u for u in self.registered if u in healthy))
        return Seen((Devices("nvidia.com/gpu", ids),) if ids else (), self.world.now)
