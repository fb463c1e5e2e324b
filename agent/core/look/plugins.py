"""Link 8: the runtime, and of what looks like the device plugin its status, its log's tail and its own access."""

from __future__ import annotations

from typing import Any

from ...model.host import Host
from ...model.reading import Reading, Refusal, Seen, Why
from ...model.runtime import Access, Container, ContainerState, PluginLog, PluginSight, Sandbox
from ...model.settings import Settings
from .. import parse, plugin, plugin_log
from .files import parsed_file


async def plugins(host: Host, settings: Settings, listed: bool) -> dict[str, Any]:
    """The runtime, and of what looks like the device plugin its status, its log's tail and its own access."""
    found: dict[str, Any] = {"checkpoint": await parsed_file(
        host, f"{settings.device_plugins_dir}/kubelet_internal_checkpoint", parse.checkpoint, 4 << 20)}
    for socket in (settings.runtime_socket,) if settings.runtime_socket else plugin.SOCKETS:
        runtime = await host.runtime(socket)
        found |= {"runtime_socket": socket, "runtime": runtime}
        if not (isinstance(runtime, Refusal) and runtime.is_missing):
            break
    if isinstance(found["runtime"], Seen):
        pairs = plugin.candidates(found["runtime"].value, settings)
        found["plugins"] = tuple([await _sight(host, found["runtime_socket"], *pair, listed) for pair in pairs[:4]])
    return found


async def _sight(host: Host, socket: str, container: Container, sandbox: Sandbox | None,
                 listed: bool) -> PluginSight:
    detail = await host.container(socket, container.id)
    log: Reading[PluginLog] = Refusal(Why.NOT_ASKED, "the container's status was not read")
    access: Reading[Access] = Refusal(Why.NOT_ASKED, "nobody doubts it, or it has no process")
    if isinstance(detail, Seen):
        tail = await host.tail(detail.value.log_path)
        log = tail if isinstance(tail, Refusal) else Seen(plugin_log.read(tail.value), tail.at)
        if detail.value.pid > 0 and container.state is ContainerState.RUNNING and not listed:
            access = await host.access(detail.value.pid, "/dev/nvidiactl")
    return PluginSight(container, sandbox, detail, log, access)
