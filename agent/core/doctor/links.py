"""The chain as a doctor tells it: what a look found, what was asked besides, and what nobody
asked."""

from __future__ import annotations

from ...model.condition import Condition, Link
from ...model.diagnostics import CudaReport, DiagnosticData
from ...model.finding import Diagnosis, Finding, Heals, Scope, Verdict
from ...model.reading import Refusal, Seen, Why
from ...model.reason import Reason
from ...model.snapshot import Snapshot
from ...model.suspect import Strength, Suspect
from ..access.faults import KEPT_AWAY
from ..gpu.faults import SYSTEM_NOT_READY
from .broken import explains

ELSEWHERE = {
    11: "gpu-gate-node.service does not run here; kubectl describe node shows it",
    13: "kube_node_status_allocatable is Prometheus's to say",
    14: "Alertmanager's to say, and recovered apart from link 13",
}
NEVER_RAN = (Reason.NO_PLUGIN, Reason.PLUGIN_POD_WAITS, Reason.PLUGIN_NEVER_STARTED)
NOBODY = {
    6: "nothing of the runtime's configuration was read",
    8: "no container and no unit looks like the plugin",
    12: "the runtime's containers were not seen",
}


def links(
    snapshot: Snapshot, diagnosis: Diagnosis, diagnostics: DiagnosticData
) -> tuple[Finding, ...]:
    """Every link in order, with a reason for those that were not checked."""
    found = [
        *diagnosis.findings,
        *_cuda(diagnostics, len(diagnosis.expected)),
        *_sockets(diagnostics),
    ]
    if diagnosis.scope is Scope.NONE:  # nothing to gate: there is no chain
        return tuple(found)
    if isinstance(snapshot.workloads.processes, Seen) and not diagnosis.gpu_containers:
        found.append(_no_holder(snapshot, diagnosis))
    asked = {f.link for f in found}
    found.sort(key=lambda f: f.link)
    found += [
        Finding(
            link,
            Condition.NOT_ASKED,
            Verdict.UNKNOWN,
            f"not asked: {_why_not(link, snapshot, found)}",
            blocks=False,
        )
        for link in Link
        if link not in asked
    ]
    return tuple(sorted(found, key=lambda f: f.link))


def _no_holder(snapshot: Snapshot, diagnosis: Diagnosis) -> Finding:
    """A kubelet that did not report its allocations may have allocated GPUs."""
    if isinstance(snapshot.workloads.allocations, Refusal) and diagnosis.registered is not None:
        return Finding(
            Link.WORKLOADS,
            Condition.WORKLOAD_ACCESS,
            Verdict.UNKNOWN,
            f"the kubelet did not say whom it allocated GPUs to ({snapshot.workloads.allocations})",
            Reason.ACCESS_UNKNOWN,
            next_step="gpu-gate access",
            blocks=False,
        )
    return Finding(
        Link.WORKLOADS,
        Condition.WORKLOAD_ACCESS,
        Verdict.HOLDS,
        "no running container holds a GPU",
        blocks=False,
    )


def _why_not(link: Link, snapshot: Snapshot, found: list[Finding]) -> str:
    """Why a link has no word at all: it is others' to say, an answer is lacking, or one before it
    is broken."""
    if link in ELSEWHERE:
        return ELSEWHERE[link]
    lacks = {
        3: snapshot.hardware.nodes,
        8: snapshot.plugin.runtime,
        9: snapshot.kubelet.plugin_sockets,
        10: snapshot.kubelet.allocatable,
        12: snapshot.workloads.processes,
    }.get(link)
    earlier = next((f for f in found if f.link < link and explains(f)), None)
    if earlier:
        return f"link {earlier.link} comes before it ({earlier.reason})"
    if isinstance(lacks, Refusal) and lacks.why is not Why.NOT_ASKED:
        return f"there was no answer ({lacks})"
    return NOBODY.get(link, "this snapshot shows none")


def _cuda(diagnostics: DiagnosticData, expected: int) -> tuple[Finding, ...]:
    cuda = diagnostics.cuda
    if isinstance(cuda, Refusal):
        if not cuda.is_telling:
            return ()
        return (
            Finding(
                Link.NVML,
                Condition.CUDA_ANSWERS,
                Verdict.FAILS if cuda.why.value == "timed-out" else Verdict.UNKNOWN,
                f"CUDA gave no answer ({cuda})",
                Reason.CUDA_SILENT,
                blocks=cuda.why.value == "timed-out",
                next_step="dmesg | grep -E 'NVRM|Xid'",
            ),
        )
    return (_counted(cuda.value, expected),)


def _counted(cuda: CudaReport, expected: int) -> Finding:
    if cuda.code == SYSTEM_NOT_READY:
        return Finding(
            Link.FABRIC,
            Condition.CUDA_ANSWERS,
            Verdict.FAILS,
            f"{cuda.call} says 802 (system not ready): the fabric",
            Reason.CUDA_NOT_READY,
            next_step="systemctl status nvidia-fabricmanager; nvidia-smi -q | grep -A2 Fabric",
        )
    if cuda.code:
        return Finding(
            Link.NVML,
            Condition.CUDA_ANSWERS,
            Verdict.FAILS,
            f"{cuda.call} says {cuda.code} ({cuda.library})",
            Reason.CUDA_FAILED,
            heals=Heals.CONFIGURATION,
            next_step="gpu-gate probe; dmesg | grep NVRM",
        )
    if cuda.count < expected:
        return Finding(
            Link.NVML,
            Condition.CUDA_ANSWERS,
            Verdict.FAILS,
            f"CUDA counts {cuda.count} of {expected} GPUs",
            Reason.CUDA_FEWER,
            blocks=False,
            next_step="nvidia-smi -q | grep -E 'Compute Mode|MIG Mode'",
        )
    return Finding(
        Link.NVML,
        Condition.CUDA_ANSWERS,
        Verdict.HOLDS,
        f"CUDA counts {cuda.count} devices",
        blocks=False,
    )


def _sockets(diagnostics: DiagnosticData) -> tuple[Finding, ...]:
    """By connecting: a file of that name proves nothing."""
    dead = [s.name for s in diagnostics.sockets if isinstance(s.pid, Refusal) and s.pid.is_telling]
    heard = [
        f"{s.name} (pid {s.pid.value})" for s in diagnostics.sockets if isinstance(s.pid, Seen)
    ]
    if dead:
        return (
            Finding(
                Link.SOCKET,
                Condition.SOCKETS_ANSWER,
                Verdict.FAILS,
                f"nothing listens on {', '.join(dead)}"
                + (f"; {', '.join(heard)} answers" if heard else ""),
                Reason.SOCKET_DEAD,
                tuple(dead),
                blocks=False,
            ),
        )
    if heard:
        return (
            Finding(
                Link.SOCKET,
                Condition.SOCKETS_ANSWER,
                Verdict.HOLDS,
                f"connected: {', '.join(heard)}",
                blocks=False,
            ),
        )
    return ()


def causes(broken: Finding, found: tuple[Suspect, ...]) -> tuple[Suspect, ...]:
    """The faults that explain the first broken link, the likeliest first: whose mark is this very
    finding, whatever their link; its own link's; for a plugin that may not open its devices also
    that of link 12, which shows why; for a registration of which nothing is known, those of earlier
    links that were confirmed."""
    own = [s for s in found if s.is_cause and s.link is broken.link]
    if broken.reason in NEVER_RAN:  # the runtime would not even make it
        own = [s for s in found if _is_confirmed(s) and s.id in KEPT_AWAY] + own
    own = [s for s in found if _marks(s, broken) and s not in own] + own
    related = [s for s in found if s.is_cause and _is_related(s, broken, is_explained=bool(own))]
    return tuple(sorted(own + related, key=lambda s: not _is_confirmed(s)))


def _is_confirmed(suspect: Suspect) -> bool:
    return suspect.strength is Strength.CONFIRMED


def _marks(suspect: Suspect, broken: Finding) -> bool:
    return suspect.is_cause and suspect.seen == broken.because


def _is_related(suspect: Suspect, broken: Finding, is_explained: bool) -> bool:
    if broken.link is Link.PLUGIN:
        return suspect.link is Link.WORKLOADS
    if broken.link is not Link.REGISTRATION or is_explained:
        return False
    # Nothing is known of the plugin: what comes before it was seen to fail.
    return suspect.link < Link.REGISTRATION and _is_confirmed(suspect)
