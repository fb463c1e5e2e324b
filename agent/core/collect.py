"""Every question we ask of a node, and nothing else: Host in, Scene out.

All conversions between clocks happen here. Questions that cost something are asked only where their
answer can matter: a node whose driver is loaded is not asked which module files it has.
"""

from __future__ import annotations

from dataclasses import replace

from ..model.host import Host
from ..model.reading import Seen
from ..model.settings import Settings
from ..model.snapshot import Snapshot
from .access.collect import workloads
from .cdi.collect import toolkit
from .common import pod_resources
from .common.marks import manifest_dir, marks
from .common.watched import (
    CDI_UNIT,
    DRIVER_UNITS,
    IMEX_UNIT,
    RUNTIME_UNITS,
    kubelet_units,
    running_kubelet,
)
from .gpu.collect import device_nodes, driver, kernel_log, mig_instances, pci, tegra
from .gpu.tegra import is_tegra
from .kubelet.node_object import node_object
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
    """Ask the node everything once."""
    snapshot = Snapshot(clock=await host.clock(), pci=await pci(host))
    snapshot = replace(snapshot, **await tegra(host, snapshot.pci))
    snapshot = replace(snapshot, **await driver(host))
    snapshot = replace(snapshot, **await device_nodes(host))
    snapshot = replace(snapshot, **await marks(host, settings))
    snapshot = replace(
        snapshot,
        ledger=await ledger.collect(host),
        probe=await host.probe(),
        manager=await host.manager(),
        units=await host.units(watched_units(settings)),
        plugin_sockets=await host.folder(settings.device_plugins_dir, "*"),
        node_object=await node_object(host),
        trouble=await host.trouble(),
    )
    snapshot = replace(snapshot, mig_instances=await mig_instances(host, snapshot.probe))
    kubelet = running_kubelet(snapshot.units, settings)
    snapshot = replace(
        snapshot,
        allocatable=await pod_resources.asked(host.allocatable, snapshot.units, settings),
        manifest_dir=await manifest_dir(host, settings, kubelet),
    )
    # No NVIDIA function at all: nothing to mend here.
    if isinstance(snapshot.pci, Seen) and not snapshot.pci.value and not is_tegra(snapshot):
        return snapshot
    snapshot = replace(snapshot, **await kernel_log(host))
    if isinstance(snapshot.driver_version, Seen):
        snapshot = replace(snapshot, toolkit=await toolkit(host))
    snapshot = replace(snapshot, **await runtime(host, settings, snapshot))
    snapshot = replace(snapshot, **await workloads(host, settings, snapshot))
    return await plugins(host, settings, snapshot)
