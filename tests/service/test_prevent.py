"""gpu-gate access --prevent, as the package runs it: its duration, and when it reports a
failure."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from agent.model.settings import Settings
from agent.service.commands import prevent
from agent.transport.clock import boottime


@asynccontextmanager
async def connected() -> AsyncIterator[SimpleNamespace]:
    """systemd answers at once."""
    yield SimpleNamespace(problem=None)


def diagnosed(monkeypatch: pytest.MonkeyPatch, due: Callable[[], float | None]) -> None:
    """No cycle has a check or a grant to make, and each shows when the next one is due."""

    class Cycles:
        def __init__(self, *_: Any) -> None:
            self.last = SimpleNamespace(diagnosis=None)

        async def cycle(self, reasons: Any) -> None:
            self.last.diagnosis = SimpleNamespace(
                paused=None, guarded=(), access_check=None, allow=None, access_due=due()
            )

    for name, stand_in in (
        ("systemd", connected),
        ("DeviceAccess", lambda *_: None),
        ("DeviceAllowUpdater", lambda *_: None),
        ("LiveHost", lambda *_, **__: None),
        ("Engine", Cycles),
    ):
        monkeypatch.setattr(prevent, name, stand_in)


def test_a_cycle_that_is_due_within_a_second_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Some package before ours reloaded systemd four seconds ago: hooks may still be at work for
    one more."""
    settled = boottime() + 0.9
    diagnosed(monkeypatch, lambda: settled if boottime() < settled else None)
    assert prevent.run(Settings()) == 0
    assert capsys.readouterr().err == ""


def test_a_node_that_never_becomes_due_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(prevent, "WITHIN_S", 0.5)
    diagnosed(monkeypatch, lambda: boottime() + 0.9)
    assert prevent.run(Settings()) == 1
    assert "may lose their GPUs" in capsys.readouterr().err
