"""Every question we ask of a node, and nothing else: Host in, Scene out.

All conversions between clocks happen here. Questions that cost something are asked only where their answer can
matter: a node whose driver is loaded is not asked which module files it has.
"""

from __future__ import annotations

from dataclasses import replace

from ...model.host import Host
from ...model.reading import Seen
from ...model.scene import Scene
from ...model.settings import Settings
from .. import plugin
from .hardware import device_nodes, driver, pci
from .marks import manifest_dir, marks
from .plugins import plugins
from .toolkit import toolkit
from .watched import watched_units


async def look(host: Host, settings: Settings) -> Scene:
    """Ask the node everything once."""
    scene = Scene(clock=await host.clock(), pci=await pci(host))
    scene = replace(scene, **await driver(host))
    scene = replace(scene, **await device_nodes(host))
    scene = replace(scene, **await marks(host), manifest_dir=await manifest_dir(host, settings))
    scene = replace(
        scene,
        probe=await host.probe(),
        manager=await host.manager(),
        units=await host.units(watched_units(settings)),
        plugin_sockets=await host.folder(settings.device_plugins_dir, "*"),
        allocatable=await host.allocatable(settings.pod_resources_socket),
        trouble=await host.trouble(),
    )
    if isinstance(scene.pci, Seen) and not scene.pci.value:  # no NVIDIA function at all: nothing to mend here
        return scene
    if isinstance(scene.driver_version, Seen):
        scene = replace(scene, toolkit=await toolkit(host))
    return replace(scene, **await plugins(host, settings, is_listed(scene, settings)))


def is_listed(scene: Scene, settings: Settings) -> bool:
    """The kubelet lists as many GPUs as NVML shows: then the plugin's own access need not be asked, which costs
    a program's start."""
    last = scene.probe.value.last if isinstance(scene.probe, Seen) else None
    if not isinstance(scene.allocatable, Seen) or last is None:
        return False
    return 0 < len(last.gpus) <= len(plugin.listed_gpus(scene.allocatable.value, settings))
