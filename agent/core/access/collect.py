"""Link 12: what the kubelet allocated, and the process of every running container with what governs
its devices."""

from __future__ import annotations

from typing import Any

from ...model.host import Host
from ...model.reading import Seen
from ...model.settings import Settings
from ...model.snapshot import Snapshot
from ..common import parse, pod_resources
from ..common.files import parsed_file
from ..common.paths import ALLOW_STOPPED, RUN
from . import containers


async def workloads(host: Host, settings: Settings, snapshot: Snapshot) -> dict[str, Any]:
    """Nothing is asked before the driver is there: nobody can hold a GPU then."""
    if not isinstance(snapshot.driver_version, Seen) or not isinstance(snapshot.runtime, Seen):
        return {}
    ids = tuple(sorted(c.id for c, _ in containers.running(snapshot, {})))
    return {
        "allocations": await pod_resources.asked(host.allocations, snapshot.units, settings),
        "processes": await host.processes(snapshot.runtime_socket, ids),
        "access": await host.access_state(),
        "allow_stopped": await parsed_file(host, f"{RUN}/{ALLOW_STOPPED}", parse.mark),
    }
