"""Marks of this boot, and what this machine showed before."""

from __future__ import annotations

from typing import Any

from ...model.host import Host
from ...model.reading import Reading, Refusal, Seen, Why
from ...model.settings import Settings
from . import parse
from .files import parsed_file
from .layouts import control_plane_files, manifest_folders
from .paths import FIRST, RUN, STATE

MILESTONES = 8
"""So many are read; there are fewer."""


async def marks(host: Host, settings: Settings) -> dict[str, Any]:
    plane = False
    for path in control_plane_files(settings):
        plane = plane or isinstance(await host.file(path, 1), Seen)
    return {
        "released": await parsed_file(host, f"{RUN}/released", parse.mark),
        "paused": await parsed_file(host, f"{RUN}/paused", parse.mark),
        "waiting": await parsed_file(host, f"{RUN}/waiting", parse.mark),
        "launched": await parsed_file(host, f"{RUN}/launched", parse.mark),
        **await _milestones(host),
        "learned": await _learned(host),
        "boot_id": await _boot_id(host),
        "control_plane": plane,
    }


async def manifest_dir(host: Host, settings: Settings, kubelet: str) -> str:
    """The folder of the kubelet's static pods, where the plugin is to be launched as one;
    `kubelet`: the unit whose layout this node has."""
    for path in manifest_folders(settings, kubelet) if settings.launch == "manifest" else ():
        if isinstance(await host.folder(path), Seen):
            return path
    return ""


async def _milestones(host: Host) -> dict[str, Any]:
    files = await host.folder(RUN)
    names = (
        [e.name for e in files.value if e.name.startswith(FIRST)] if isinstance(files, Seen) else []
    )
    found = {
        name.removeprefix(FIRST): await parsed_file(host, f"{RUN}/{name}", parse.mark)
        for name in names[:MILESTONES]
    }
    return {"run_files": files, "milestones": found}


async def _boot_id(host: Host) -> str:
    found = await parsed_file(host, "/proc/sys/kernel/random/boot_id", parse.text)
    return found.value_or("")


async def _learned(host: Host) -> Reading[tuple[str, ...]]:
    """What this very machine showed before. Keyed, so that a node image carries no other machine's
    set."""
    stored = await parsed_file(host, f"{STATE}/learned.json", parse.json_object)
    if isinstance(stored, Refusal):
        return stored
    bus_ids = stored.value.get("bus_ids")
    if stored.value.get("machine") != await host.machine() or not isinstance(bus_ids, list):
        return Refusal(Why.MISSING, "learned on another machine")
    return Seen(tuple(str(b) for b in bus_ids), stored.at)
