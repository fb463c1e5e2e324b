"""Event sources of a live node: udev, systemd, inotify. An event only asks for the next cycle;
losing one costs seconds, because the timer comes anyway."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from ..core.collect import watched_units
from ..core.common.watched import watched_folders
from ..model.settings import Settings
from ..model.wake import WakeReason, WakeSource
from ..transport.inotify import Inotify
from ..transport.systemd import BusSignal, SystemdBus
from ..transport.uevents import Uevents

_SYSTEMD = {
    BusSignal.CONNECTED: WakeSource.BUS,
    BusSignal.LOST: WakeSource.BUS,
    BusSignal.RELOADED: WakeSource.RELOAD,
    BusSignal.OWNER_CHANGED: WakeSource.REEXEC,
    BusSignal.UNIT_CHANGED: WakeSource.UNIT,
}
CONTAINER_SCOPES = ("cri-containerd-", "crio-", "docker-")
"scopes of containers, as containerd, CRI-O and Docker name them"
SCOPE_GATHER_S = 1.0
"""containers start in bursts, and a legacy hook adds its devices after the scope's job is done: one
look for them all"""
SCOPE_AGAIN_S = 10.0
"""the last look of a burst: a hook that brings eight GPUs up takes seconds, and no signal says that
it is done"""


class EventSources:
    """The event sources of a live node. Each event calls `wake` with its reason."""

    def __init__(self, wake: Callable[[WakeReason], None]) -> None:
        self._wake = wake
        self._gathering: asyncio.TimerHandle | None = None
        self._again: asyncio.TimerHandle | None = None
        self.bus = SystemdBus(self._on_systemd, call_timeout_s=1.2, watch_jobs=True)
        self.uevents = Uevents(
            self._on_uevent, lambda: wake(WakeReason(WakeSource.UDEV, "overflow"))
        )
        self.inotify = Inotify(
            lambda folder: wake(WakeReason(WakeSource.FOLDER, folder)),
            lambda: wake(WakeReason(WakeSource.FOLDER, "overflow")),
        )

    async def start(self, settings: Settings) -> asyncio.Task[None]:
        """Subscribe before anything is read. The task is the bus's supervisor: it ends only when
        cancelled."""
        self.uevents.start()
        self.inotify.watch(watched_folders(settings))
        await self.bus.watch(watched_units(settings))
        return asyncio.get_running_loop().create_task(self.bus.run())

    def refresh(self) -> None:
        """A folder that was replaced while a process held it open sends no event."""
        self.inotify.refresh()

    async def watch_units(self, names: tuple[str, ...]) -> None:
        await self.bus.watch(names)

    def watch_folders(self, folders: Mapping[str, tuple[str, ...]]) -> None:
        self.inotify.watch(dict(folders))

    def close(self) -> None:
        for handle in (self._gathering, self._again):
            if handle is not None:
                handle.cancel()
        self.uevents.close()
        self.inotify.close()

    def _on_systemd(self, signal: BusSignal, detail: str) -> None:
        if signal is BusSignal.JOB_ENDED:
            # Of every unit: a match rule cannot tell a scope by the beginning of its name.
            if detail.startswith(CONTAINER_SCOPES) and detail.endswith(".scope"):
                self._on_scope()
        elif signal is not BusSignal.RELOADING:
            # Before a reload there is nothing new to read, and systemd would not answer anyway.
            self._wake(WakeReason(_SYSTEMD[signal], detail))

    def _on_scope(self) -> None:
        loop = asyncio.get_running_loop()
        if self._gathering is None:
            self._gathering = loop.call_later(SCOPE_GATHER_S, self._scopes_changed)
        if self._again is not None:
            self._again.cancel()
        self._again = loop.call_later(SCOPE_AGAIN_S, self._wake, WakeReason(WakeSource.SCOPE))

    def _scopes_changed(self) -> None:
        self._gathering = None
        self._wake(WakeReason(WakeSource.SCOPE))

    def _on_uevent(self, event: dict[str, str]) -> None:
        subsystem, name = event.get("SUBSYSTEM", ""), event.get("DEVPATH", "").rsplit("/", 1)[-1]
        is_nvidias = event.get("PCI_ID", "10DE").upper().startswith("10DE")
        if (
            (subsystem == "pci" and is_nvidias)
            or "nvidia" in name
            or "nouveau" in name
            or "vfio" in name
        ):
            self._wake(WakeReason(WakeSource.UDEV, f"{event.get('ACTION', '')} {subsystem}/{name}"))
