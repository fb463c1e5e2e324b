"""A bundle with missing parts is never fine if the complete one is not.

On disk: every byte counts (SHA256SUMS), so what is damaged is refused. On the tape: answers that
were never given, as an older gpu-gate or one without root leaves them, make findings unknown.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from agent.core.doctor.timeline import timeline
from agent.host.evidence import bundle
from agent.host.tape import Replay, Tape
from agent.model.errors import BundleError
from agent.model.finding import Diagnosis, Verdict
from agent.service.commands.timeline import text

from .load import tape
from .test_captures import CAPTURES, DEFAULTS, STATES, seen

ROUNDS = 12
NOT_GIVEN = [
    {"is": "Refusal", "why": why, "detail": "d"}
    for why in ("not-permitted", "not-recorded", "not-asked")
]


def is_fine(diagnosis: Diagnosis) -> bool:
    """What `gpu-gate doctor` ends with 0 for."""
    return not any(f.blocks and f.verdict is not Verdict.HOLDS for f in diagnosis.findings)


def harmed(whole: Tape, dice: random.Random) -> Tape:
    """Some answers are gone, or were refused; never the clock, without which it is no tape."""
    answers: dict[str, Any] = {}
    for key, answer in whole.answers.items():
        lost = json.loads(key)[0] != "clock" and dice.random() < 0.15
        is_reading = isinstance(answer, dict) and answer.get("is") in ("Seen", "Refusal")
        if not lost or (is_reading and dice.random() < 0.5):
            answers[key] = dice.choice(NOT_GIVEN) if lost else answer
    return Tape(answers)


@pytest.mark.parametrize("state", STATES)
def test_a_missing_answer_is_never_fine(state: str) -> None:
    dice, whole = random.Random(state), tape(CAPTURES / state, DEFAULTS)
    snapshot, meant = seen(Replay(whole))
    held = {(f.condition, f.link) for f in meant.findings if f.verdict is Verdict.HOLDS}
    assert text(snapshot, timeline(snapshot, DEFAULTS))
    for _ in range(ROUNDS):
        part = harmed(whole, dice)
        snapshot, found = seen(Replay(part))
        lost = sorted(set(whole.answers) - set(part.answers))
        assert is_fine(meant) or not is_fine(found), lost
        told = {
            (f.condition, f.link) for f in found.findings if f.verdict is Verdict.HOLDS and f.blocks
        }
        if ("NvmlComplete", 5) not in told:  # what the kubelet lists is held against NVML's word
            told.discard(("PluginRegistered", 10))
        if ("PluginRegistered", 10) not in told:  # and the plugin against what the kubelet lists
            told.discard(("PluginHealthy", 8))
        assert told <= held, lost
        assert timeline(snapshot, DEFAULTS).unknown


@pytest.mark.parametrize("state", STATES[::4])
def test_damage_on_disk_is_refused(state: str, tmp_path: Path) -> None:
    dice, folder = random.Random(state), tmp_path / "b"
    bundle.write(tape(CAPTURES / state, DEFAULTS), folder)
    meant = bundle.read(folder).answers
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    for number in range(40):
        victim = files[number % len(files)] if number < len(files) else dice.choice(files)
        data = victim.read_bytes()
        if dice.random() < 0.3 or not data:
            victim.unlink()
        else:
            at = dice.randrange(len(data))
            rest = (
                b""
                if dice.random() < 0.3
                else bytes([data[at] ^ 1 << dice.randrange(8)]) + data[at + 1 :]
            )
            victim.write_bytes(data[:at] + rest)
        try:
            assert bundle.read(folder).answers == meant, victim
        except BundleError as refused:
            assert refused.sentence
        victim.write_bytes(data)
