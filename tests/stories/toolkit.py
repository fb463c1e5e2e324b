"""The container toolkit of a simulated node: its CDI spec, and the unit that writes it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from agent.core.common.watched import CDI_UNIT

if TYPE_CHECKING:
    from .world import World

SPEC = "/run/cdi/nvidia.yaml"
CONFIG = "/etc/nvidia-container-runtime/config.toml"
DRIVER = "550.54.15"
WRITES_S = 1.5
"nvidia-ctk cdi generate, where the driver is kept initialised"


class Toolkit:
    """Installed by `world cdi=yes`, with the runtime's mode cdi: containers depend on the spec."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.mood = ""
        '"", fails, hangs, or useless: it runs well and writes nothing'
        self.runs = 0

    def install(self) -> None:
        self._world.set_unit(CDI_UNIT, "inactive")
        self._world.disk.write(CONFIG, '[nvidia-container-runtime]\nmode = "cdi"\n')

    def write(self, driver: str = DRIVER) -> None:
        library = f"/usr/lib/libcuda.so.{driver}"
        devices = [
            {"name": str(n), "containerEdits": {"deviceNodes": [{"path": c.node}]}}
            for n, c in enumerate(self._world.hardware.cards)
        ]
        spec = {
            "kind": "nvidia.com/gpu",
            "devices": devices,
            "containerEdits": {"mounts": [{"hostPath": library, "containerPath": library}]},
        }
        self._world.disk.write(library, "")
        self._world.disk.write(SPEC, json.dumps(spec))
        self._world.signal("inotify")

    def remove(self) -> None:
        self._world.disk.remove(SPEC)
        self._world.signal("inotify")

    def refresh(self) -> None:
        """Its unit runs: another invocation each time, whatever comes of it."""
        self.runs += 1
        unit = self._world.systemd[CDI_UNIT]
        self._world.systemd[CDI_UNIT] = replace(
            unit, active="activating", invocation_id=f"{self.runs:032x}"
        )
        self._world.signal("systemd")
        if self.mood != "hangs":
            self._world.time.after(WRITES_S, self._ended)

    def _ended(self) -> None:
        unit = self._world.systemd[CDI_UNIT]
        if not self.mood:
            self.write()
        self._world.systemd[CDI_UNIT] = replace(
            unit, active="failed" if self.mood == "fails" else "active"
        )
        self._world.say(f"{CDI_UNIT} {'fails' if self.mood == 'fails' else 'has run'}")
        self._world.signal("systemd")
