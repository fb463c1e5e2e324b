"""NVIDIA's device plugin as a process: what it asks, writes and does (facts as in docs/plugins.md).

It asks NVML once when it starts, registers what it saw, and never asks again by itself. Without
fail-on-init-error a failed start leaves it waiting for ever; with it, it exits. A lost GPU makes it
exit either way. A new kubelet.sock or SIGHUP makes it ask again, unless it is deaf; before 0.13 a
plugin that waits for ever is, and SIGHUP ends it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from agent.core.gpu.nvml_codes import name_of

if TYPE_CHECKING:
    from .world import World

SOCKETS = "/var/lib/kubelet/device-plugins"
SOCKET = f"{SOCKETS}/nvidia-gpu.sock"
REGISTERS_S = 0.3
AGAIN_S = 30.0
"a plugin that could not register tries again after so long"
POLL_S = 1.0


@dataclass
class Kind:
    """How the plugins of a node are set up; what changes here holds for those that are started from
    then on."""

    version: tuple[int, int] = (0, 17)
    fail_on_init: bool = False
    deaf: bool = False
    "it does not see a new kubelet.sock"
    library: bool = True
    "its container is given NVML's library"
    own_error: int = 0
    "what NVML says inside its container, whatever the host shows"
    asks_s: float = 0.0
    "how long NVML takes to show it every GPU, where the driver is not kept initialised"
    hangs: bool = False
    "NVML does not answer it, whatever it answers others"
    hup_ends: bool = False
    "after a failed start SIGHUP ends it, whatever its version says"
    mute: bool = False
    "its log is somewhere else"
    visible: str = ""
    'NVIDIA_VISIBLE_DEVICES; "": it is not set'
    strategy: str = ""
    'MIG_STRATEGY; "": none, and not set'
    replicas: int = 0
    "of each device, under a resource of its own; 0: not shared"

    def sees(self, uuid: str) -> bool:
        return self.visible in ("", "all") or uuid in self.visible.split(",")

    @property
    def env(self) -> dict[str, str]:
        said = {"NVIDIA_VISIBLE_DEVICES": self.visible, "MIG_STRATEGY": self.strategy}
        return {name: value for name, value in said.items() if value}


Offers = dict[str, tuple[str, ...]]
"""Resource to device ids."""
GPU = "nvidia.com/gpu"


def offers(kind: Kind, gpus: list[dict[str, Any]]) -> Offers:
    """What such a plugin offers of what NVML shows it."""
    found: Offers = {}
    for gpu in gpus:
        if not kind.sees(gpu["uuid"]):
            continue
        migs = gpu["state"].get("mig_devices", ()) if kind.strategy else ()
        for mig in migs:
            name = GPU if kind.strategy == "single" else f"nvidia.com/mig-{mig['profile']}"
            found[name] = (*found.get(name, ()), mig["uuid"])
        if not migs:
            found[GPU] = (*found.get(GPU, ()), gpu["uuid"])
    if kind.replicas:
        return {
            f"{n}.shared": tuple(f"{i}::{r}" for i in ids for r in range(kind.replicas))
            for n, ids in found.items()
        }
    return found


class Plugin:
    """One process."""

    def __init__(
        self, world: World, kind: Kind, write: Callable[[str], None], on_exit: Callable[[int], None]
    ) -> None:
        """`write` takes a line of its log, `on_exit` its status."""
        self._world, self._write, self._on_exit = world, write, on_exit
        self.kind = Kind(**vars(kind))
        self.alive = True
        self.hanging = False
        self.stuck = False
        "waits for ever, before its watchers were made (before 0.13)"
        self.allowed = True
        "its device cgroup allows /dev/nvidiactl"
        self.registered = False
        self._turn = 0
        "counts its attempts; an older one's events are void"

    def begin(self) -> None:
        if self.kind.version >= (0, 15):
            self._log(
                '"Starting NVIDIA Device Plugin" '
                f'version="v{self.kind.version[0]}.{self.kind.version[1]}.0"'
            )
        self._start()

    def kubelet_came(self) -> None:
        """kubelet.sock was created."""
        if self.alive and not self.kind.deaf and not self.stuck and not self.hanging:
            self._log(f"inotify: {SOCKETS}/kubelet.sock created, restarting.")
            self._start()

    def hup(self) -> None:
        if not self.alive or self.hanging:  # in NVML it answers no signal
            return
        if self.stuck:
            self._exit(2, "the plugin: SIGHUP ends it")
            return
        self._log("Received SIGHUP, restarting.")
        self._start()

    def terminate(self, grace_s: float) -> None:
        """SIGTERM, and SIGKILL after the grace."""
        if self.hanging:
            self._world.time.after(grace_s, lambda: self._exit(137, ""))
        else:
            self._world.time.after(0.2, lambda: self._exit(0, ""))

    def sees_xid(self, uuid: str) -> None:
        """Its health check takes a GPU out of what it offers, for good."""
        if self.alive and self.registered:
            self._log(f"XidCriticalError: Xid=79 on Device={uuid}; marking device as unhealthy.")
            self._world.kubelet.unhealthy.add(uuid)

    def says(self, line: str) -> None:
        """Something that changes nothing for it."""
        self._log(line)

    def _start(self) -> None:
        self._turn += 1
        if self.registered and self._world.disk.has(SOCKET):  # stopPlugins() takes its socket away
            self._world.disk.remove(SOCKET)
            self._world.signal("inotify")
        self._stop_serving()
        self._log("Retrieving plugins." if self.kind.version >= (0, 14) else "Retreiving plugins.")
        if self.kind.asks_s:
            self._world.time.after(self.kind.asks_s, partial(self._ask, self._turn))
        else:
            self._ask(self._turn)

    def _ask(self, turn: int) -> None:
        world = self._world
        if turn != self._turn or not self.alive:
            return
        self.hanging = self.kind.hangs or (bool(world.hang) and self.kind.library)
        if self.hanging:
            world.time.after(POLL_S, lambda: self._ask(turn))
            return
        error, lost, offered = self._nvml()
        if error:
            self._init_failed(error)
        elif lost:
            self._log("Error: error getting device handle for index '0': GPU is lost")
            self._exit(1, "the plugin exits: error getting a GPU; it will be started again")
        elif not offered:
            self._log("No devices found. Waiting indefinitely.")
            world.say("the plugin: No devices found. Waiting indefinitely")
        else:
            self._serve(turn, offered)

    def _nvml(self) -> tuple[str, bool, Offers]:
        """(what NVML's start said, one GPU is lost, what it offers)."""
        if not self.kind.library:
            return "ERROR_LIBRARY_NOT_FOUND", False, {}
        if self.kind.own_error == 18:
            return "Driver/library version mismatch", False, {}
        if self.kind.own_error or not self.allowed:
            return "Unknown Error", False, {}
        if self._world.hardware.on_soc:
            return "", False, {GPU: ("tegra",)}
        said = self._world.hardware.enumerate()
        whole = next((e["code"] for e in said["errors"] if e["index"] < 0), 0)
        words = "Unknown Error" if whole == 999 else name_of(whole) if whole else ""
        return words, bool(said["errors"]), offers(self.kind, said["gpus"])

    def _init_failed(self, error: str) -> None:
        self._log(f"Failed to initialize NVML: {error}.")
        self._log("If this is a GPU node, did you set the docker default runtime to `nvidia`?")
        if self.kind.fail_on_init:
            self._exit(1, f"the plugin exits: Failed to initialize NVML: {error}")
            return
        self.stuck = self.kind.version < (0, 13) or self.kind.hup_ends
        if self.kind.version >= (0, 14):
            self._log("No devices found. Waiting indefinitely.")
        self._world.say(f"the plugin: Failed to initialize NVML: {error}. Waiting indefinitely")

    def _serve(self, turn: int, offered: Offers) -> None:
        self._log("Starting GRPC server for 'nvidia.com/gpu'")
        self._log(f"Starting to serve 'nvidia.com/gpu' on {SOCKET}")
        self._world.disk.socket(SOCKET)
        self._world.signal("inotify")
        self._world.time.after(REGISTERS_S, lambda: self._register(turn, offered))

    def _register(self, turn: int, offered: Offers) -> None:
        if turn != self._turn or not self.alive:
            return
        if not self._world.kubelet.is_active:
            self._log("Could not register device plugin: context deadline exceeded")
            self._world.time.after(AGAIN_S, lambda: self._again(turn))
            return
        self._log("Registered device plugin for 'nvidia.com/gpu' with Kubelet")
        self.registered = True
        self._world.kubelet.register(offered)

    def _again(self, turn: int) -> None:
        if turn == self._turn and self.alive:
            self._start()

    def _stop_serving(self) -> None:
        if self.registered:
            self._world.kubelet.endpoint_stops()
        self.registered = False

    def _exit(self, code: int, sentence: str) -> None:
        if not self.alive:
            return
        self.alive = self.hanging = False
        if self.registered and code == 0:  # a killed one leaves its socket behind
            self._world.disk.remove(SOCKET)
            self._world.signal("inotify")
        self._stop_serving()
        if sentence:
            self._world.say(sentence)
        self._on_exit(code)

    def _log(self, line: str) -> None:
        if not self.kind.mute:
            is_old = self.kind.version < (0, 14)
            self._write(
                (
                    "2026/11/29 12:46:07 "
                    if is_old
                    else "I1129 12:37:14.388620       1 main.go:391] "
                )
                + line
            )
