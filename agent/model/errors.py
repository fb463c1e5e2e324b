"""The errors of gpu-gate. Each carries a word for machines and a sentence with a next step.

GateError
├── HandFailed      an act did not take        → a wake with back-off (app/daemon)
├── SettingsError   a value in the configuration → exit code, or the default, loudly (app/config)
└── BundleError     an evidence bundle          → exit code (app/cli)
"""

from __future__ import annotations


class GateError(Exception):
    """Something gpu-gate could not do."""

    word = "error"

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.sentence = sentence


class HandFailed(GateError):
    """An act did not take."""

    word = "hand-failed"


class SettingsError(GateError):
    """A setting that cannot be used: file, line, key, and what would be right."""

    word = "settings"


class BundleError(GateError):
    """An evidence bundle that cannot be read or written."""

    word = "bundle"
