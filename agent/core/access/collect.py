"""Link 12: what the kubelet allocated, and the process of every running container with what governs
its devices."""

from __future__ import annotations

from ...model.host import Host
from ...model.reading import Seen
from ...model.settings import Settings
from ...model.snapshot import Snapshot, Workloads
from ..common import parse, pod_resources
from ..common.files import parsed_file
from ..common.paths import ALLOW_STOPPED, RUN
from . import containers


async def workloads(host: Host, settings: Settings, snapshot: Snapshot) -> Workloads:
    """Nothing is asked before the driver is there: no process can hold a GPU then."""
    plugin = snapshot.plugin
    if not isinstance(snapshot.hardware.driver_version, Seen):
        return Workloads()
    if not isinstance(plugin.runtime, Seen):
        return Workloads()
    ids = tuple(sorted(c.id for c, _ in containers.running(snapshot, {})))
    return Workloads(
        allocations=await pod_resources.asked(host.allocations, snapshot.boot.units, settings),
        processes=await host.processes(plugin.runtime_socket, ids),
        access=await host.access_state(),
        allow_stopped=await parsed_file(host, f"{RUN}/{ALLOW_STOPPED}", parse.mark),
    )
