"""Links 13 and 14: what the metric chain says of this node, and whether its alert agrees. Asked
only by `gpu-gate doctor --cluster`; the recovery of the GPUs and that of the alert are told
apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fnmatch import fnmatchcase

from ...model.cluster import ClusterReport, Sample
from ...model.condition import Condition, Link
from ...model.finding import Finding, Verdict
from ...model.reading import Reading, Refusal, Seen
from ...model.reason import Reason
from ...model.settings import Settings
from ...model.snapshot import Snapshot
from ..plugin.kinds import PREFERRED, matches


def findings(
    word: ClusterReport, snapshot: Snapshot, settings: Settings, registered: Finding | None
) -> tuple[Finding, ...]:
    """`registered`: link 10 of the same look."""
    return _metric(word.samples, snapshot, settings), _alert(word, settings, registered)


def label_of(resource: str) -> str:
    """A resource's name as kube-state-metrics writes it into a label: nvidia.com/gpu becomes
    nvidia_com_gpu (kube-state-metrics, internal/store/utils.go, SanitizeLabelName)."""
    return "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in resource)


def _metric(samples: Reading[Sequence[Sample]], snapshot: Snapshot, settings: Settings) -> Finding:
    def unknown(because: str, reason: Reason, next_step: str = "") -> Finding:
        return _unknown(Link.METRICS, Condition.METRIC_AGREES, because, reason, next_step)

    allocatable = snapshot.kubelet.allocatable
    if isinstance(samples, Refusal):
        if not samples.is_telling:
            return unknown(f"not asked: {samples.detail}", Reason.METRIC_NOT_ASKED)
        return unknown(
            f"the metric store gave no answer ({samples})",
            Reason.METRIC_STORE_SILENT,
            "curl the address in [Cluster] Prometheus=",
        )
    if not isinstance(allocatable, Seen):
        return unknown(
            "the kubelet was not heard, so there is nothing to compare with",
            Reason.KUBELET_NOT_HEARD,
        )
    guarded = settings.resources or PREFERRED
    rows = [d for d in allocatable.value if matches(d.resource, guarded)]
    listed = {label_of(d.resource): len(d.ids) for d in rows}
    ours = [s for s in samples.value if s.resource in listed or s.resource == "nvidia_com_gpu"]
    if not ours:
        return unknown(
            "no series kube_node_status_allocatable of this node's GPUs: "
            "kube-state-metrics is not scraped, or the node has another name there ([Node] Name=)",
            Reason.METRIC_MISSING,
        )
    return _compared(ours, listed, snapshot.clock.realtime)


def _compared(samples: Sequence[Sample], listed: dict[str, int], realtime: float) -> Finding:
    age_s = max(realtime - s.at for s in samples)
    said = {s.resource: int(s.value) for s in samples}
    seen = f"{_counted(said)} allocatable, scraped {max(0.0, age_s):.0f} s ago"
    if +Counter(said) != +Counter(listed):
        return Finding(
            Link.METRICS,
            Condition.METRIC_AGREES,
            Verdict.FAILS,
            f"the metric says {seen}; the kubelet lists {_counted(listed)}",
            Reason.METRIC_DIFFERS,
            blocks=False,
            age_s=age_s,
            next_step="kubectl get node -o yaml: where .status.allocatable is "
            "right, it is kube-state-metrics or its scrape",
        )
    because = f"the metric says {seen}"
    return Finding(
        Link.METRICS, Condition.METRIC_AGREES, Verdict.HOLDS, because, blocks=False, age_s=age_s
    )


def _counted(by_resource: dict[str, int]) -> str:
    return ", ".join(f"{n} {r}" for r, n in sorted(by_resource.items())) or "none"


def _alert(word: ClusterReport, settings: Settings, registered: Finding | None) -> Finding:
    alerts = word.alerts
    if isinstance(alerts, Refusal):
        if not alerts.is_telling:
            return _unknown(
                Link.ALERT,
                Condition.ALERT_AGREES,
                f"not asked: {alerts.detail}",
                Reason.ALERT_NOT_ASKED,
            )
        return _unknown(
            Link.ALERT,
            Condition.ALERT_AGREES,
            f"the alert manager gave no answer ({alerts})",
            Reason.ALERT_MANAGER_SILENT,
            "curl the address in [Cluster] Alertmanager= or N9e=",
        )
    ours = [a for a in alerts.value if any(fnmatchcase(a.name, p) for p in settings.alert_names)]
    names = ", ".join(f"{a.name} since {a.since}" for a in ours[:5])
    if registered is None or registered.verdict is Verdict.UNKNOWN:
        return _unknown(
            Link.ALERT,
            Condition.ALERT_AGREES,
            f"firing: {names or 'none'}; whether that is right is not known: "
            "the kubelet was not heard",
            Reason.KUBELET_NOT_HEARD,
        )
    if registered.verdict is Verdict.HOLDS and ours:
        return Finding(
            Link.ALERT,
            Condition.ALERT_AGREES,
            Verdict.FAILS,
            f"the GPUs are back, and the alert still fires: {names}",
            Reason.ALERT_NOT_RESOLVED,
            blocks=False,
            next_step="wait for its next evaluation; then look whether the rule's metric is "
            "link 13's",
        )
    if registered.verdict is Verdict.FAILS and not ours:
        return Finding(
            Link.ALERT,
            Condition.ALERT_AGREES,
            Verdict.FAILS,
            "the GPUs are not listed, and no alert of theirs fires",
            Reason.ALERT_SILENT,
            blocks=False,
            next_step="is there a rule, and is it evaluated? /usr/share/doc/gpu-gate/alerts.md",
        )
    return Finding(
        Link.ALERT,
        Condition.ALERT_AGREES,
        Verdict.HOLDS,
        f"firing, as it should: {names}" if ours else "no alert of this node's GPUs fires",
        blocks=False,
    )


def _unknown(
    link: Link, condition: Condition, because: str, reason: Reason, next_step: str = ""
) -> Finding:
    return Finding(
        link, condition, Verdict.UNKNOWN, because, reason, blocks=False, next_step=next_step
    )
