"""Every reason word the program can say is documented."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

from agent.model.finding import Finding

ROOT = Path(__file__).resolve().parents[1]
TERMS = [
    row.split("|")[1:3]
    for row in (ROOT / "docs/terms.md").read_text().splitlines()
    if row.startswith("| ")
]
CONDITIONS = set(
    next(meaning for term, meaning in TERMS if term.strip() == "condition").split("`")[1::2]
)
KUBERNETES = {"True", "False", "Unknown", "NoSchedule"}


def words() -> set[str]:
    """CamelCase string constants of the gate and the rules, phases (all capitals) apart."""
    found = set()
    sources = [
        ROOT / "agent" / name
        for name in (
            "core/gate/transitions.py",
            "core/gate/states.py",
            "core/plugin/repair.py",
            "core/doctor/links.py",
            "barrier/readiness.py",
            "barrier/decide.py",
        )
    ]
    rules = [
        f"core/{name}.py"
        for name in (
            "access/findings",
            "cdi/findings",
            "doctor/cluster",
            "gate/pause",
            "gpu/device_nodes",
            "gpu/driver",
            "gpu/fabric",
            "gpu/health",
            "gpu/inventory",
            "gpu/kernel_events",
            "gpu/nvml",
            "gpu/pci",
            "gpu/unhealable",
            "kubelet/findings",
            "kubelet/node_findings",
            "plugin/findings",
            "plugin/launch_findings",
            "plugin/mig",
            "plugin/process",
            "plugin/running",
            "diagnose",
        )
    ]
    for path in [*sources, *(ROOT / "agent" / name for name in rules)]:
        for node in ast.walk(ast.parse(path.read_text())):
            value = node.value if isinstance(node, ast.Constant) else None
            if (
                isinstance(value, str)
                and value.isalpha()
                and value[:1].isupper()
                and not value.isupper()
            ):
                found.add(value)
    return found - CONDITIONS - KUBERNETES - {"Nvml"}


def test_every_reason_word_is_documented() -> None:
    page = (ROOT / "docs/reasons.md").read_text()
    assert {word for word in words() if f"`{word}`" not in page} == set()


def test_the_page_names_no_word_that_nobody_says() -> None:
    page = (ROOT / "docs/reasons.md").read_text()
    named = {
        part
        for part in page.split("`")
        if part.isalpha() and part[:1].isupper() and not part.isupper()
    }
    spoken = words() | {"NvmlUnknown", "NvmlGpuIsLost", "NvmlLibRmVersionMismatch"}
    assert named - spoken - CONDITIONS == set()


HEALS = {"NotLaunched", "ListNewerThanProbe"}
HINTS = {"NoPluginSocket", "CheckpointEmpty", "CheckpointUnreadable", "SocketDead"}
"""Of link 9, which proves nothing: the steps are link 8's and 10's."""


def test_what_waiting_does_not_mend_comes_with_a_next_step() -> None:
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
                lacking |= {word.value for word in words if isinstance(word, ast.Constant)} - {""}
    assert lacking == HEALS | HINTS | {"NoGpuForContainers"}


def test_every_term_and_every_condition_is_explained_once() -> None:
    terms = [term.strip() for term, _ in TERMS]
    assert sorted(terms) == sorted(set(terms))
    said = set()
    for path in (ROOT / "agent").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "Finding"
            ):
                said |= {n.value for n in node.args[1:2] if isinstance(n, ast.Constant)}
    assert (
        said | {"MetricAgrees", "AlertAgrees"} == CONDITIONS
    )  # those two are named by a call of their own
