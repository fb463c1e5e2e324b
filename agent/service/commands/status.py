"""`gpu-gate status`: the agent's last snapshot, as text, as JSON or for node-problem-detector."""

from __future__ import annotations

import json
import sys

from ...model.settings import Settings
from .. import ask
from ..chain import chain, printable, verdict_line, wants_colour

NPD_CHARS = 80
"""max_output_length in node-problem-detector's own examples: it cuts what is longer."""


def run(settings: Settings, as_json: bool) -> int:
    """Print the state. Returns 0 if GPU work may start, 1 if not, 3 if no agent answers."""
    try:
        status = ask.status(listen=settings.listen)
    except ask.NoAgent as exc:
        print(f"gpu-gate: {exc}", file=sys.stderr)
        return 3
    gate = status["gate"]
    if as_json:
        print(json.dumps(status, indent=1))
    else:
        left = gate["deadline_in_s"]
        released = gate["released_why"] or (
            f"no, {left:.0f} s to the deadline" if left is not None else "no"
        )
        print(verdict_line(gate))
        print(printable(f"kubelet released: {released}") + "\n")
        print("\n".join(chain(status["findings"], wants_colour(), status.get("first_broken"))))
        for sentence in status["trouble"] + status["config_problems"]:
            print(printable(f"note: {sentence}"))
    return 0 if gate["ready"] else 1


def for_problem_detector(settings: Settings) -> int:
    """Print one line for a custom plugin of node-problem-detector.

    Returns 0 if GPU work may start, 1 if there is a problem, 2 if that is unknown.
    """
    from ...barrier.readiness import from_status, no_answer

    try:
        readiness = from_status(ask.status(listen=settings.listen))
    except ask.NoAgent as exc:
        readiness = no_answer(str(exc))
    print(readiness.line[:NPD_CHARS])
    return {True: 0, False: 1, None: 2}[readiness.ready]
