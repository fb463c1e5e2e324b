"""Link 12: what the kubelet allocated, and the process of every running container with what governs its devices."""

from __future__ import annotations

from typing import Any

from ...model.access import Allocation
from ...model.host import Host
from ...model.reading import Reading, Refusal, Seen
from ...model.scene import NOT_ASKED, Scene
from ...model.settings import Settings
from .. import containers, parse
from ..layouts import pod_resources_sockets
from ..paths import ALLOW_STOPPED, RUN
from .files import parsed_file
from .watched import running_kubelet


async def workloads(host: Host, settings: Settings, scene: Scene) -> dict[str, Any]:
    """Nothing is asked before the driver is there: nobody can hold a GPU then."""
    if not isinstance(scene.driver_version, Seen) or not isinstance(scene.runtime, Seen):
        return {}
    ids = tuple(sorted(c.id for c, _ in containers.running(scene, {})))
    return {
        "allocations": await _allocations(host, settings, scene),
        "processes": await host.processes(scene.runtime_socket, ids),
        "access": await host.access_state(),
        "allow_stopped": await parsed_file(host, f"{RUN}/{ALLOW_STOPPED}", parse.mark),
    }


async def _allocations(host: Host, settings: Settings, scene: Scene) -> Reading[tuple[Allocation, ...]]:
    """By the socket that is there; where none is, what is said of this kubelet's own place."""
    first: Reading[tuple[Allocation, ...]] = NOT_ASKED
    for number, socket in enumerate(pod_resources_sockets(settings, running_kubelet(scene.units, settings))):
        found = await host.allocations(socket)
        if not (isinstance(found, Refusal) and found.is_missing):
            return found
        first = first if number else found
    return first
