"""systemd for one verb: connected before the first request, and tried once without a bus."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent.service.connection import systemd
from agent.transport.systemd import BusSignal

from .test_bus import World


def test_a_verb_gets_answers_over_the_bus(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with World(tmp_path) as world:
            await world.heard(BusSignal.CONNECTED)
            monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", world.daemon.address)
            async with systemd() as bus:
                assert bus.problem is None
                assert (await bus.manager()).version == (await world.bus.manager()).version

    run(main())


def test_a_verb_does_not_wait_for_a_missing_bus(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path={tmp_path}/bus")
        async with systemd() as bus:
            assert "no connection to D-Bus" in (bus.problem or "")

    run(main())
