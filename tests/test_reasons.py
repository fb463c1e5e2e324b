"""Every reason of the program is documented."""

from __future__ import annotations

import ast
import dataclasses
import re
from pathlib import Path

from agent.model.condition import Condition, Link
from agent.model.finding import Finding
from agent.model.reason import Reason, ReleaseReason

ROOT = Path(__file__).resolve().parents[1]
TERMS = [
    row.split("|")[1:3]
    for row in (ROOT / "docs/terms.md").read_text().splitlines()
    if row.startswith("| ")
]
CONDITIONS = set(
    next(meaning for term, meaning in TERMS if term.strip() == "condition").split("`")[1::2]
)


PAGE = (ROOT / "docs/reasons.md").read_text()
NVML = {reason.value for reason in Reason if reason.name.startswith("NVML_")}
"""The page has one row for all of them."""
BARRIER = {
    "Ready",
    "NotReady",
    "NotVerified",
    "CycleOverdue",
    "AgentSilent",
    "KubeletNotReported",
    "BarrierStopped",
}
"""agent/barrier has no part in the agent's reasons: it may read another version's /status."""


def test_every_reason_is_documented() -> None:
    reasons = {r.value for r in (*Reason, *ReleaseReason)} - NVML - {""}
    assert {reason for reason in reasons | BARRIER if f"`{reason}`" not in PAGE} == set()


def test_the_page_names_no_reason_that_does_not_exist() -> None:
    named = {
        part
        for part in PAGE.split("`")
        if part.isalpha() and part[:1].isupper() and not part.isupper()
    }
    known = {r.value for r in (*Reason, *ReleaseReason)} | BARRIER | CONDITIONS
    assert named - known == set()


def test_every_reason_and_condition_is_used() -> None:
    sources = "".join(p.read_text() for p in (ROOT / "agent").rglob("*.py"))
    members = [f"{type(m).__name__}.{m.name}" for m in (*Reason, *ReleaseReason, *Condition, *Link)]
    assert [
        m
        for m in members
        if not m.startswith("Reason.NVML_") and not re.search(rf"\b{m}\b", sources)
    ] == []


HEALS = {"NotLaunched", "ListNewerThanProbe"}
HINTS = {"NoPluginSocket", "CheckpointEmpty", "CheckpointUnreadable", "SocketDead"}
"""Of link 9, which proves nothing: the steps are link 8's and 10's."""


def test_a_fault_that_waiting_does_not_heal_has_a_next_step() -> None:
    parts = [field.name for field in dataclasses.fields(Finding)]
    lacking = set()
    for path in (ROOT / "agent/core").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "Finding"
            ):
                said = dict(zip(parts, node.args, strict=False)) | {
                    word.arg: word.value for word in node.keywords
                }
                words = (
                    ast.walk(said.get("reason", ast.Constant("")))
                    if "next_step" not in said
                    else ()
                )
                lacking |= {
                    Reason[word.attr].value
                    for word in words
                    if isinstance(word, ast.Attribute) and ast.unparse(word.value) == "Reason"
                }
    assert lacking - {""} == HEALS | HINTS | {"NoGpuForContainers"}


def test_every_term_and_every_condition_is_explained_once() -> None:
    terms = [term.strip() for term, _ in TERMS]
    assert sorted(terms) == sorted(set(terms))
    assert {condition.value for condition in Condition} == CONDITIONS
