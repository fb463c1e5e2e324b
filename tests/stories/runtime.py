"""The container runtime of a simulated node: what CRI lists, and its two calls that end a
container."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from agent.core.common.layouts import CONTAINERD
from agent.core.plugin.candidates import USER_HZ
from agent.model.reading import Reading, Refusal, Seen, Why
from agent.model.runtime import Access, Container, ContainerDetail, ContainerState, Runtime, Sandbox

from .plugins import Kind, Plugin

if TYPE_CHECKING:
    from .world import World

STOP_WITHIN_S = 15.0
"as agent/host/repairer.py waits for a stop"
MOODS = {
    "silent": Refusal(Why.TIMED_OUT, "no answer within 1.0 s"),
    "refusing": Refusal(Why.FAILED, "connection refused"),
}


class Box:
    """A container, with the process in it."""

    def __init__(self, made: Container, plugin: Plugin | None, pid: int, kind: Kind) -> None:
        self.made, self.plugin, self.pid, self.kind = made, plugin, pid, kind
        self.log = bytearray()
        self.exit_code = 0
        self.started_at = made.created_at
        self.ticks = "0"
        "when its process was made, as /proc tells it"

    @property
    def log_path(self) -> str:
        return f"/var/log/pods/{self.made.sandbox_id}/{self.made.name}/{self.made.id}.log"

    @property
    def is_running(self) -> bool:
        return self.made.state is ContainerState.RUNNING

    def detail(self) -> ContainerDetail:
        image = f"nvcr.io/nvidia/k8s-device-plugin:v{self.kind.version[0]}.{self.kind.version[1]}.0"
        return ContainerDetail(
            self.made.id,
            self.made.state,
            self.started_at,
            0.0,
            self.exit_code,
            "",
            image if self.plugin else self.made.image,
            self.log_path,
            self.pid if self.is_running else 0,
            (),
            self.kind.env if self.plugin else {},
        )


class Cri:
    """containerd, as far as it is asked."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.mood = ""
        '"", silent, refusing, stuck (lists, and stops nothing), slow (a stop takes its time)'
        self.sandboxes: dict[str, Sandbox] = {}
        self.boxes: dict[str, Box] = {}
        self._made = 0
        self.removed: list[str] = []

    @property
    def works(self) -> bool:
        return (
            self.mood not in MOODS and self._world.systemd["containerd.service"].active == "active"
        )

    def sandbox(self, name: str, labels: dict[str, str]) -> Sandbox:
        self._made += 1
        made = Sandbox(
            f"{0x5A0000 + self._made:064x}",
            name,
            "kube-system",
            f"uid-{name}",
            0,
            True,
            self._world.realtime,
            labels,
            {},
        )
        self.sandboxes[made.id] = made
        return made

    def create(self, sandbox: Sandbox, name: str, image: str, attempt: int) -> Box:
        """A container that runs; a plugin's process is put into it by the kubelet."""
        self._made += 1
        labels = {
            "io.kubernetes.container.name": name,
            "io.kubernetes.pod.uid": sandbox.uid,
            "io.kubernetes.pod.name": sandbox.name,
            "io.kubernetes.pod.namespace": sandbox.namespace,
        }
        unlike = f"{self._made * 0x9E3779B1 & 0xFFFFFFFF:08x}" * 8
        made = Container(
            unlike,
            sandbox.id,
            name,
            attempt,
            image,
            ContainerState.RUNNING,
            self._world.realtime,
            labels,
        )
        box = Box(made, None, 1000 + self._made, Kind(**vars(self._world.kubelet.kind)))
        box.ticks = str(round(self._world.now * USER_HZ))
        self.boxes[made.id] = box
        self._world.disk.write(box.log_path, b"")
        return box

    def write(self, box: Box, line: str) -> None:
        stamp = datetime.fromtimestamp(self._world.realtime, timezone.utc)
        box.log += f"{stamp:%Y-%m-%dT%H:%M:%S.%f}Z stderr F {line}\n".encode()
        self._world.disk.write(box.log_path, bytes(box.log))

    def ended(self, box: Box, code: int) -> None:
        box.made = replace(box.made, state=ContainerState.EXITED)
        box.exit_code = code

    def remove(self, container_id: str) -> None:
        box = self.boxes.pop(container_id, None)
        self.removed.append(container_id)
        if box is not None:
            self._world.disk.remove(box.log_path)

    def drop(self, sandbox_id: str) -> None:
        """A sandbox is removed with its containers."""
        self.sandboxes.pop(sandbox_id, None)
        for box in [b for b in self.boxes.values() if b.made.sandbox_id == sandbox_id]:
            self.remove(box.made.id)

    def stop(self, container_id: str, grace_s: float, on_done: Callable[[str], None]) -> None:
        """StopContainer; `on_done` is told "" or what went wrong."""
        world, box = self._world, self.boxes.get(container_id)
        if not self.works or self.mood == "stuck":
            quick = self.mood == "refusing"
            world.time.after(
                0.01 if quick else STOP_WITHIN_S,
                lambda: on_done("connection refused" if quick else "no answer within 15.0 s"),
            )
            return
        if box is not None and box.plugin is not None:
            box.plugin.terminate(grace_s)
        self._await(box, 4.0 if self.mood == "slow" else 0.0, on_done)

    def _await(self, box: Box | None, more_s: float, on_done: Callable[[str], None]) -> None:
        if box is None or not box.is_running:
            self._world.time.after(more_s, lambda: on_done(""))
        else:
            self._world.time.after(0.25, lambda: self._await(box, more_s, on_done))

    # What a Host is asked.

    def runtime(self, socket: str) -> Reading[Runtime]:
        if refusal := self._refusal(socket):
            return refusal
        return Seen(
            Runtime(tuple(self.sandboxes.values()), tuple(b.made for b in self.boxes.values())),
            self._world.now,
        )

    def container(self, socket: str, container_id: str) -> Reading[ContainerDetail]:
        if refusal := self._refusal(socket):
            return refusal
        box = self.boxes.get(container_id)
        return Seen(box.detail(), self._world.now) if box else Refusal(Why.MISSING, "not found")

    def access(self, pid: int, path: str) -> Reading[Access]:
        box = next((b for b in self.boxes.values() if b.pid == pid and b.is_running), None)
        if box is None:
            return Refusal(Why.MISSING, "No such process")
        return Seen(Access(path, box.plugin is None or box.plugin.allowed, "bpf"), self._world.now)

    def listener(self, path: str) -> Reading[int]:
        """The newest plugin's process that serves; each has made the socket anew."""
        serving = [
            b.pid for b in self.boxes.values() if b.is_running and b.plugin and b.plugin.registered
        ]
        return (
            Seen(serving[-1], self._world.now)
            if serving
            else Refusal(Why.FAILED, "Connection refused")
        )

    def _refusal(self, socket: str) -> Refusal | None:
        active = self._world.systemd["containerd.service"].active == "active"
        if socket != CONTAINERD or not active:
            return Refusal(Why.MISSING, f"No such file or directory: {socket}")
        return MOODS.get(self.mood)
