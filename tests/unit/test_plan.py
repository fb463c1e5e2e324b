"""What was done is told in a sentence that names it."""

from __future__ import annotations

import pytest

from agent.model.plan import Learn, LinkDevChar, LoadModule, MakeNodes, Release


@pytest.mark.parametrize(("action", "names"), [
    (Release("open", "Open"), "open"),
    (LinkDevChar((("195:0", "../nvidia0"), ("195:1", "../nvidia1"))), "195:0, 195:1"),
    (MakeNodes((255, 0), uvm=True), "minor 255, minor 0, nvidia-uvm"),
    (MakeNodes((), uvm=True), "nvidia-uvm"),
    (LoadModule(), "Load=auto"),
    (Learn(("0000:07:00.0",)), "0000:07:00.0"),
])
def test_sentence(action: Release | LinkDevChar | MakeNodes | LoadModule | Learn, names: str) -> None:
    assert names in action.sentence
