"""What the metric store and the alert manager report about one node (links 13 and 14)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .reading import Reading


@dataclass(frozen=True, slots=True)
class Sample:
    """kube_node_status_allocatable of one resource."""

    resource: str
    """as kube-state-metrics labels it: nvidia_com_gpu"""
    value: float
    at: float
    """realtime, seconds, when it was scraped"""


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert of this node that fires now."""

    name: str
    since: str
    """a time, in the alert manager's own form"""


@dataclass(frozen=True, slots=True)
class ClusterReport:
    """Samples and alerts, each of which may be refused."""

    samples: Reading[Sequence[Sample]]
    alerts: Reading[Sequence[Alert]]
