"""The device plugin's pods and units: who starts their processes, and when again."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .plugins import Plugin
from .runtime import Box

if TYPE_CHECKING:
    from .world import World

IMAGE = "sha256:0f1d2c"
REBUILT_S = 1.2
"from a container's removal to its successor's start"
RETRY_S = 5.0
"until the kubelet asks a runtime again that did not answer"
MAX_CRASH_S = 300.0


class Pod:
    """A pod with the plugin's container."""

    def __init__(
        self,
        world: World,
        name: str = "nvidia-device-plugin-4xk2p",
        label: tuple[str, str] = ("name", "nvidia-device-plugin-ds"),
        container: str = "nvidia-device-plugin-ctr",
    ) -> None:
        self._world, self._container = world, container
        self._sandbox = world.cri.sandbox(name, dict([label]))
        self.box: Box | None = None
        self._crashes = 0
        self._attempt = 0
        self._plan = 0
        "counts plans to start a container; an older one is void"

    @property
    def plugin(self) -> Plugin | None:
        return self.box.plugin if self.box else None

    def sync(self, after_s: float) -> None:
        """The kubelet starts: a plugin that runs sees the new kubelet.sock, one that does not is
        started."""
        running = self.plugin if self.box and self.box.is_running else None
        if running is not None:
            self._world.time.after(after_s, running.kubelet_came)
        else:
            self._start_after(after_s)

    def removed(self, container_id: str) -> None:
        if self.box is not None and self.box.made.id == container_id:
            self.box, self._attempt = None, 0
            self._start_after(REBUILT_S)

    def deleted(self) -> None:
        """A person deletes the pod, and its successor comes."""
        self._crashes = self._attempt = 0
        if self.box is not None:
            box, self.box = self.box, None
            if box.plugin is not None:
                box.plugin.terminate(0.0)
            self._world.cri.remove(box.made.id)
        self._start_after(1.0)

    def never_again(self) -> None:
        """Its author wrote restartPolicy: Never."""
        applied = {
            "kubectl.kubernetes.io/last-applied-configuration": '{"spec": {"restartPolicy": '
            '"Never"}}'
        }
        self._sandbox = replace(self._sandbox, annotations=applied)
        self._world.cri.sandboxes[self._sandbox.id] = self._sandbox

    def leave(self) -> None:
        """The pod is gone for good, and its sandbox with all that was in it."""
        self._plan += 1
        if self.plugin is not None:
            self.plugin.terminate(0.0)
        self.box = None
        self._world.cri.drop(self._sandbox.id)

    def overlaps(self) -> None:
        """A new instance is started while the old one goes on for some seconds; its exit takes the
        endpoint away."""
        if self.box is None or self.plugin is None:
            return
        old = self.plugin
        self._world.time.after(3.0, lambda: old.terminate(0.0))
        self.box = None
        self._start()

    def _start_after(self, span_s: float) -> None:
        self._plan += 1
        plan = self._plan
        self._world.time.after(span_s, lambda: self._start_if(plan))

    def _start_if(self, plan: int) -> None:
        if (
            plan != self._plan
            or not self._world.kubelet.is_active
            or (self.box and self.box.is_running)
        ):
            return
        if not self._world.cri.works:
            self._start_after(RETRY_S)
            return
        self._start()

    def _start(self) -> None:
        world, cri = self._world, self._world.cri
        if self.box is not None:
            cri.remove(self.box.made.id)  # the kubelet clears away what is dead
        box = cri.create(self._sandbox, self._container, IMAGE, self._attempt)
        self.box = box
        box.plugin = Plugin(
            world,
            world.kubelet.kind,
            lambda line: cri.write(box, line),
            lambda code: self._exited(box, code),
        )
        box.plugin.begin()

    def _exited(self, box: Box, code: int) -> None:
        self._world.cri.ended(box, code)
        if box is not self.box:
            return
        self._crashes += code != 0
        self._attempt += 1
        self._start_after(min(MAX_CRASH_S, 10.0 * 2 ** (self._crashes - 1)) if code else 1.0)


class HostUnit:
    """A plugin that is a systemd unit of the host."""

    def __init__(self, world: World, name: str) -> None:
        self._world, self.name = world, name
        self.plugin: Plugin | None = None
        self.is_launched = world.settings.launch != "unit"
        "else it is not enabled, and nobody but the agent starts it"
        world.set_unit(name, "inactive")

    def sync(self, after_s: float) -> None:
        running = self.plugin
        if running is not None and running.alive:
            self._world.time.after(after_s, running.kubelet_came)
        elif self.is_launched:
            self._world.time.after(after_s, self.restart)

    def stop(self) -> None:
        """A person does."""
        if self.plugin is not None:
            self.plugin.terminate(0.0)
            self.plugin = None
        self.is_launched = False
        self._world.set_unit(self.name, "inactive")
        self._world.signal("systemd")

    def removed(self, container_id: str) -> None:
        """No container's end touches it."""

    def deleted(self) -> None:
        self.restart()

    def leave(self) -> None:
        """It is part of the host."""

    def restart(self) -> None:
        old, self.plugin = (
            self.plugin,
            Plugin(self._world, self._world.kubelet.kind, lambda line: None, self._exited),
        )
        if old is not None:
            old.terminate(0.0)
        self._world.set_unit(self.name, "active")
        self._world.signal("systemd")
        self._world.time.after(0.5, self.plugin.begin)

    def _exited(self, code: int) -> None:
        if code and self.plugin is not None and not self.plugin.alive:
            self._world.set_unit(self.name, "failed")
            self._world.signal("systemd")
            self._world.time.after(10.0, self._restart_failed)

    def _restart_failed(self) -> None:
        if self._world.systemd[self.name].active == "failed":
            self.restart()
