"""Link 8: the device plugin, and what is wrong with one that the kubelet does not list.

`fault` is the one place that names why a plugin did not register, and whether starting it afresh may cure it.
"""

from __future__ import annotations

from ...model.fault import Cure, Fault
from ...model.finding import Finding, Heals, Verdict
from ...model.reading import Refusal, Seen
from ...model.runtime import ContainerState, PluginLog, PluginSays, PluginSight
from ...model.scene import Scene
from ...model.settings import Settings
from .. import plugin, plugin_log


def findings(scene: Scene, fault: Fault | None) -> tuple[Finding, ...]:
    found: list[Finding] = []
    if isinstance(scene.checkpoint, Seen):
        names = {r: n for r, n in scene.checkpoint.value.items() if n and r.startswith("nvidia.com/")}
        found.append(Finding(
            9, "Checkpoint", Verdict.HOLDS if names else Verdict.FAILS,
            "kubelet_internal_checkpoint names " + (", ".join(f"{n} {r}" for r, n in names.items()) or "no device")
            + " (a hint: it outlives plugin, kubelet and boot)", "" if names else "CheckpointEmpty", blocks=False))
    elif not scene.checkpoint.is_missing:
        found.append(Finding(9, "Checkpoint", Verdict.UNKNOWN,
                             f"kubelet_internal_checkpoint tells nothing (a hint; {scene.checkpoint})",
                             "CheckpointUnreadable", blocks=False))
    if isinstance(scene.runtime, Refusal):
        found.append(Finding(8, "PluginWell", Verdict.UNKNOWN, f"the container runtime gave no answer "
                             f"({scene.runtime})", "RuntimeSilent", blocks=False,
                             next_step="systemctl status containerd; crictl ps -a"))
    elif fault is not None:
        found.append(Finding(8, "PluginWell", Verdict.FAILS, fault.because, fault.reason, blocks=False,
                             heals=Heals.CONFIGURATION if fault.cure is Cure.PERSON else Heals.SOON,
                             next_step=fault.next_step))
    elif scene.plugins:
        found.append(Finding(8, "PluginWell", Verdict.HOLDS, _describe(scene.plugins[0])))
    return tuple(found)


def _describe(sight: PluginSight) -> str:
    log = plugin.log_of(sight)
    version = plugin.version(sight)
    said = f"; its log: {log.line}" if log and log.line else ""
    return (f"{plugin.pod_name(sight)} {sight.container.name} {sight.container.id[:12]} is "
            f"{sight.container.state.value}" + (f", v{version[0]}.{version[1]}" if version else "") + said)


def fault(scene: Scene, settings: Settings, short: bool) -> Fault | None:
    """What is wrong with the plugin; None where the kubelet lists what it should, or nothing can be said."""
    if not isinstance(scene.runtime, Seen) or not short:
        return None
    if len(scene.plugins) > 1:
        names = ", ".join(f"{plugin.pod_name(s)} {s.container.id[:12]}" for s in scene.plugins)
        return Fault("TwoPlugins", f"{len(scene.plugins)} containers look like the device plugin: {names}",
                     Cure.PERSON, "[Plugin] Containers= names the right one; remove the other")
    if not scene.plugins:
        if settings.plugin_unit:
            return _unit_fault(scene, settings)
        return Fault("NoPlugin", "no container of this node looks like the device plugin", Cure.WAIT,
                     "kubectl get pods -A -o wide | grep device-plugin; [Plugin] Containers=, Images=")
    listed = scene.allocatable.value if isinstance(scene.allocatable, Seen) else ()
    return _container_fault(scene.plugins[0], bool(plugin.listed_gpus(listed, settings)))


def _unit_fault(scene: Scene, settings: Settings) -> Fault | None:
    units = scene.units.value if isinstance(scene.units, Seen) else ()
    unit = next((u for u in units if u.name == settings.plugin_unit), None)
    if unit is None or not unit.is_active:
        return Fault("PluginUnitDown", f"{settings.plugin_unit} is {unit.active if unit else 'unknown'}",
                     Cure.WAIT, f"systemctl status {settings.plugin_unit}")
    return Fault("NotRegistered", f"{unit.name} is active and the kubelet lists no GPU of it", Cure.TIME,
                 f"systemctl restart {unit.name}", invocation=unit.invocation_id)


def _container_fault(sight: PluginSight, partly: bool) -> Fault:
    who = _describe(sight)
    state = sight.container.state
    if state is ContainerState.CREATED:
        return Fault("PluginNeverStarted", f"{who}: created, and never started", Cure.TIME,
                     "crictl rm makes the kubelet build it again", sight=sight)
    if state is not ContainerState.RUNNING:
        code = sight.detail.value.exit_code if isinstance(sight.detail, Seen) else "?"
        return Fault("PluginExited", f"{who}: exit status {code}; the kubelet starts it again after its back-off",
                     Cure.WAIT, "crictl logs " + sight.container.id[:12], sight=sight)
    if not isinstance(sight.detail, Seen):
        return Fault("PluginUnread", f"{who}: its status could not be read ({sight.detail})", Cure.WAIT,
                     "systemctl status containerd", sight=sight)
    log = plugin.log_of(sight) or PluginLog(PluginSays.NOTHING, "")
    denied = isinstance(sight.access, Seen) and not sight.access.value.allowed
    allowed = isinstance(sight.access, Seen) and sight.access.value.allowed
    hup = allowed and plugin.answers_sighup(sight)
    if denied:
        return Fault("PluginAccessDenied", f"{who}: it may not open /dev/nvidiactl", Cure.FRESH_START,
                     "crictl stop and rm that one container", access_denied=True, sight=sight)
    if plugin_log.lacks_the_library(log):
        return Fault("PluginLacksLibrary", f"{who}: its container lacks NVML's library", Cure.PERSON,
                     "the nvidia runtime did not prepare this container: crictl inspect, RuntimeClass, CDI spec",
                     sight=sight)
    if log.says in (PluginSays.INIT_FAILED, PluginSays.NO_DEVICES):
        reason = "PluginInitFailed" if log.says is PluginSays.INIT_FAILED else "PluginSawNoGpu"
        return Fault(reason, who, Cure.FRESH_START, "crictl stop and rm that one container", hup_answers=hup,
                     sight=sight)
    if log.says is PluginSays.UNHEALTHY:
        return Fault("PluginSawUnhealthy", f"{who}: a fresh start would offer that GPU again", Cure.PERSON,
                     "dmesg | grep Xid; drain the node, then reset the GPU or reboot", sight=sight)
    reason = {PluginSays.ASKING: "PluginAsking", PluginSays.REGISTERED: "PluginForgotten"}.get(
        log.says, "PluginSilent")
    if partly and log.says is PluginSays.REGISTERED:
        reason = "PluginSawFewer"
    # One that hangs in NVML answers no signal (v0.20.0).
    return Fault(reason, who, Cure.TIME, "crictl stop and rm that one container",
                 hup_answers=hup and log.says is not PluginSays.ASKING, sight=sight)
