"""Link 12: what the kubelet allocated, and the process of every running container with what governs
its devices."""

from __future__ import annotations

from typing import Any

from ...model.host import Host
from ...model.reading import Seen
from ...model.settings import Settings
from ...model.snapshot import Scene
from ..common import parse, pod_resources
from ..common.files import parsed_file
from ..common.paths import ALLOW_STOPPED, RUN
from . import containers


async def workloads(host: Host, settings: Settings, scene: Scene) -> dict[str, Any]:
    """Nothing is asked before the driver is there: nobody can hold a GPU then."""
    if not isinstance(scene.driver_version, Seen) or not isinstance(scene.runtime, Seen):
        return {}
    ids = tuple(sorted(c.id for c, _ in containers.running(scene, {})))
    return {
        "allocations": await pod_resources.asked(host.allocations, scene.units, settings),
        "processes": await host.processes(scene.runtime_socket, ids),
        "access": await host.access_state(),
        "allow_stopped": await parsed_file(host, f"{RUN}/{ALLOW_STOPPED}", parse.mark),
    }
