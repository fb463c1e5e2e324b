"""What the agent did: what fails again and again in the same way is news once."""

from __future__ import annotations

from agent.engine.history import ActionHistory
from agent.model.actions import LinkDevChar, Release

RELEASE, LINK = Release("stable", "Open"), LinkDevChar((("195:0", "../nvidia0"),))
FULL = "could not write /run/gpu-gate/released (No space left on device)"


def test_the_same_failure_is_reported_once() -> None:
    history = ActionHistory()
    assert history.note(RELEASE, 1.0, FULL)
    assert history.note(LINK, 1.1, "no room")
    assert not history.note(RELEASE, 3.0, FULL)
    assert not history.note(LINK, 3.1, "no room")
    assert history.note(RELEASE, 5.0, "another reason")
    assert history.note(RELEASE, 7.0), "and then it took"
    assert history.note(RELEASE, 9.0, FULL), "what fails anew is news again"
    assert history.counts["Release", "failed"] == 4
