"""Every question we ask of a node, and nothing else: Host in, Snapshot out.

All conversions between clocks happen here. Questions that cost something are asked only where their
answer can matter: a node whose driver is loaded is not asked which module files it has.
"""

from __future__ import annotations

from dataclasses import replace

from ..model.host import Host
from ..model.reading import Seen
from ..model.settings import Settings
from ..model.snapshot import Plugin, Snapshot
from .access.collect import workloads
from .cdi.collect import toolkit
from .common.marks import boot
from .common.watched import CDI_UNIT, DRIVER_UNITS, IMEX_UNIT, RUNTIME_UNITS, kubelet_units
from .gpu.collect import hardware, may_have_gpus
from .kubelet.collect import kubelet
from .plugin import ledger
from .plugin.collect import plugins, runtime
from .plugin.kinds import plugin_units


def watched_units(settings: Settings) -> tuple[str, ...]:
    """The units whose state and InvocationID matter."""
    return (
        DRIVER_UNITS
        + RUNTIME_UNITS
        + (CDI_UNIT, IMEX_UNIT)
        + settings.pause_while
        + kubelet_units(settings)
        + plugin_units(settings)
    )


async def collect(host: Host, settings: Settings) -> Snapshot:
    """Ask the node everything once. Where no GPU can be, the runtime is not asked: there is no
    plugin to repair."""
    clock = await host.clock()
    gpus = await hardware(host)
    written = await boot(host, watched_units(settings))
    has_gpus = may_have_gpus(gpus)
    snapshot = Snapshot(
        clock=clock,
        hardware=gpus,
        boot=written,
        kubelet=await kubelet(host, settings, written.units, has_gpus),
        plugin=Plugin(ledger=await ledger.collect(host)),
        trouble=await host.trouble(),
    )
    if not has_gpus:
        return snapshot
    if isinstance(gpus.driver_version, Seen):
        snapshot = replace(snapshot, toolkit=await toolkit(host))
    snapshot = replace(snapshot, plugin=await runtime(host, settings, snapshot))
    snapshot = replace(snapshot, workloads=await workloads(host, settings, snapshot))
    return replace(snapshot, plugin=await plugins(host, settings, snapshot))
