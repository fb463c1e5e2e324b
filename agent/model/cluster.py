"""What the metric store and the alert manager say of one node (links 13 and 14)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .reading import Reading


@dataclass(frozen=True, slots=True)
class Sample:
    """kube_node_status_allocatable of one resource."""

    resource: str
    "as kube-state-metrics labels it: nvidia_com_gpu"
    value: float
    at: float
    "realtime, seconds, when it was scraped"


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert of this node that fires now."""

    name: str
    since: str
    "as the alert manager writes it"


@dataclass(frozen=True, slots=True)
class ClusterReport:
    """Both, each with its own refusal."""

    samples: Reading[Sequence[Sample]]
    alerts: Reading[Sequence[Alert]]
