"""What a doctor asks besides a look: how the boot went, versions, sockets. The daemon's cycle asks
none of it."""

from __future__ import annotations

from dataclasses import replace

from ...model.diagnostics import DiagnosticData, SocketSight
from ...model.host import DiagnosticHost
from ...model.reading import Reading, Refusal, Seen
from ...model.settings import Settings
from ...model.snapshot import Snapshot
from ..common import parse
from ..common.files import parsed_file
from ..common.paths import FIRST, RUN
from ..common.watched import CDI_UNIT, DRIVER_UNITS, RUNTIME_UNITS, kubelet_units
from ..plugin.kinds import plugin_units
from . import journal

PROGRAMS = ("containerd", "crio", "runc", "nvidia-ctk", "kubelet")
CPU_MANAGER = "/var/lib/kubelet/cpu_manager_state"
MOST_SOCKETS = 8


async def collect_diagnostics(
    host: DiagnosticHost, settings: Settings, snapshot: Snapshot
) -> DiagnosticData:
    """Ask everything a doctor wants to know of this node and this boot, once; what takes longest
    comes last."""
    quick = DiagnosticData(
        kernel=await parsed_file(host, "/proc/sys/kernel/osrelease", parse.text),
        cgroup=await _cgroup(host),
        cpu_policy=await _cpu_policy(host),
        first_seen=await parsed_file(host, f"{RUN}/{FIRST}seen", parse.mark),
        sockets=await _sockets(host, settings, snapshot),
        cuda=await host.cuda(),
    )
    versions = await host.versions(PROGRAMS)
    lines = await host.journal(
        (*DRIVER_UNITS, *RUNTIME_UNITS, CDI_UNIT, *kubelet_units(settings), *plugin_units(settings))
    )
    found = lines if isinstance(lines, Refusal) else Seen(journal.words(lines.value), lines.at)
    return replace(quick, versions=versions, journal=found)


async def _cgroup(host: DiagnosticHost) -> str:
    """v2 has its controllers' names at its root; a hybrid one has a v2 tree beside v1's."""
    if isinstance(await host.file("/sys/fs/cgroup/cgroup.controllers"), Seen):
        return "v2"
    unified = await host.folder("/sys/fs/cgroup", "unified")
    if not isinstance(unified, Seen):
        return ""
    return "hybrid" if unified.value else "v1"


async def _cpu_policy(host: DiagnosticHost) -> Reading[str]:
    state = await parsed_file(host, CPU_MANAGER, parse.json_object)
    return (
        state
        if isinstance(state, Refusal)
        else Seen(str(state.value.get("policyName", ""))[:40], state.at)
    )


async def _sockets(
    host: DiagnosticHost, settings: Settings, snapshot: Snapshot
) -> tuple[SocketSight, ...]:
    """By connecting: a socket file outlives whoever listened on it."""
    entries = snapshot.kubelet.plugin_sockets.value_or(())
    names = [e.name for e in entries if e.kind == "socket"][:MOST_SOCKETS]
    return tuple(
        [
            SocketSight(name, await host.listener(f"{settings.device_plugins_dir}/{name}"))
            for name in names
        ]
    )
