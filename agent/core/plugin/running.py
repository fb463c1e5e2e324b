"""A plugin whose container runs, while the kubelet lists too little: why, by what its log and its
access say."""

from __future__ import annotations

from ...model.fault import Cure, Fault
from ...model.reading import Refusal, Seen
from ...model.reason import Reason
from ...model.runtime import PluginLog, PluginLogState, PluginSight
from ...model.snapshot import Snapshot
from ..gpu import kernel_events as kernel_log
from . import candidates as plugin
from . import log as plugin_log
from .resources import Listing

STALE = Reason.PLUGIN_LISTS_GONE
REBUILD = "crictl stop and rm that one container"


def fault(snapshot: Snapshot, sight: PluginSight, who: str, listed: Listing) -> Fault:
    log = plugin.log_of(sight) or PluginLog(PluginLogState.NOTHING, "")
    denied = isinstance(sight.access, Seen) and not sight.access.value.allowed
    if log.says in plugin_log.TAKES_OUT and (bad := _unhealthy(snapshot, sight, who, log)):
        return bad  # before all else: whatever else is wrong, the GPU would be offered again
    if (
        listed.count == 0
        and listed.visible_devices.names is not None
        and listed.shown
        and not listed.seen_by_plugin
    ):
        names = ", ".join(listed.visible_devices.names[:4]) or "none"
        return Fault(
            Reason.PLUGIN_GIVEN_NOTHING,
            f"{who}: it was given no GPU that is here (NVIDIA_VISIBLE_DEVICES or CDI: {names})",
            Cure.PERSON,
            "give its container GPUs that NVML shows: NVIDIA_VISIBLE_DEVICES=all; nvidia-smi -L",
            sight=sight,
        )
    if listed.is_empty and listed.count == 0:
        return Fault(
            Reason.MIG_WITHOUT_INSTANCES,
            f"{who}: every GPU it was given is in MIG mode, and has no instance that "
            f"it could offer (MIG_STRATEGY={listed.visible_devices.strategy})",
            Cure.PERSON,
            "nvidia-smi mig -cgi …, nvidia-mig-parted, or MIG mode off; then start it afresh",
            sight=sight,
        )
    if denied:
        return Fault(
            Reason.PLUGIN_ACCESS_DENIED,
            f"{who}: it may not open /dev/nvidiactl",
            Cure.FRESH_START,
            REBUILD,
            access_denied=True,
            sight=sight,
        )
    if isinstance(sight.log, Refusal):  # a lost GPU or a lacking library may be what it says
        return Fault(
            Reason.PLUGIN_LOG_UNREAD,
            f"{who}: its log could not be read ({sight.log}), so the cause is unknown",
            Cure.TIME,
            f"crictl logs {plugin.short_id(sight.container)}; then crictl stop and rm",
            barred=True,
            sight=sight,
        )
    if plugin_log.lacks_the_library(log):
        return Fault(
            Reason.PLUGIN_LACKS_LIBRARY,
            f"{who}: its container lacks NVML's library",
            Cure.PERSON,
            "the nvidia runtime did not prepare this container: crictl inspect, RuntimeClass, "
            "CDI spec",
            sight=sight,
        )
    return _by_its_log(sight, who, log, listed)


def _unhealthy(snapshot: Snapshot, sight: PluginSight, who: str, log: PluginLog) -> Fault | None:
    """It took a GPU out of what it offers. A watch that failed is no broken GPU, where the kernel's
    log was read and says nothing of one since the plugin's start."""
    if (
        log.says is PluginLogState.UNWATCHED
        and isinstance(snapshot.hardware.kernel, Seen)
        and kernel_log.said_since(snapshot, plugin.began_at(snapshot, sight)) is None
    ):
        return None
    return Fault(
        Reason.PLUGIN_SAW_UNHEALTHY,
        f"{who}: a fresh start would offer that GPU again",
        Cure.PERSON,
        "dmesg | grep Xid; drain the node, then reset the GPU or reboot",
        sight=sight,
    )


def _unwatched(sight: PluginSight, who: str, log: PluginLog) -> Fault:
    """NVML's events failed it, and it never asks for them again. In place it would keep the NVML
    that failed it."""
    if plugin_log.cannot_be_watched(log):
        return Fault(
            Reason.PLUGIN_HEALTH_FAILED,
            f"{who}: it takes out GPUs whose events it cannot watch, and would again",
            Cure.PERSON,
            "DP_DISABLE_HEALTHCHECKS=all in its environment, or a newer version",
            sight=sight,
        )
    return Fault(
        Reason.PLUGIN_HEALTH_FAILED,
        f"{who}: it took GPUs out because its health check failed, and the kernel "
        "said nothing of any",
        Cure.FRESH_START,
        REBUILD,
        sight=sight,
    )


def _by_its_log(sight: PluginSight, who: str, log: PluginLog, listed: Listing) -> Fault:
    hup = (
        isinstance(sight.access, Seen)
        and sight.access.value.allowed
        and plugin.answers_sighup(sight)
    )
    if log.says in (PluginLogState.INIT_FAILED, PluginLogState.NO_DEVICES):
        reason = (
            Reason.PLUGIN_INIT_FAILED
            if log.says is PluginLogState.INIT_FAILED
            else Reason.PLUGIN_SAW_NO_GPU
        )
        # In place it would keep the library of the driver that was here before.
        return Fault(
            reason,
            who,
            Cure.FRESH_START,
            REBUILD,
            hup_answers=hup and not plugin_log.has_an_old_library(log),
            sight=sight,
        )
    if log.says is PluginLogState.UNWATCHED:
        return _unwatched(sight, who, log)
    if log.says is PluginLogState.WAITING:
        return _waiting(sight, who, log)
    if listed.gone:
        return Fault(
            STALE,
            f"{who}: {listed.gone}",
            Cure.FRESH_START if listed.is_stale else Cure.TIME,
            REBUILD,
            hup_answers=hup,
            sight=sight,
        )
    return _silent(sight, who, log, listed, hup)


def _waiting(sight: PluginSight, who: str, log: PluginLog) -> Fault:
    next_step = f"its line says what it lacks; crictl logs {plugin.short_id(sight.container)}"
    if "MPS" in log.line:
        next_step = "crictl ps -a --name mps-control-daemon: that one is to run on this node"
    because = f"{who}; it tries again by itself"
    return Fault(Reason.PLUGIN_WAITS, because, Cure.WAIT, next_step, sight=sight)


def _silent(sight: PluginSight, who: str, log: PluginLog, listed: Listing, hup: bool) -> Fault:
    """Its log shows no failure."""
    reason = {
        PluginLogState.ASKING: Reason.PLUGIN_ASKING,
        PluginLogState.REGISTERED: Reason.PLUGIN_FORGOTTEN,
    }.get(log.says, Reason.PLUGIN_SILENT)
    if listed.count > 0 and log.says is PluginLogState.REGISTERED:
        reason = Reason.PLUGIN_SAW_FEWER
    if log.says is PluginLogState.NOTHING:
        who += f"; its log's end: {log.last}" if log.last else "; its log is empty"
    # One that hangs in NVML answers no signal (v0.20.0), nor does one that has left its loop to
    # end.
    deaf = log.says in (PluginLogState.ASKING, PluginLogState.STOPPED)
    return Fault(reason, who, Cure.TIME, REBUILD, hup_answers=hup and not deaf, sight=sight)
