"""Link 8: what a plugin's process is about. Since when it is, and whether it goes on by itself."""

from __future__ import annotations

from dataclasses import replace

from ...model.fault import Fault
from ...model.reading import Seen
from ...model.reason import Reason
from ...model.runtime import PluginLogState, PluginSight
from ...model.snapshot import Snapshot
from . import candidates as plugin


def timed(snapshot: Snapshot, found: Fault | None) -> Fault | None:
    """With when it began. One that was told to start afresh in place, or to end, is at work as a
    new one is: the last mark of its log says so. One that could not register says so at every try,
    and no longer is."""
    if found is None:
        return None
    if found.sight is None:
        unit = next((u for u in snapshot.boot.units.value_or(()) if u.name == found.unit), None)
        return replace(found, began_at=unit.active_since or 0.0) if unit else found
    log = plugin.log_of(found.sight)
    said_at = (
        plugin.in_this_boot(snapshot, log.at)
        if log and log.says is not PluginLogState.NOT_REGISTERED
        else 0.0
    )
    return replace(found, began_at=plugin.began_at(snapshot, found.sight), said_at=said_at)


def halted(found: Fault, sight: PluginSight) -> Fault:
    """Whatever else is wrong: a stop would wait for what the process waits for, or end what
    somebody is at."""
    pid = sight.detail.value.pid if isinstance(sight.detail, Seen) else 0
    if sight.unread:
        return replace(
            found,
            barred=True,
            because=f"{found.because}; {sight.unread}",
            next_step="see its process in "
            f"/proc/{pid}/status; then crictl stop and rm {plugin.short_id(sight.container)}",
        )
    if sight.in_kernel:
        return replace(
            found,
            barred=True,
            because=f"{found.because}; {sight.halted}",
            next_step=f"cat /proc/{pid}/stack; dmesg | grep -E 'NVRM|Xid'; reboot the drained node",
        )
    return replace(
        found,
        reason=Reason.PLUGIN_HALTED,
        barred=True,
        because=f"{found.because}; {sight.halted}: somebody is at work on it",
        next_step=f"let it go on: kill -CONT {pid}, end the tracer, ctr -n k8s.io tasks "
        f"resume {plugin.short_id(sight.container)}; else crictl stop and rm",
    )
