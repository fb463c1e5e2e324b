"""systemd's units and the marks of this boot, and what this machine showed before."""

from __future__ import annotations

from ...model.host import Host
from ...model.mark import Mark
from ...model.reading import Reading, Refusal, Seen, Why
from ...model.snapshot import Boot, Entry
from . import parse
from .files import parsed_file
from .paths import FIRST, RUN, STATE

MILESTONES = 8
"""So many are read; there are fewer."""


async def boot(host: Host, units: tuple[str, ...]) -> Boot:
    """systemd with these units, and what earlier cycles and boots wrote down."""
    released = await _mark(host, "released")
    paused = await _mark(host, "paused")
    waiting = await _mark(host, "waiting")
    launched = await _mark(host, "launched")
    run_files = await host.folder(RUN)
    return Boot(
        released=released,
        paused=paused,
        waiting=waiting,
        launched=launched,
        run_files=run_files,
        milestones=await _milestones(host, run_files),
        learned=await _learned(host),
        boot_id=await _boot_id(host),
        manager=await host.manager(),
        units=await host.units(units),
    )


async def _mark(host: Host, name: str) -> Reading[Mark]:
    return await parsed_file(host, f"{RUN}/{name}", parse.mark)


async def _milestones(host: Host, files: Reading[tuple[Entry, ...]]) -> dict[str, Reading[Mark]]:
    names = (
        [e.name for e in files.value if e.name.startswith(FIRST)] if isinstance(files, Seen) else []
    )
    return {name.removeprefix(FIRST): await _mark(host, name) for name in names[:MILESTONES]}


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
