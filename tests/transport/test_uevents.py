"""Uevents by netlink: the real kernel is the peer."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from agent.transport import uevents as module
from agent.transport.uevents import Uevents

from .conftest import until

UEVENT = next(
    iter(sorted(Path("/sys/bus/pci/drivers").glob("*/uevent"))), Path("/sys/module/kernel/uevent")
)


def _uevents(heard: list[dict[str, str]], overflows: list[bool]) -> Uevents:
    uevents = Uevents(heard.append, lambda: overflows.append(True))
    uevents.start()
    if uevents.problem:
        pytest.skip(f"no uevents here: {uevents.problem}")
    if not os.access(UEVENT, os.W_OK):
        pytest.skip(f"{UEVENT} cannot be written")
    return uevents


def test_only_uevents_of_a_driver_are_received(run):
    async def main():
        heard: list[dict[str, str]] = []
        uevents = _uevents(heard, [])
        for other in list(Path("/sys/class/mem").glob("null/uevent")):
            other.write_text("change")
        UEVENT.write_text("change")
        # A node that boots beside us has the kernel say "add" of everything.
        event = await until(lambda: next((e for e in heard if e["ACTION"] == "change"), None))
        assert event["SUBSYSTEM"] in ("drivers", "module")
        assert {e["SUBSYSTEM"] for e in heard} <= {"module", "drivers", "pci"}
        uevents.close()
        assert uevents.problem

    run(main())


def test_an_overrun_is_reported_and_reading_continues_without_a_busy_loop(run):
    async def main():
        heard: list[dict[str, str]] = []
        overflows: list[bool] = []
        uevents = _uevents(heard, overflows)
        with socket.socket(fileno=os.dup(uevents._monitor.fileno())) as twin:
            twin.setsockopt(socket.SOL_SOCKET, 33, 2048)  # SO_RCVBUFFORCE: room for one or two
            for _ in range(200):
                UEVENT.write_text("change")
            await until(lambda: overflows)
            twin.setsockopt(
                socket.SOL_SOCKET, 33, 1 << 20
            )  # and for whatever a node that boots beside us makes
        told = len(overflows)
        for _ in range(20):  # a busy loop would tell of it each time round
            await asyncio.sleep(0)
        heard.clear()
        UEVENT.write_text("change")
        await until(lambda: heard)
        assert len(overflows) <= told + 1
        assert uevents.problem is None
        uevents.close()

    run(main())


def test_missing_netlink_is_reported(run, monkeypatch):
    def refuse(*_args, **_kwargs):
        raise OSError("Could not create udev monitor")

    async def main():
        monkeypatch.setattr(module.pyudev.Monitor, "from_netlink", refuse)
        uevents = Uevents(lambda _: None, lambda: None)
        uevents.start()
        assert "Could not create udev monitor" in uevents.problem
        uevents.close()

    run(main())
