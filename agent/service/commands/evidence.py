"""`gpu-gate evidence [TO]`: save one snapshot, and report what could not be collected."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

from ...host.evidence import bundle
from ...host.tape import Tape
from ...model.reading import Why
from ...model.settings import Settings
from .. import ask
from ..chain import printable
from ..one_snapshot import one_snapshot

SHOWN = 6
"""At most so many questions are named for each reason; the manifest has them all."""


def evidence(settings: Settings, target: str, deep: bool = False) -> int:
    """Write the tape of one snapshot to a folder, or to an archive if `target` ends like one."""
    snapshot, recorder = asyncio.run(one_snapshot(settings, deep))
    path = Path(target) if target else Path(f"gpu-gate-evidence-{snapshot.clock.realtime:.0f}")
    bundle.write(recorder.tape, path)
    for sentence in (*_no_agent(settings), *not_asked(recorder.tape)):
        print(printable(sentence))
    print(f"{path}: {len(recorder.tape.answers)} answers; read it with: gpu-gate doctor {path}")
    return 0


def _no_agent(settings: Settings) -> list[str]:
    try:
        ask.status(listen=settings.listen)
    except ask.NoAgent:
        return [
            "no agent answers: NVML was asked by one probe of this command, if the driver is loaded"
        ]
    return []


def not_asked(tape: Tape) -> list[str]:
    """What the bundle lacks: one sentence per reason."""
    steps = {
        Why.NOT_PERMITTED: "not permitted; run it as root"
        if os.geteuid()
        else "not permitted, even as root",
        Why.TIMED_OUT: "no answer in time",
    }
    found: dict[str, list[str]] = {why.value: [] for why in steps}
    for key, answer in tape.answers.items():
        if (
            isinstance(answer, dict)
            and answer.get("is") == "Refusal"
            and answer.get("why") in found
        ):
            question, *arguments = json.loads(key)
            found[answer["why"]].append(f"{question} {arguments[0]}" if arguments else question)
    return [
        f"{steps[Why(why)]}: {', '.join(names[:SHOWN])}"
        + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
        for why, names in found.items()
        if names
    ]
