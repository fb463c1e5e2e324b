"""Link 11, as gpu-gate-node.service last read it: compared with the kubelet's list, its start and
this boot."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from agent.core.kubelet.node_object import report
from agent.model.finding import Finding, Verdict
from agent.model.reading import Refusal
from agent.model.snapshot import NodeObject

from .snapshots import BOOT_ID, DENIED, FAILED, MISSING, NOW, OFFSET, diagnosed, finding, seen

HOLDS, FAILS, UNKNOWN = Verdict.HOLDS, Verdict.FAILS, Verdict.UNKNOWN
TWO = {"nvidia.com/gpu": "2", "cpu": "64"}
NODE = NodeObject(
    seen_at=NOW - 40,
    trouble="",
    name="n",
    boot_id=BOOT_ID,
    kubelet_heartbeat_at=OFFSET + 51.0,
    capacity=TWO,
    allocatable=TWO,
)
"""The kubelet started at 50.0."""


def link_11(node: Any, **changes: Any) -> Finding:
    return finding(diagnosed(node_object=node, **changes), "NodeResources")


@pytest.mark.parametrize(
    ("changes", "verdict", "reason"),
    [
        ({}, HOLDS, ""),
        ({"allocatable": {"nvidia.com/gpu": "1"}}, FAILS, "NodeShowsFewer"),
        ({"allocatable": {"nvidia.com/gpu": "0"}}, FAILS, "NodeShowsFewer"),
        ({"allocatable": {}}, FAILS, "NodeShowsFewer"),
        ({"allocatable": {"nvidia.com/gpu": "junk", "amd.com/gpu": "2"}}, FAILS, "NodeShowsFewer"),
        (
            {"allocatable": {"nvidia.com/gpu": "1", "nvidia.com/mig-1g.5gb": "7"}},
            FAILS,
            "NodeShowsFewer",
        ),
        ({"allocatable": {"nvidia.com/gpu": "2", "nvidia.com/mig-1g.5gb": "7"}}, HOLDS, ""),
        ({"kubelet_heartbeat_at": OFFSET + 50.0}, UNKNOWN, "NodeFromEarlierKubelet"),
        ({"kubelet_heartbeat_at": 0.0}, UNKNOWN, "NodeFromEarlierKubelet"),
        ({"boot_id": "another"}, UNKNOWN, "NodeFromEarlierBoot"),
        ({"name": "", "trouble": "the API server said 404"}, UNKNOWN, "ApiServerSilent"),
        ({"seen_at": NOW - 181}, UNKNOWN, "ApiServerSilent"),
        ({"trouble": "writing is refused"}, HOLDS, ""),
    ],
)
def test_link_11(changes: dict[str, Any], verdict: Verdict, reason: str) -> None:
    found = link_11(seen(replace(NODE, **changes)))
    assert (found.link, found.verdict, found.reason) == (11, verdict, reason)


def test_its_age_counts_from_the_api_servers_last_answer() -> None:
    assert link_11(seen(NODE)).age_s == 40.0


@pytest.mark.parametrize("refusal", [DENIED, MISSING])
def test_no_node_finding_without_a_barrier(refusal: Refusal) -> None:
    conditions = {f.condition for f in diagnosed(node_object=refusal).findings}
    assert "NodeResources" not in conditions


def test_an_unreadable_report_and_a_silent_kubelet_are_unknown() -> None:
    assert link_11(FAILED).reason == "NodeReportUnreadable"
    assert link_11(seen(NODE), allocatable=FAILED).reason == "KubeletNotHeard"


def test_the_doctor_reports_it_and_readiness_does_not_depend_on_it() -> None:
    diagnosis = diagnosed(node_object=seen(replace(NODE, allocatable={})))
    broken = diagnosis.first_broken()
    assert broken is not None and broken.link == 11
    assert diagnosis.first_broken(own=True) is None


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"version": 2}', b"\xff", b'{"version": "1"}']
)
def test_other_content_is_no_report(data: bytes) -> None:
    assert report(data) is None


def test_a_malformed_report_shows_nothing() -> None:
    data = {
        "version": 1,
        "seen_at": "x",
        "capacity": [],
        "allocatable": 7,
        "kubelet_heartbeat_at": 1e400,
        "node": 0,
    }
    assert report(json.dumps(data).encode()) == NodeObject(seen_at=0.0, trouble="")
