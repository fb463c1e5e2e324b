"""Link 8: the plugin's pod. Whether the kubelet admits it, has it made, and keeps it running."""

from __future__ import annotations

from ...model.condition import Link
from ...model.diagnostics import JournalEvent
from ...model.reason import Reason
from ..common.known_fault import Evidence, KnownFault, Mark, cited, either, when
from . import candidates as plugin

STARTS, BACK_OFF_S = 3, 300.0
"""Starts after the first that are no accident, and the longest back-off between two."""
REPEATS_S = 600.0


def _unmade(evidence: Evidence) -> Mark | None:
    found = evidence.finding(Reason.PLUGIN_POD_WAITS)
    line = evidence.journal(JournalEvent.NOT_STARTED) or evidence.journal(JournalEvent.NO_SANDBOX)
    return (
        Mark(True, found.because + (f"; {cited(evidence, line)}" if line else ""))
        if found
        else None
    )


def _not_made(evidence: Evidence) -> Mark | None:
    """A pod without a sandbox is no runtime's to list. A kubelet repeats its line every few minutes
    at most."""
    found, line = evidence.finding(Reason.NO_PLUGIN), evidence.journal(JournalEvent.NO_SANDBOX)
    if not found or not line:
        return None
    is_new = evidence.snapshot.clock.boottime - line.at <= REPEATS_S
    return Mark(is_new, f"{found.because}; {cited(evidence, line)}")


def _turned_out(evidence: Evidence) -> Mark | None:
    found, line = evidence.finding(Reason.NO_PLUGIN), evidence.journal(JournalEvent.TURNED_OUT)
    return Mark(True, f"{found.because}; {cited(evidence, line)}") if found and line else None


def _none(evidence: Evidence) -> Mark | None:
    """No plugin, and no word of one that came to this node and is not here any more."""
    found = evidence.finding(Reason.NO_PLUGIN)
    came = [
        mark
        for judge in (_not_made, _turned_out)
        if (mark := judge(evidence)) and mark.is_confirmed
    ]
    return Mark(True, found.because) if found and not came else None


def since_then(evidence: Evidence, realtime: float) -> float | None:
    """Seconds; None where it is not known, or the clock was set since."""
    ago = evidence.snapshot.clock.realtime - realtime
    return ago if realtime > 0.0 and ago >= 0.0 else None


def soon_again(evidence: Evidence) -> Mark | None:
    """It runs now, between two ends."""
    found, sight = (
        evidence.finding(Reason.PLUGIN_ASKING, Reason.PLUGIN_SILENT, Reason.PLUGIN_FORGOTTEN),
        evidence.plugin,
    )
    since = since_then(evidence, plugin.started_at(sight)) if sight else None
    if (
        not found
        or not sight
        or sight.container.attempt < STARTS
        or since is None
        or since > BACK_OFF_S
    ):
        return None
    return Mark(
        False,
        f"{found.because}; it was started {since:.0f} s ago, {sight.container.attempt} starts "
        "after "
        "its first",
    )


FAULTS = (
    KnownFault(
        "PluginPodWaits",
        Link.PLUGIN,
        "The plugin's pod is here, and its plugin's container was not made",
        "NVIDIA/gpu-operator #280, #378, #448; kubernetes/kubernetes pkg/kubelet/kuberuntime",
        "a pod with a plugin's labels whose sandbox is ready, without the plugin in it; or the "
        "kubelet's line that "
        "it could not have such a pod made",
        judge=either((_unmade, _not_made)),
        remedy="an init container in it waits for what comes before (GPU Operator: driver, "
        "toolkit), and its log "
        "names it; where none is in it, the kubelet could not have it made: image, secret, "
        "configuration; "
        "where there is not even a sandbox: the node's network (CNI), or a volume, ConfigMap "
        "or Secret that "
        "is not there",
        consistent="that line is old",
        decide="whether the kubelet still says so",
        capture="journalctl -u kubelet --since -10min | grep device-plugin",
        do="journalctl -b -u kubelet | grep -E 'StartContainer|CreatePodSandbox|MountVolume'",
        is_not="a DaemonSet that does not select this node",
    ),
    KnownFault(
        "PluginPodTurnedOut",
        Link.PLUGIN,
        "The kubelet evicted the plugin's pod, or did not admit it",
        "kubernetes/kubernetes pkg/kubelet/eviction, pkg/kubelet/lifecycle/predicate.go; "
        "#109663, #123859",
        "the kubelet's line about such a pod, while none is here",
        judge=_turned_out,
        remedy="its line says why: want of disk or memory (make room; priorityClassName: "
        "system-node-critical keeps "
        "a plugin from being evicted first), or a label of the node that its affinity wants",
        do="journalctl -b -u kubelet | grep -iE 'evict|admi(t|ssion)' | grep device-plugin; "
        "kubectl get pods -A "
        "-o wide | grep device-plugin",
        is_not="a DaemonSet that never selected this node",
    ),
    KnownFault(
        "NoPlugin",
        Link.PLUGIN,
        "No device plugin runs on this node",
        "kubernetes/kubernetes, device plugins",
        "no container and no unit that looks like one",
        judge=_none,
        remedy="its DaemonSet does not select this node, or its manifest is not in the "
        "kubelet's folder",
        do='kubectl get pods -A -o wide --field-selector spec.nodeName="$(hostname)" | grep -i '
        "plugin",
    ),
    KnownFault(
        "PluginCrashes",
        Link.PLUGIN,
        "The plugin's container ends again and again",
        "NVIDIA/k8s-device-plugin #50",
        "its container has ended, and the kubelet waits before it starts it again",
        judge=either((when(Reason.PLUGIN_EXITED), soon_again)),
        consistent="it runs, was started some minutes ago at most, and not for the first time",
        decide="how its container before ended",
        capture="crictl ps -a --name device-plugin; crictl logs -p {plugin}",
        remedy="read why it ended",
        do="crictl logs --tail 30 {plugin}",
    ),
)
