"""Pauses: by a mark, by a unit that works on the GPUs, and how each ends."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from typing import Any

import pytest

from agent.core.common import parse
from agent.core.gate.states import Phase
from agent.core.gate.transitions import step
from agent.host.refusal import refusal
from agent.model.actions import StartProbe
from agent.model.finding import Pause, Verdict
from agent.model.mark import Mark
from agent.model.reading import Refusal, Why
from agent.model.settings import Settings

from .snapshots import DEFAULTS, FAILED, MISSING, NOW, diagnosed, finding, probed, seen, unit
from .test_gate import after_probes, boot, gate, kinds

MIG = "nvidia-mig-manager.service"
HELD_BACK = Refusal(Why.NOT_RECORDED, "file /run/gpu-gate/paused")
# what is changed, settings, the pause
CASES: list[tuple[dict[str, Any], dict[str, Any], Pause | None]] = [
    ({}, {}, None),
    ({"paused": HELD_BACK}, {}, None),  # an older bundle
    ({"paused": seen(Mark("new GPU", 5.0))}, {}, Pause("paused: new GPU", None, True)),
    (
        {"paused": seen(Mark("new GPU", 5.0, NOW + 60))},
        {},
        Pause("paused: new GPU", NOW + 60, True),
    ),
    ({"paused": seen(Mark("new GPU", 5.0, NOW))}, {}, None),  # it has ended
    (
        {"paused": seen(Mark("from a boot that is over", 5.0, 1e15))},
        {},
        Pause("paused: from a boot that is over", 1e15, True),
    ),
    (
        {"units": seen((unit(MIG, "activating"),))},
        {},
        Pause(f"paused while {MIG} is starting", None, False),
    ),
    ({"units": seen((unit(MIG, "inactive"),))}, {}, None),
    ({"units": seen((unit(MIG, "failed"),))}, {}, None),
    ({"units": seen((unit("reset-gpus.service", "activating"),))}, {}, None),
    (
        {"units": seen((unit("reset-gpus.service", "activating"),))},
        {"pause_while": ("reset-gpus.service",)},
        Pause("paused while reset-gpus.service is starting", None, False),
    ),
    ({"units": FAILED}, {}, None),
]


@pytest.mark.parametrize(("changes", "settings", "pause"), CASES)
def test_marks_that_pause(
    changes: dict[str, Any], settings: dict[str, Any], pause: Pause | None
) -> None:
    diagnosis = diagnosed(Settings(**settings), **changes)
    assert diagnosis.paused == pause
    shown = [f for f in diagnosis.findings if f.condition == "NotPaused"]
    assert bool(shown) is bool(pause)
    assert all(f.verdict is Verdict.FAILS and not f.blocks for f in shown)


def test_an_unreadable_mark_pauses_and_is_reported() -> None:
    pause = diagnosed(paused=FAILED).paused
    assert pause is not None and pause.by_person
    assert "could not be read (failed: Input/output error)" in pause.why


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_lack_of_descriptors_is_not_a_pause(number: int) -> None:
    """A pause by an operator would release a waiting kubelet."""
    assert diagnosed(paused=refusal(OSError(number, os.strerror(number)))).paused is None


@pytest.mark.parametrize(
    ("data", "mark"),
    [
        (b"", Mark("set by hand", 0.0)),
        (b"  \n", Mark("set by hand", 0.0)),
        (b'{"reason": "x", "at": 5, "until": 65.5}', Mark("x", 5.0, 65.5)),
        (b'{"reason": "x", "at": 5, "until": "soon"}', Mark("x", 5.0)),
        (b'{"reason": "x", "at": 5, "until": NaN}', Mark("x", 5.0)),
        (
            b'{"reason": "x", "at": 5, "unt',
            Mark('{"reason": "x", "at": 5, "unt', 0.0),
        ),  # torn: it does not end
        (b"[1]", Mark("[1]", 0.0)),
    ],
)
def test_the_forms_of_a_mark(data: bytes, mark: Mark) -> None:
    assert parse.mark(data) == mark


def test_the_remaining_time_of_a_pause_is_shown() -> None:
    found = finding(diagnosed(paused=seen(Mark("new GPU", 5.0, NOW + 90))), "NotPaused")
    assert found.because == "paused: new GPU for 90 s more: no probe, no action"
    assert found.next_step == "gpu-gate resume"


def test_a_pause_wakes_at_its_end_and_then_probes() -> None:
    nothing = {"probe": probed(gpus=())}
    nothing["paused"] = seen(Mark("x", 5.0, NOW + 7))
    paused = step(gate(), boot(**nothing), NOW, DEFAULTS)
    released = boot(released=seen(Mark("paused: x", 5.0)), **nothing)
    assert step(paused.gate, released, NOW, DEFAULTS).wake_at == NOW + 7
    assert StartProbe not in kinds(paused.actions)
    assert (paused.gate.paused, paused.gate.paused_until) == ("paused: x", NOW + 7)
    assert paused.gate.released == "paused: x"
    assert paused.gate.ready_why.endswith("; paused: x")
    later = replace(boot(**nothing), paused=None)
    ended = step(paused.gate, later, NOW + 7, DEFAULTS)
    assert StartProbe in kinds(ended.actions)
    assert (ended.gate.paused, ended.gate.paused_until) == ("", None)
    assert ended.gate.released == "paused: x", "once released, released"


def test_a_probe_follows_a_pause_at_once() -> None:
    before = replace(after_probes(3), paused="paused: x")
    assert before.probe_after > NOW
    decided = step(before, boot(probe=probed(number=3)), NOW, DEFAULTS)
    assert (decided.gate.phase, kinds(decided.actions) & {StartProbe}) == (Phase.OPEN, {StartProbe})


def test_work_on_the_gpus_does_not_release_the_kubelet() -> None:
    at_work = seen((unit("kubelet.service", "inactive", since=None), unit(MIG, "activating")))
    decided = step(gate(), boot(units=at_work, probe=MISSING), NOW, DEFAULTS)
    assert (decided.gate.released, kinds(decided.actions) & {StartProbe}) == ("", set())
    over = step(decided.gate, boot(units=at_work, probe=MISSING), NOW + 300, DEFAULTS)
    assert "the deadline is over" in over.gate.released
