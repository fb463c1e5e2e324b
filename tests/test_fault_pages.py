"""docs/faults matches the rules."""

from __future__ import annotations

import re

from agent.core.doctor.suspects import FAULTS
from tests.tools.fault_pages import FOLDER, pages


def test_the_pages_match_the_rules() -> None:
    there = {path.name: path.read_text() for path in FOLDER.glob("*.md")}
    assert there == pages(), "python3 tests/tools/fault_pages.py"


def test_every_fault_has_a_remedy_and_a_source() -> None:
    ids = [fault.id for fault in FAULTS]
    assert len(set(ids)) == len(ids)
    for fault in FAULTS:
        assert re.fullmatch(r"[A-Z][A-Za-z0-9]+", fault.id)
        assert (
            1 <= fault.link <= 14
            and fault.title
            and fault.source
            and fault.confirmed
            and fault.remedy
        ), fault.id
        assert bool(fault.consistent) == bool(fault.decide) == bool(fault.capture), fault.id


def test_no_remedy_replaces_a_vendors_part_or_touches_the_checkpoint() -> None:
    for fault in FAULTS:
        done = f"{fault.do} {fault.capture}"
        assert "checkpoint" not in done and "helm" not in done and "image=" not in done, fault.id
        assert not re.search(
            r"\b(rm|mv|cp|tee|truncate)\b(?! \{plugin\})", done.replace("crictl rm", "")
        ), fault.id
        assert "systemctl restart kubelet" not in done and "devices.allow" not in done, fault.id
