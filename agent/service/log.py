"""The log: constant sentences with fields, natively to journald, as text on a terminal."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

from .chain import printable

# The lines operators search for: journalctl MESSAGE_ID=…
GATE_OPENED = "6d1c1a7b0f9a4a0c8e1f0c2ab6d1e501"
KUBELET_RELEASED = "6d1c1a7b0f9a4a0c8e1f0c2ab6d1e502"
GATE_CLOSED = "6d1c1a7b0f9a4a0c8e1f0c2ab6d1e503"
GATE_HELD = "6d1c1a7b0f9a4a0c8e1f0c2ab6d1e504"
PROBE_HUNG = "6d1c1a7b0f9a4a0c8e1f0c2ab6d1e505"
ACCESS_LOST = "6d1c1a7b0f9a4a0c8e1f0c2ab6d1e506"
ACCESS_BACK = "6d1c1a7b0f9a4a0c8e1f0c2ab6d1e507"
ALLOW_SURPRISE = "6d1c1a7b0f9a4a0c8e1f0c2ab6d1e508"

_LEVELS = {
    "emerg": 50,
    "alert": 50,
    "crit": 50,
    "err": 40,
    "warning": 30,
    "notice": 20,
    "info": 20,
    "debug": 10,
}


def facts(message_id: str = "", **values: Any) -> dict[str, Any]:
    """The `extra` of a log call: journald fields GPU_GATE_PHASE=, UNIT=, …"""
    named = {("GPU_GATE_" + k.upper()): str(v) for k, v in values.items() if v != ""}
    if message_id:
        named["MESSAGE_ID"] = message_id
    return {"gpu_gate_fields": named}


class Plain(logging.Formatter):
    """One line per record. A name from outside (pod, log, bundle) cannot add a second line or a
    terminal escape sequence. A traceback keeps its lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record))


def set_up(verbose: bool = False, identifier: str = "gpu-gate") -> None:
    """Log to journald where systemd connected us to it, else to stderr. SYSTEMD_LOG_LEVEL is
    honoured."""
    root = logging.getLogger()
    level = _LEVELS.get(os.environ.get("SYSTEMD_LOG_LEVEL", "").lower(), 20)
    root.setLevel(10 if verbose else level)
    handler: logging.Handler
    if os.environ.get("JOURNAL_STREAM") and not sys.stderr.isatty():
        from ..transport.journald import JournalHandler

        handler = JournalHandler(identifier=identifier)
        handler.setFormatter(Plain("%(message)s"))
    else:
        handler = logging.StreamHandler()
        handler.setFormatter(Plain("%(levelname)s %(message)s"))
    root.handlers[:] = [handler]
