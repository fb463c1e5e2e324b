"""The log line of an action names its target."""

from __future__ import annotations

from typing import Any

import pytest

from agent.model.actions import (
    Learn,
    LinkDevChar,
    LoadModule,
    MakeNodes,
    NoteNvmlFailed,
    NoteOutcome,
    Rebuild,
    Release,
    RestartUnit,
    SendHup,
)


@pytest.mark.parametrize(
    ("action", "names"),
    [
        (Release("open", "Open"), "open"),
        (LinkDevChar((("195:0", "../nvidia0"), ("195:1", "../nvidia1"))), "195:0, 195:1"),
        (MakeNodes((255, 0), uvm=True), "minor 255, minor 0, nvidia-uvm"),
        (MakeNodes((), uvm=True), "nvidia-uvm"),
        (LoadModule(), "Load=auto"),
        (Learn(("0000:07:00.0",)), "0000:07:00.0"),
        (
            RestartUnit(1, "dp.service", "beef", "a cause", "it said so"),
            "restarting dp.service: it said so",
        ),
        (
            SendHup(1, "0123456789abcdef", 4711, "a cause", "it said so"),
            "container 0123456789ab, pid 4711: it said so",
        ),
        (
            Rebuild(1, "0123456789abcdef", "a cause", "it said so"),
            "removing container 0123456789ab: it said so",
        ),
        (NoteNvmlFailed(7), "after action 7"),
        (NoteOutcome(7, "not cured", "/e/7"), "action 7: not cured"),
    ],
)
def test_sentence(action: Any, names: str) -> None:
    """A long action is logged when it begins, and again when it ends."""
    assert names in action.sentence
