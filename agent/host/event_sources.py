"""Signals wake us; readings decide. Every source only says "look again", and losing one costs
seconds.

One queue: reasons gather until the next cycle takes them. They go to the log, and rules may not
read them.
"""

from __future__ import annotations

import asyncio

from ..core.common.watched import watched_folders, watched_units
from ..model.settings import Settings
from ..transport.kernel import Inotify, Uevents
from ..transport.systemd import SystemdBus

MAX_REASONS = 32
CONTAINER_SCOPES = ("cri-containerd-", "crio-", "docker-")
"scopes of containers, as containerd, CRI-O and Docker name them"
SCOPE_GATHER_S = 1.0
"""containers start in bursts, and a legacy hook adds its devices after the scope's job is done: one
look for them all"""
SCOPE_AGAIN_S = 10.0
"""the last look of a burst: a hook that brings eight GPUs up takes seconds, and no signal says that
it is done"""


class Wakes:
    """Gathers reasons to look, from every source."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._reasons: dict[str, int] = {}

    def wake(self, reason: str) -> None:
        """Look again soon. May be called from any callback of the loop."""
        if reason in self._reasons or len(self._reasons) < MAX_REASONS:
            self._reasons[reason] = self._reasons.get(reason, 0) + 1
        self._event.set()

    async def wait(self, within_s: float) -> dict[str, int]:
        """The reasons that came, {"timer": 1} where none did."""
        try:
            await asyncio.wait_for(self._event.wait(), max(0.0, within_s))
        except asyncio.TimeoutError:
            self._reasons.setdefault("timer", 1)
        return self.take()

    def take(self) -> dict[str, int]:
        self._event.clear()
        reasons, self._reasons = self._reasons, {}
        return reasons


class Sources:
    """The signal sources of a live node, wired to one Wakes."""

    def __init__(self, wakes: Wakes) -> None:
        self._wakes = wakes
        self._gathering: asyncio.TimerHandle | None = None
        self._again: asyncio.TimerHandle | None = None
        self.bus = SystemdBus(self._on_systemd, call_timeout_s=1.2, watch_jobs=True)
        self.uevents = Uevents(self._on_uevent, lambda: wakes.wake("udev overflow"))
        self.inotify = Inotify(
            lambda folder: wakes.wake(f"inotify {folder}"), lambda: wakes.wake("inotify overflow")
        )

    async def start(self, settings: Settings) -> asyncio.Task[None]:
        """Subscribe before anything is read. The task is the bus's supervisor: it ends only when
        cancelled."""
        self.uevents.start()
        self.inotify.watch(watched_folders(settings))
        await self.bus.watch(watched_units(settings))
        return asyncio.get_running_loop().create_task(self.bus.run())

    def refresh(self) -> None:
        """Before each look: a folder that was replaced while something held it open tells
        nobody."""
        self.inotify.refresh()

    def close(self) -> None:
        for handle in (self._gathering, self._again):
            if handle is not None:
                handle.cancel()
        self.uevents.close()
        self.inotify.close()

    def _on_systemd(self, kind: str, detail: str) -> None:
        if (
            kind == "job"
        ):  # every unit's: a match rule cannot tell a scope by the beginning of its name
            if detail.startswith(CONTAINER_SCOPES) and detail.endswith(".scope"):
                self._on_scope()
            return
        # Before a reload there is nothing new to read, and systemd would not answer until it is
        # over.
        if (kind, detail) != ("reloading", "true"):
            self._wakes.wake(f"systemd {kind} {detail}".rstrip())

    def _on_scope(self) -> None:
        loop = asyncio.get_running_loop()
        if self._gathering is None:
            self._gathering = loop.call_later(SCOPE_GATHER_S, self._scopes_changed)
        if self._again is not None:
            self._again.cancel()
        self._again = loop.call_later(SCOPE_AGAIN_S, self._wakes.wake, "scope")

    def _scopes_changed(self) -> None:
        self._gathering = None
        self._wakes.wake("scope")

    def _on_uevent(self, event: dict[str, str]) -> None:
        subsystem, name = event.get("SUBSYSTEM", ""), event.get("DEVPATH", "").rsplit("/", 1)[-1]
        is_nvidias = event.get("PCI_ID", "10DE").upper().startswith("10DE")
        if (
            (subsystem == "pci" and is_nvidias)
            or "nvidia" in name
            or "nouveau" in name
            or "vfio" in name
        ):
            self._wakes.wake(f"udev {event.get('ACTION', '')} {subsystem}/{name}")
