"""The wait unit and the kubelet of a simulated node (facts: docs/design.md §4, §6)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from agent.core.gate.deadline import hold_limit_s
from agent.model.reading import Reading, Refusal, Seen, Why
from agent.model.snapshot import Devices

from .plugins import GPU, SOCKETS, Kind, Offers
from .pods import HostUnit, Pod

if TYPE_CHECKING:
    from .world import World

CHECKPOINT = "kubelet_internal_checkpoint"
RELEASED = "/run/gpu-gate/released"
WAIT_POLL_S = 0.05
PLUGIN_AFTER_S = 1.0
"from the kubelet's start to the plugin's question to NVML"


class Kubelet:
    """The chain from the wait unit to the list of allocatable devices."""

    def __init__(self, world: World, installed: bool) -> None:
        self.world = world
        self.kind = Kind()
        self.registered: Offers = {}
        self.unhealthy: set[str] = set()
        self.silent = False
        "pod-resources gives no answer"
        self.starts = 0
        self.waiting = False
        self.pods: list[Pod | HostUnit] = []
        self.resource = GPU
        "what the plugins call a whole GPU"
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
        elif not (
            world.settings.expected_gpus
            or world.hardware.on_soc
            or any(c.on_bus for c in world.hardware.cards)
        ):
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
        self.registered = {}
        self.world.disk.remove(f"{SOCKETS}/kubelet.sock")
        self.world.set_unit(self.unit, "inactive")
        self.world.say("the kubelet stops")
        self.world.signal("systemd")

    def _begin(self, sentence: str) -> None:
        world = self.world
        self.starts += 1
        self.registered = {}
        self.unhealthy.clear()
        for name in world.disk.names(SOCKETS):
            if name != CHECKPOINT:
                world.disk.remove(f"{SOCKETS}/{name}")
        world.disk.socket(f"{SOCKETS}/kubelet.sock")
        world.set_unit(self.unit, "active")
        world.say(sentence)
        world.signal("systemd")
        world.signal("inotify")
        for pod in self.pods:
            pod.sync(PLUGIN_AFTER_S)

    def launch(self) -> None:
        """What the agent launched is started: a unit by systemd, a static pod by a kubelet that
        runs."""
        for pod in self.pods:
            if isinstance(pod, HostUnit):
                pod.is_launched = True
            if self.is_active:
                pod.sync(PLUGIN_AFTER_S)

    def removed(self, container_id: str) -> None:
        """A container was removed: its pod gets another one."""
        for pod in self.pods:
            pod.removed(container_id)

    def register(self, offered: Offers) -> None:
        self.registered = {
            self.resource if name == GPU else name: ids for name, ids in offered.items()
        }
        self.unhealthy.clear()
        registered = {"RegisteredDevices": {name: list(ids) for name, ids in offered.items()}}
        self.world.disk.write(
            f"{SOCKETS}/{CHECKPOINT}", json.dumps({"Data": registered}), self.world.realtime
        )
        words = [
            f"{len(ids)} GPUs" if name == GPU else f"{len(ids)} {name}"
            for name, ids in sorted(offered.items())
        ]
        self.world.say(f"the plugin registers {', '.join(words)}")
        self.world.signal(
            "inotify"
        )  # it writes its checkpoint (kubernetes pkg/kubelet/cm/devicemanager)

    def sees_xid(self, uuid: str) -> None:
        """A GPU is lost: the plugin's health check says so."""
        for pod in self.pods:
            if pod.plugin is not None:
                pod.plugin.sees_xid(uuid)

    def endpoint_stops(self) -> None:
        """Whoever stops to serve the resource takes its devices away, also those another instance
        registered."""
        self.registered = {}

    def listed(self) -> set[str]:
        """The truth of which GPUs may be allocated, whole or in parts: what is listed and
        exists."""
        ids = {i.partition("::")[0] for of in self._healthy().values() for i in of}
        return {c.uuid for c in self.world.hardware.cards if ids & {c.uuid, *c.migs}}

    def given(self, uuids: set[str]) -> set[str]:
        """Of these GPUs those that the plugins may see."""
        return {u for u in uuids if self.kind.sees(u)} if self.pods else set()

    def _healthy(self) -> Offers:
        return (
            {
                name: tuple(sorted(i for i in ids if i not in self.unhealthy))
                for name, ids in self.registered.items()
            }
            if self.is_active
            else {}
        )

    def allocatable(self) -> Reading[tuple[Devices, ...]]:
        if not self.is_active:
            return Refusal(Why.MISSING, "no kubelet has opened its pod-resources API")
        if self.silent:
            return Refusal(Why.TIMED_OUT, "no answer within 1.0 s")
        return Seen(
            tuple(Devices(name, ids) for name, ids in sorted(self._healthy().items()) if ids),
            self.world.now,
        )
