"""Links 7, 10 and 11: the kubelet, what it lists, and the pods it turns away."""

from __future__ import annotations

import re

from ...model.condition import Link
from ...model.diagnostics import JournalEvent
from ...model.reading import Refusal, Seen, Why
from ...model.reason import Reason
from ..common import parse
from ..common.known_fault import Evidence, KnownFault, Mark, cited, either, said, when

NOT_OFFERED = re.compile(r"UNIMPLEMENTED|GetAllocatable\w{0,20}.{0,20} disabled", re.I)
AFTER_START_S = 120.0
"""A kubelet admits the pods it finds again in its first seconds; the plugin comes within a
minute."""


def _stale_checkpoint(evidence: Evidence) -> Mark | None:
    """It names GPUs and the kubelet lists none: nobody may take it for a registration."""
    found, snapshot = evidence.finding(Reason.NOT_REGISTERED), evidence.snapshot
    named = (
        sum(n for r, n in snapshot.kubelet.checkpoint.value.items() if r.startswith("nvidia.com/"))
        if isinstance(snapshot.kubelet.checkpoint, Seen)
        else 0
    )
    return (
        Mark(True, f"kubelet_internal_checkpoint names {named} devices, and {found.because}")
        if found and named
        else None
    )


def _init_race(evidence: Evidence) -> Mark | None:
    repair_facts = evidence.diagnosis.repair_facts
    since = repair_facts.kubelet_since if repair_facts else 0.0
    line = evidence.journal(JournalEvent.UNEXPECTED, since)
    if not line or not since or line.at > since + AFTER_START_S:
        return None
    return Mark(False, f"{line.at - since:.0f} s after the kubelet's start: {line.line[:200]}")


def _unexpected(evidence: Evidence) -> Mark | None:
    line = evidence.journal(JournalEvent.UNEXPECTED)
    return Mark(True, cited(evidence, line)) if line else None


def _refused(evidence: Evidence) -> Refusal | None:
    """Systemd says that it runs, and its own API does not answer."""
    answer = evidence.snapshot.kubelet.allocatable
    is_telling = isinstance(answer, Refusal) and answer.is_telling
    return (
        answer
        if isinstance(answer, Refusal) and is_telling and evidence.diagnosis.kubelet_active
        else None
    )


def _too_old(evidence: Evidence) -> Mark | None:
    """No such method before 1.21; behind a feature gate that is off in 1.21 and 1.22."""
    answer = _refused(evidence)
    return (
        Mark(True, f"its pod-resources API answers: {answer.detail}")
        if answer and NOT_OFFERED.search(answer.detail)
        else None
    )


def _elsewhere(evidence: Evidence) -> Mark | None:
    """It listens within a second of its start, below its --root-dir."""
    answer, repair_facts = _refused(evidence), evidence.diagnosis.repair_facts
    up_s = (
        evidence.snapshot.clock.boottime - repair_facts.kubelet_since
        if repair_facts and repair_facts.kubelet_since
        else 0.0
    )
    if answer is None or not answer.is_missing or _too_old(evidence) or up_s < AFTER_START_S:
        return None
    return Mark(
        False,
        f"its unit has been active for {up_s:.0f} s, and no pod-resources socket is there "
        f"({answer})",
    )


def _silent(evidence: Evidence) -> Mark | None:
    answer = _refused(evidence)
    if answer is None or _too_old(evidence) or _elsewhere(evidence):
        return None
    return Mark(False, f"its unit is active, and its pod-resources API gave no answer ({answer})")


def _runtime_silent(evidence: Evidence) -> Mark | None:
    answer = evidence.snapshot.plugin.runtime
    if not isinstance(answer, Refusal) or not answer.is_telling:
        return None
    return Mark(
        not answer.is_missing, f"{evidence.snapshot.plugin.runtime_socket or 'CRI'}: {answer}"
    )


def _torn(evidence: Evidence) -> Mark | None:
    file = evidence.snapshot.kubelet.checkpoint
    if not isinstance(file, Refusal) or file.why is not Why.FAILED:
        return None
    return Mark(parse.UNKNOWN_FORM not in file.detail, f"kubelet_internal_checkpoint: {file}")


TURNED_AWAY = 'kubectl get pods -A --field-selector status.phase=Failed,spec.nodeName="$(hostname)"'
NEVER_THE_FILE = "cured by deleting kubelet_internal_checkpoint: pods would then start without GPUs"
FAULTS = (
    KnownFault(
        "KubeletDown",
        Link.KUBELET,
        "The kubelet does not run",
        "kubernetes/kubernetes, kubelet",
        "its unit is not active",
        judge=when(Reason.KUBELET_INACTIVE),
        remedy="read why, and start it",
        do="systemctl status kubelet; journalctl -u kubelet -n 30",
    ),
    KnownFault(
        "KubeletSocketGone",
        Link.KUBELET,
        "The kubelet's kubelet.sock is not there, by which plugins register",
        "kubernetes/kubernetes pkg/kubelet/cm/devicemanager/plugin/v1beta1/server.go",
        "the kubelet answers, and its folder of device plugins holds no kubelet.sock",
        judge=when(Reason.KUBELET_SOCKET_MISSING),
        remedy="a kubelet makes it once its runtime answers, and at no other time: where "
        "somebody cleared that "
        "folder, drain the node and start its kubelet anew",
        do="ls -la /var/lib/kubelet/device-plugins; journalctl -b -u kubelet | grep -i 'device "
        "plugin'",
        is_not="helped by starting the plugin afresh: it would only lose what it still offers",
    ),
    KnownFault(
        "KubeletCannotWrite",
        Link.REGISTRATION,
        "The kubelet cannot write its checkpoint: pods that want devices are turned away",
        "kubernetes/kubernetes #94305, #85831",
        "the kubelet's own line",
        judge=said(JournalEvent.NOT_WRITTEN),
        remedy="make room on that file system, or see why it is read-only; then delete the "
        "dead pods",
        do="df -h /var/lib/kubelet; findmnt -T /var/lib/kubelet",
        is_not=NEVER_THE_FILE,
        is_cause=False,
    ),
    KnownFault(
        "KubeletTooOld",
        Link.REGISTRATION,
        "The kubelet does not tell which devices are allocatable",
        "kubernetes/enhancements KEP-2403",
        "its pod-resources API has no GetAllocatableResources, or not enabled",
        judge=_too_old,
        remedy="Kubernetes 1.23 or newer; in 1.21 and 1.22 the kubelet's feature gate "
        "KubeletPodResourcesGetAllocatable=true. Until then it is not known whether GPUs are "
        "registered: the "
        "node is never called ready, and no plugin is started afresh",
        do="kubelet --version",
    ),
    KnownFault(
        "KubeletElsewhere",
        Link.REGISTRATION,
        "The kubelet runs, and its pod-resources socket is not where it is looked for",
        "kubernetes/kubernetes #68567, #120626",
        "none that can be seen from outside",
        judge=_elsewhere,
        consistent="its unit has been active for minutes, and no socket is there: it may have "
        "another --root-dir",
        decide="where it listens",
        capture="ss -xlp | grep pod-resources",
        remedy="[Kubelet] PodResourcesSocket= names that socket "
        "(ROOT-DIR/pod-resources/kubelet.sock); the folder of "
        "device plugins stays where it is, whatever its --root-dir",
    ),
    KnownFault(
        "KubeletSilent",
        Link.REGISTRATION,
        "The kubelet runs, and its pod-resources API does not answer",
        "kubernetes/kubernetes pkg/kubelet/apis/podresources",
        "none that can be seen from outside",
        judge=_silent,
        consistent="its unit is active, and the socket is missing or silent: it may be starting",
        decide="look again in a minute",
        capture="journalctl -u kubelet -n 30",
        remedy="let its start end; what keeps it says so in its journal",
    ),
    KnownFault(
        "StaleCheckpoint",
        Link.REGISTRATION,
        "The kubelet's checkpoint names GPUs that no plugin registered",
        "kubernetes/kubernetes #67107, #125579, #128043, #133382",
        "it names devices while the kubelet lists none: it outlives plugin, kubelet and boot",
        judge=_stale_checkpoint,
        remedy="nothing is done to the file; what keeps the plugin from registering is the "
        "fault, and its log may "
        "say it",
        do="crictl logs --tail 30 {plugin}",
        is_not=NEVER_THE_FILE,
        is_cause=False,
    ),
    KnownFault(
        "CheckpointTorn",
        Link.REGISTRATION,
        "The kubelet's checkpoint cannot be read",
        "kubernetes/kubernetes #102882, tkestack/gpu-manager #62",
        "its content, or the kubelet's own line",
        judge=either((_torn, said(JournalEvent.CHECKPOINT))),
        consistent="it is a whole JSON object, of a form that we do not know: a newer "
        "kubelet's, perhaps",
        decide="whether the kubelet could read it",
        capture="journalctl -b -u kubelet | grep -i 'failing to read'",
        remedy="the kubelet goes on without it and writes another; let it",
        is_not=NEVER_THE_FILE,
        is_cause=False,
    ),
    KnownFault(
        "OutOfGpus",
        Link.REGISTRATION,
        "Pods died as OutOfnvidia.com/gpu: they came before the GPUs were registered",
        "kubernetes/kubernetes pkg/kubelet/lifecycle/predicate.go",
        "the kubelet's line that it turned a pod away for want of nvidia.com/gpu",
        judge=said(JournalEvent.OUT_OF),
        remedy="delete the dead pods; keep others back by the label, taint or condition that "
        "gpu-gate-node sets",
        do=TURNED_AWAY,
        is_not="a full node: the scheduler had counted GPUs that the kubelet did not list. A "
        "kubelet "
        "at its default verbosity may not write that line",
        is_cause=False,
    ),
    KnownFault(
        "UnexpectedAdmission",
        Link.REGISTRATION,
        "Pods died as UnexpectedAdmissionError: their GPUs could not be allocated",
        "kubernetes/kubernetes #125579, NVIDIA/k8s-device-plugin #1640",
        "the kubelet's line that an allocation of nvidia.com/gpu failed",
        judge=_unexpected,
        remedy="what made it fail is another fault of this list; delete the dead pods",
        do=TURNED_AWAY,
        is_cause=False,
    ),
    KnownFault(
        "InitContainerRace",
        Link.REGISTRATION,
        "After a kubelet restart, running pods with init containers are turned away",
        "kubernetes/kubernetes #118559, #124345, #138446",
        "none that a node keeps: the pod's own spec is wanted",
        judge=_init_race,
        consistent="an allocation failed within two minutes of the kubelet's start",
        decide="whether that pod ran before, and has init containers",
        capture=TURNED_AWAY + " -o yaml | grep -A3 initContainers",
        remedy="delete the dead pods; do not restart a kubelet under GPU pods",
        is_not="the plugin's fault",
        is_cause=False,
    ),
    KnownFault(
        "AllocatableButLost",
        Link.REGISTRATION,
        "Allocatable, but every allocation will fail: a listed GPU is lost",
        "pytorch/ci-infra #1057, #1058; kubernetes/kubernetes #97131",
        "the kubelet lists a GPU that NVML does not show, or says is lost",
        judge=when(Reason.ALLOCATION_WILL_FAIL),
        remedy="cordon the node at once, then treat the lost GPU",
        do='kubectl cordon "$(hostname)"',
        is_not="busy GPUs: an occupied GPU does not lower allocatable",
    ),
    KnownFault(
        "NodeShowsFewer",
        Link.NODE,
        "The API server shows fewer GPUs than the kubelet lists",
        "kubernetes/kubernetes #114422, #60176, #62773",
        "the Node's allocatable, newer than this kubelet, is smaller",
        judge=when(Reason.NODE_SHOWS_FEWER),
        remedy="the kubelet cannot write its status: its journal says why",
        do="journalctl -u kubelet -n 50 | grep -i 'node status'",
    ),
    KnownFault(
        "RuntimeSilent",
        Link.RUNTIME,
        "The container runtime does not answer",
        "containerd/containerd #6080, #10437",
        "no answer over CRI within its deadline",
        judge=_runtime_silent,
        consistent="its socket is not there",
        decide="whether another runtime serves this kubelet",
        capture="gpu-gate config | grep Socket; ls /run/*/*.sock",
        remedy="look at its unit; running containers go on without it",
        do="systemctl status containerd; crictl ps",
    ),
)
