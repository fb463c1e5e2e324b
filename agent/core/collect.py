"""Every question we ask of a node, and nothing else: Host in, Scene out.

All conversions between clocks happen here. Questions that cost something are asked only where their
answer can matter: a node whose driver is loaded is not asked which module files it has.
"""

from __future__ import annotations

from dataclasses import replace

from ..model.host import Host
from ..model.reading import Seen
from ..model.settings import Settings
from ..model.snapshot import Scene
from .access.collect import workloads
from .cdi.collect import toolkit
from .common import pod_resources
from .common.marks import manifest_dir, marks
from .common.watched import running_kubelet, watched_units
from .gpu.collect import device_nodes, driver, kernel_log, mig_instances, pci, tegra
from .gpu.tegra import is_tegra
from .kubelet.node_object import node_object
from .plugin.collect import plugins, runtime


async def look(host: Host, settings: Settings) -> Scene:
    """Ask the node everything once."""
    scene = Scene(clock=await host.clock(), pci=await pci(host))
    scene = replace(scene, **await tegra(host, scene.pci))
    scene = replace(scene, **await driver(host))
    scene = replace(scene, **await device_nodes(host))
    scene = replace(scene, **await marks(host, settings))
    scene = replace(
        scene,
        probe=await host.probe(),
        manager=await host.manager(),
        units=await host.units(watched_units(settings)),
        plugin_sockets=await host.folder(settings.device_plugins_dir, "*"),
        node_object=await node_object(host),
        trouble=await host.trouble(),
    )
    scene = replace(scene, mig_instances=await mig_instances(host, scene.probe))
    kubelet = running_kubelet(scene.units, settings)
    scene = replace(
        scene,
        allocatable=await pod_resources.asked(host.allocatable, scene.units, settings),
        manifest_dir=await manifest_dir(host, settings, kubelet),
    )
    # No NVIDIA function at all: nothing to mend here.
    if isinstance(scene.pci, Seen) and not scene.pci.value and not is_tegra(scene):
        return scene
    scene = replace(scene, **await kernel_log(host))
    if isinstance(scene.driver_version, Seen):
        scene = replace(scene, toolkit=await toolkit(host))
    scene = replace(scene, **await runtime(host, settings, scene))
    scene = replace(scene, **await workloads(host, settings, scene))
    return await plugins(host, settings, scene)
