"""The errors of gpu-gate. Each carries a sentence with a next step.

GateError
├── ActionFailed      an act did not take        → a wake with back-off (app/daemon)
└── BundleError     an evidence bundle          → exit code (app/cli)
"""

from __future__ import annotations


class GateError(Exception):
    """Something gpu-gate could not do."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.sentence = sentence


class ActionFailed(GateError):
    """An act did not take."""


class BundleError(GateError):
    """An evidence bundle that cannot be read or written."""
