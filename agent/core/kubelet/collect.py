"""Links 7, 9, 10 and 11: the kubelet's folders, its lists and checkpoint, and the Node."""

from __future__ import annotations

from ...model.host import Host
from ...model.reading import NOT_ASKED, Reading, Refusal, Seen, Why
from ...model.settings import Settings
from ...model.snapshot import Kubelet, Unit
from ..common import parse, pod_resources
from ..common.files import parsed
from ..common.layouts import control_plane_files, manifest_folders
from ..common.watched import running_kubelet
from .node_object import node_object

CHECKPOINT_BYTES = 4 << 20


async def kubelet(
    host: Host, settings: Settings, units: Reading[tuple[Unit, ...]], may_have_gpus: bool
) -> Kubelet:
    """What the kubelet lists and keeps. The checkpoint is read only where a GPU may be."""
    folder = settings.device_plugins_dir
    return Kubelet(
        control_plane=await _control_plane(host, settings),
        plugin_sockets=await host.folder(folder, "*"),
        node_object=await node_object(host),
        allocatable=await pod_resources.asked(host.allocatable, units, settings),
        manifest_dir=await _manifest_dir(host, settings, running_kubelet(units, settings)),
        checkpoint=await _checkpoint(host, f"{folder}/kubelet_internal_checkpoint")
        if may_have_gpus
        else NOT_ASKED,
    )


async def _control_plane(host: Host, settings: Settings) -> bool:
    for path in control_plane_files(settings):
        if isinstance(await host.file(path, 1), Seen):
            return True
    return False


async def _manifest_dir(host: Host, settings: Settings, unit: str) -> str:
    """The folder of the kubelet's static pods, where the plugin is to be launched as one; `unit`:
    the kubelet's unit whose layout this node has."""
    for path in manifest_folders(settings, unit) if settings.launch == "manifest" else ():
        if isinstance(await host.folder(path), Seen):
            return path
    return ""


async def _checkpoint(host: Host, path: str) -> Reading[dict[str, int]]:
    """A checkpoint longer than what we read is not a torn one: thousands of pods are in it."""
    data = await host.file(path, CHECKPOINT_BYTES)
    if isinstance(data, Seen) and len(data.value) >= CHECKPOINT_BYTES:
        return Refusal(Why.NOT_ASKED, f"{path} is longer than {CHECKPOINT_BYTES >> 20} MiB")
    return parsed(data, parse.checkpoint, path)
