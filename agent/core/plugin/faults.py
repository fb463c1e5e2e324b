"""Links 8 and 9: the device plugin.

The borders of evidence: what is called the old plugin's socket problem was seen as a kubelet.sock
made anew and no registration since; what is called too early was seen to be so.
"""

from __future__ import annotations

import re

from ...model.condition import Condition, Link
from ...model.diagnostics import JournalEvent
from ...model.finding import Verdict
from ...model.reading import Seen
from ...model.reason import Reason
from ...model.runtime import PluginLogState, PluginSight
from ..common.known_fault import Evidence, Judge, KnownFault, Mark, cited, either, when
from . import candidates as plugin
from . import log as plugin_log
from .pod_faults import since_then, soon_again

DEAF = ((0, 9), (0, 13))
"""Versions that wait for ever after a failed start, before they watch for signals and sockets
(v0.9.0 to v0.12.3)."""
FORBIDDEN = re.compile(r"insufficient permissions|NO_PERMISSION", re.I)
ASKS_S = 60.0
"""NVML may take that long over eight cold GPUs without persistence."""
SETTLED_S = 30.0
"""A plugin that watches has registered again by then: it takes a second."""


def _nvml_fails(evidence: Evidence) -> bool:
    """NVML on the host itself fails."""
    nvml = evidence.diagnosis.get(Condition.NVML_COMPLETE)
    return nvml is not None and nvml.verdict is Verdict.FAILS


def _early(evidence: Evidence) -> Mark | None:
    failed, sight = (
        evidence.finding(Reason.PLUGIN_INIT_FAILED, Reason.PLUGIN_SAW_NO_GPU),
        evidence.plugin,
    )
    if not failed or not sight or _not_permitted(evidence) or _old_library(evidence):
        return None
    started = plugin.began_at(evidence.snapshot, sight)
    late = evidence.journal(JournalEvent.GPU_UP, started)
    if late:
        return Mark(
            True, f"{failed.because}; {late.at - started:.1f} s after its start: {late.line}"
        )
    host = evidence.finding(
        Reason.NVML_UNKNOWN,
        Reason.NVML_DRIVER_NOT_LOADED,
        Reason.NVML_NOT_READY,
        Reason.GPU_MISSING,
    )
    if host:
        return Mark(True, f"{failed.because}; NVML on the host fails as well: {host.because}")
    if _nvml_fails(evidence):
        # The host's NVML fails for a reason of its own, which waiting would not have cured.
        return None
    first, watching = evidence.diagnostics.first_seen, evidence.snapshot.boot.waiting
    if (
        isinstance(first, Seen)
        and isinstance(watching, Seen)
        and watching.value.at < started < first.value.at
    ):
        return Mark(
            True,
            f"{failed.because}; it was started {first.value.at - started:.1f} s before NVML first "
            "showed every GPU",
        )
    return Mark(False, f"{failed.because}; NVML on the host shows every GPU now")


def _old_library(evidence: Evidence) -> Mark | None:
    """Its library is of another driver than the loaded one, while the host's own is not."""
    found, log = (
        evidence.finding(Reason.PLUGIN_INIT_FAILED, Reason.PLUGIN_EXITED),
        evidence.plugin_log,
    )
    if not found or not log or not plugin_log.has_an_old_library(log):
        return None
    hosts = _nvml_fails(evidence)
    return None if hosts else Mark(True, f"{found.because}; NVML on the host is well")


def _not_permitted(evidence: Evidence) -> Mark | None:
    """NVML says so of EACCES; a device cgroup's EPERM is an unknown error to it."""
    found, log = (
        evidence.finding(Reason.PLUGIN_INIT_FAILED, Reason.PLUGIN_EXITED),
        evidence.plugin_log,
    )
    is_it = (
        log is not None and log.says is PluginLogState.INIT_FAILED and FORBIDDEN.search(log.error)
    )
    return Mark(True, found.because) if found and is_it else None


def _mig(evidence: Evidence) -> Mark | None:
    """What the plugin refuses to start with; its own last words say that it was this."""
    half, log = (
        evidence.finding(Reason.MIG_WITHOUT_INSTANCES, Reason.MIG_NOT_UNIFORM),
        evidence.plugin_log,
    )
    ended = evidence.finding(
        Reason.PLUGIN_EXITED, Reason.PLUGIN_INIT_FAILED, Reason.PLUGIN_SAW_NO_GPU
    )
    if half and ended and log and re.search(r"\bMIG\b|migEnabled", log.last, re.I):
        return Mark(True, f"{half.because}; its last words: {log.last}")
    return (
        Mark(True, half.because)
        if half
        and any(
            f.link is Link.PLUGIN and f.reason is half.reason for f in evidence.diagnosis.findings
        )
        else None
    )


def _deaf(evidence: Evidence) -> Mark | None:
    sight = evidence.plugin
    log = evidence.plugin_log
    if (
        not sight
        or not evidence.finding(Reason.PLUGIN_INIT_FAILED)
        or not log
        or log.says is not PluginLogState.INIT_FAILED
    ):
        return None
    known = plugin.version(sight)
    if known is None and log.version:
        return None  # it prints one, as 0.15 and later do, and its makers put a commit there
    if known is None:
        return Mark(False, "it failed at its start and runs on; its version is not known")
    if not DEAF[0] <= known < DEAF[1]:
        return None
    return Mark(
        True,
        f"v{known[0]}.{known[1]} failed at its start ({log.error}) and runs on: it hears neither "
        "SIGHUP nor a kubelet that restarts",
    )


def _forgotten(evidence: Evidence) -> tuple[PluginSight, float] | None:
    """A plugin whose log says registered while the kubelet lists nothing, and its start; boottime,
    seconds."""
    sight = evidence.plugin
    if not sight or not evidence.finding(Reason.PLUGIN_FORGOTTEN):
        return None
    return sight, plugin.began_at(evidence.snapshot, sight)


def _socket_made_anew(evidence: Evidence) -> Mark | None:
    found, sock = _forgotten(evidence), evidence.kubelet_socket
    if not found or not sock:
        return None
    made = evidence.boottime_of(sock.mtime)
    again = evidence.journal(JournalEvent.REGISTERED, made)
    # A stamp that lies in the future, or before the boot, is of a clock that was set since: it
    # tells no order.
    if made <= found[1] or again or not 0.0 < made <= evidence.snapshot.clock.boottime:
        return None
    since = evidence.snapshot.clock.boottime - made
    return Mark(
        since >= SETTLED_S,
        f"kubelet.sock was made anew {made - found[1]:.0f} s after the plugin's start, "
        f"and in the {since:.0f} s since it has not registered again; its log still ends with "
        "Registered",
    )


def _overlap(evidence: Evidence) -> Mark | None:
    found, sock = _forgotten(evidence), evidence.kubelet_socket
    if not found or (sock and evidence.boottime_of(sock.mtime) > found[1]):
        return None
    ended = evidence.journal(JournalEvent.LIST_ENDED, found[1])
    if ended:
        return Mark(True, f"its log says registered; {cited(evidence, ended)}")
    return Mark(
        False,
        "its log says registered, kubelet.sock is older than it, and the kubelet lists nothing",
    )


def _turned_away(evidence: Evidence) -> Mark | None:
    found, log = evidence.finding(Reason.PLUGIN_SILENT), evidence.plugin_log
    return (
        Mark(True, found.because)
        if found and log and log.says is PluginLogState.NOT_REGISTERED
        else None
    )


def _not_reached(evidence: Evidence) -> Mark | None:
    """It came to register, and the kubelet could not call it back."""
    found, sight = evidence.finding(Reason.PLUGIN_FORGOTTEN, Reason.PLUGIN_SILENT), evidence.plugin
    since = plugin.began_at(evidence.snapshot, sight) if sight else 0.0
    line = evidence.journal(JournalEvent.NOT_REACHED, since)
    return Mark(True, f"{found.because}; {cited(evidence, line)}") if found and line else None


def _waits(for_mps: bool) -> Judge:
    def judge(evidence: Evidence) -> Mark | None:
        found = evidence.finding(Reason.PLUGIN_WAITS)
        return Mark(True, found.because) if found and ("MPS" in found.because) is for_mps else None

    return judge


def _asking(evidence: Evidence) -> Mark | None:
    """One that has just begun to ask does not hang, and GKE's waits for device nodes with the same
    last word."""
    found, log = evidence.finding(Reason.PLUGIN_ASKING), evidence.plugin_log
    since = since_then(evidence, log.at) if log else None
    if not found or evidence.finding(Reason.DEVICE_NODES_MISSING) or soon_again(evidence):
        return None
    return Mark(False, found.because) if since is None or since > ASKS_S else None


def _unit_failed(evidence: Evidence) -> Mark | None:
    """A plugin that is a unit has no log of its own: the journal has it."""
    found, unit = (
        evidence.finding(Reason.NOT_REGISTERED, Reason.PLUGIN_LISTS_GONE),
        evidence.plugin_unit,
    )
    if not found or not unit or not unit.is_active:
        return None
    line = evidence.journal(JournalEvent.PLUGIN_FAILED, unit.active_since or 0.0, unit.name)
    return Mark(line is not None, found.because + (f"; {cited(evidence, line)}" if line else ""))


REBUILD = "crictl stop {plugin} && crictl rm {plugin}"
RESTART = "systemctl restart {unit}"
AGAIN = "have its container made again"
NOT_THE_POD = (
    "helped by kubectl delete pod where it is a static pod: the kubelet keeps the container"
)
VENDORS = "A cloud vendor's plugin is updated by that vendor, never replaced by another image."
FAULTS = (
    KnownFault(
        "MigHalfConfigured",
        Link.PLUGIN,
        "MIG mode is on, and the GPUs are not configured as the plugin's MIG strategy wants",
        "NVIDIA/k8s-device-plugin, internal/mig",
        "a GPU in MIG mode without instances, or GPUs that differ under "
        "MIG_STRATEGY=single, and a plugin that ended with words of MIG, or was given no other GPU",
        judge=_mig,
        remedy="make the instances (nvidia-mig-parted, nvidia-smi mig), or switch MIG mode "
        "off; then it starts",
        do="nvidia-smi mig -lgi; nvidia-smi "
        "--query-gpu=index,mig.mode.current,mig.mode.pending --format=csv",
        is_not="cured by starting the plugin afresh",
    ),
    KnownFault(
        "EarlyNvml",
        Link.PLUGIN,
        "The plugin asked NVML before it was ready, and does not ask again",
        "the founding incident; NVIDIA/k8s-device-plugin #414, #330, #1080",
        "its log says that NVML failed, and at that time NVML or a GPU was seen not to be ready",
        judge=_early,
        consistent="its log says that NVML failed, and NVML on the host shows every GPU now",
        decide="what was ready at its start: persistenced's lines, NVML's first good answer, "
        "its own access",
        capture="journalctl -b -u nvidia-persistenced; gpu-gate access; crictl logs {plugin}",
        remedy="have its container made again; to keep it from coming back: gpu-gate before "
        "the kubelet. " + VENDORS,
        do=REBUILD,
        is_not=NOT_THE_POD,
    ),
    KnownFault(
        "UnitNotRegistered",
        Link.PLUGIN,
        "The device plugin is a unit of the host, and registered nothing",
        "bottlerocket-core-kit nvidia-k8s-device-plugin, Azure/AgentBaker "
        "nvidia-device-plugin.service",
        "its own line in the journal, since its start, that NVML failed or showed no GPU",
        judge=_unit_failed,
        consistent="its unit is active, and the kubelet lists nothing of it",
        decide="its own lines",
        capture="journalctl -b -u {unit} -n 50",
        remedy="restart it, once NVML on the host shows every GPU; to keep it from coming "
        "back: [Plugin] Launch=unit",
        do=RESTART,
        is_not="seen by systemd: its unit stays active",
    ),
    KnownFault(
        "DeafPlugin",
        Link.PLUGIN,
        "An old plugin that failed once hears nothing more (v0.9 to v0.12)",
        "NVIDIA/k8s-device-plugin #170",
        "a version of that range whose log ends with a failed NVML",
        judge=_deaf,
        consistent="a plugin of unknown version whose log ends so",
        decide="its version",
        capture="crictl inspect {plugin} | grep -i image",
        remedy="have its container made again. " + VENDORS,
        do=REBUILD,
        is_not="woken by SIGHUP: that ends it",
        is_cause=False,
    ),
    KnownFault(
        "PluginOwnAccessLost",
        Link.PLUGIN,
        "The plugin itself may no longer open the driver",
        "NVIDIA/k8s-device-plugin #1640, #1223, #1397",
        "its device cgroup denies /dev/nvidiactl",
        judge=when(Reason.PLUGIN_ACCESS_DENIED),
        remedy="have its container made again. SIGHUP would take away what it still offers",
        do=REBUILD,
        is_not="seen by the kubelet: it goes on listing the GPUs, and every allocation fails",
    ),
    KnownFault(
        "ContainerOlderThanModule",
        Link.PLUGIN,
        "The plugin's container is older than the loaded nvidia module",
        "NVIDIA/k8s-device-plugin cmd/nvidia-device-plugin/main.go",
        "its creation lies before the kernel's line "
        "that the module was loaded, or its log says that its library is of another version, "
        "and the host's is not",
        judge=either((when(Reason.PLUGIN_OLDER_THAN_DRIVER), _old_library)),
        remedy="have its container made again: it was given what was there then",
        do=REBUILD,
        is_not="helped by SIGHUP",
    ),
    KnownFault(
        "K8sDevicePlugin426",
        Link.PLUGIN,
        "The kubelet was restarted, and the plugin did not register again",
        "NVIDIA/k8s-device-plugin #426",
        "kubelet.sock made anew after the plugin's start, no registration since, and the "
        "kubelet lists nothing",
        judge=_socket_made_anew,
        consistent="the same, some seconds old",
        decide="wait half a minute and look again",
        capture="sleep 30; gpu-gate doctor; ls -l --full-time /var/lib/kubelet/device-plugins",
        remedy="have its container made again. " + VENDORS,
        do=REBUILD,
        is_not="this, unless kubelet.sock is seen to be newer than the plugin",
    ),
    KnownFault(
        "OverlapOfTwo",
        Link.PLUGIN,
        "An older instance's exit took the newer one's registration away",
        "NVIDIA/k8s-device-plugin #255; kubernetes pkg/kubelet/cm/devicemanager",
        "the kubelet lost the plugin after this one had started, or another process serves its "
        "socket",
        judge=either((when(Reason.ANOTHER_SERVES), _overlap)),
        consistent="its log says registered, the kubelet did not restart, and lists nothing",
        decide="the kubelet's own lines",
        capture="journalctl -b -u kubelet | grep -E 'ListAndWatch|registration'",
        remedy="have the one that is left made again",
        do=REBUILD,
    ),
    KnownFault(
        "TwoPlugins",
        Link.PLUGIN,
        "Two device plugins offer the same resource",
        "NVIDIA/k8s-device-plugin #255, Project-HAMi/HAMi #646",
        "more than one container, or a container and a unit, look like the plugin",
        judge=when(Reason.TWO_PLUGINS),
        remedy="remove one: who registers last wins, and who ends takes the resource away",
        do="kubectl get pods -A -o wide | grep device-plugin",
        is_not="for a program to decide",
    ),
    KnownFault(
        "PluginGivenNothing",
        Link.PLUGIN,
        "The plugin's container was given no GPU that is here",
        "NVIDIA/nvidia-container-toolkit, NVIDIA_VISIBLE_DEVICES; an exchanged GPU has another "
        "UUID",
        "NVIDIA_VISIBLE_DEVICES, or its pod's CDI annotation, names none that NVML shows",
        judge=when(Reason.PLUGIN_GIVEN_NOTHING),
        remedy="name GPUs that are here, or all, in its pod's spec",
        do="nvidia-smi -L; crictl inspect {plugin} | grep -E 'NVIDIA_VISIBLE_DEVICES|cdi.k8s.io'",
        is_not="helped by a fresh start, nor a loss of device access: it was never given any",
    ),
    KnownFault(
        "PluginSawFewer",
        Link.PLUGIN,
        "The plugin was started while NVML showed fewer GPUs",
        "NVIDIA/gpu-operator #2511",
        "it registered fewer than NVML shows, and never looks again",
        judge=when(Reason.PLUGIN_SAW_FEWER),
        remedy="have its container made again; running pods keep their GPUs",
        do=REBUILD,
        is_not="a lost GPU: NVML shows them all",
    ),
    KnownFault(
        "PluginMarkedUnhealthy",
        Link.PLUGIN,
        "The plugin took a GPU out of what it offers (Xid)",
        "NVIDIA/k8s-device-plugin internal/rm/health.go",
        "its log says that a device went unhealthy",
        judge=when(Reason.PLUGIN_SAW_UNHEALTHY),
        remedy="reset that GPU, or reboot the drained node, then start the plugin afresh",
        do="dmesg | grep Xid",
        is_not="helped by a fresh start alone: it would offer a broken GPU again",
    ),
    KnownFault(
        "RegistrationFailed",
        Link.PLUGIN,
        "The plugin serves its GPUs, and could not register with the kubelet",
        "NVIDIA/k8s-device-plugin #10, #55, #82, #156",
        "its own log's line that it could not register, or the kubelet's that it refused it or "
        "did not reach it",
        judge=either((_turned_away, _not_reached)),
        remedy="its line says why. Unimplemented, or a version that is not supported: a plugin "
        "too old for this "
        "kubelet; deadline exceeded or permission denied: kubelet.sock of another kubelet's "
        "folder, or "
        "SELinux; connection refused: the kubelet that made it has ended. " + VENDORS,
        do="crictl logs --tail 30 {plugin}; ls -lZ /var/lib/kubelet/device-plugins",
        is_not="an error of NVML's: it has seen its GPUs",
    ),
    KnownFault(
        "PluginHangsInNvml",
        Link.PLUGIN,
        "The plugin asks NVML and gets no answer",
        "NVIDIA/k8s-device-plugin #301, #77",
        "none that can be seen from outside",
        judge=_asking,
        consistent="its log ends where it asks NVML",
        decide="what its process waits for",
        capture="cat /proc/$(crictl inspect {plugin} | jq .info.pid)/stack",
        remedy="have its container made again, once NVML on the host answers",
        do=REBUILD,
    ),
    KnownFault(
        "PluginNotPermitted",
        Link.PLUGIN,
        "The plugin may not open the driver's device nodes, by their permissions",
        "NVIDIA/nvidia-container-toolkit #210, #33; NVIDIA/k8s-device-plugin #637",
        "its log says Insufficient Permissions (NVML_ERROR_NO_PERMISSION)",
        judge=_not_permitted,
        remedy="what forbids it is SELinux or AppArmor, the nodes' own mode "
        "(NVreg_DeviceFileMode), or a container "
        "without the capability that MIG wants (SYS_ADMIN): allow it there, then start the "
        "plugin afresh",
        do="ls -lZ /dev/nvidia*; journalctl -k | grep -i 'denied.*nvidia'",
        is_not="a device cgroup's word, which is Unknown Error, nor a start too early",
    ),
    KnownFault(
        "MpsDaemonMissing",
        Link.PLUGIN,
        "The plugin waits for the MPS control daemon",
        "NVIDIA/k8s-device-plugin #679, #712, #762",
        "its log's line that the daemon does not answer",
        judge=_waits(for_mps=True),
        remedy="have the MPS control daemon run on this node: its DaemonSet (Helm chart) goes "
        "where the label "
        "nvidia.com/mps.capable=true is; or share the GPUs in another way",
        do="crictl ps -a --name mps-control-daemon",
        is_not="helped by a fresh start of the plugin, which asks again every 30 s",
    ),
    KnownFault(
        "PluginTriesAgain",
        Link.PLUGIN,
        "The plugin cannot start yet, and tries again by itself",
        "GoogleCloudPlatform/container-engine-accelerators cmd/nvidia_gpu",
        "its log's line, every 5 s",
        judge=_waits(for_mps=False),
        remedy="its line says what it lacks: a device node (nvidia-uvm), or MIG partitions "
        "that are not what its "
        "gpu_config.json wants",
        do="crictl logs --tail 30 {plugin}; ls -l /dev/nvidia*; nvidia-smi mig -lgi",
        is_not="helped by a fresh start of the plugin",
    ),
    KnownFault(
        "PluginHealthFailed",
        Link.PLUGIN,
        "The plugin's health check failed, and took GPUs out of what it offers",
        "NVIDIA/k8s-device-plugin #33, #403, #1562",
        "its log's line that NVML's events failed it; and nothing of any GPU in the kernel's "
        "log since its start",
        judge=when(Reason.PLUGIN_HEALTH_FAILED),
        remedy="have its container made again. Where a GPU has no such events (an old one), "
        "that does not help: "
        "DP_DISABLE_HEALTHCHECKS=all in its environment, or a newer version of the plugin. "
        + VENDORS,
        do=REBUILD,
        is_not="an Xid: no GPU is seen to be broken",
    ),
)
