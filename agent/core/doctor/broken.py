"""Which link is broken. Findings come in the chain's order."""

from __future__ import annotations

from ...model.condition import Condition
from ...model.finding import Finding, Verdict
from ...model.reason import Reason

EXPLAINS = (Condition.KUBELET_ACTIVE, Condition.PLUGIN_HEALTHY, Condition.WORKLOAD_ACCESS)
"""Conditions that close no gate by themselves, and are broken links all the same: what comes later
follows."""
NOT_BROKEN = (Reason.NO_KUBELET, Reason.PLUGIN_UNREAD)
"""A node without a kubelet, and a plugin of which nothing is known."""


def explains(finding: Finding) -> bool:
    """What comes later may follow from it."""
    return finding.verdict is Verdict.FAILS and (finding.blocks or finding.condition in EXPLAINS)


def first_broken(found: tuple[Finding, ...]) -> Finding | None:
    """The first link that is broken."""
    return next((f for f in found if explains(f) and f.reason not in NOT_BROKEN), None)


def first_unknown(found: tuple[Finding, ...]) -> Finding | None:
    """The first link that would have to hold, and could not be looked at; else the first that may
    explain one."""
    unknown = [
        f for f in found if f.verdict is Verdict.UNKNOWN and (f.blocks or f.condition in EXPLAINS)
    ]
    return min(unknown, key=lambda f: not f.blocks, default=None)
