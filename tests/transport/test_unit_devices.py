"""A scope's device list over a private dbus-daemon: read, added to, and not there."""

from __future__ import annotations

import pytest

from agent.model.errors import BusError, ErrorKind
from agent.transport.systemd import BusSignal
from agent.transport.unit_devices import DevicePolicyRow, allow_devices, device_policy

from .test_bus import World

SCOPE = "cri-containerd-0a1b.scope"


def test_the_list_is_read_and_added_to(run, tmp_path):
    async def main():
        async with World(tmp_path) as world:
            world.systemd.devices[SCOPE] = ("strict", {"/dev/char/1:3": "rwm", "char-*": "m"})
            await world.heard(BusSignal.CONNECTED)
            await allow_devices(
                world.bus, SCOPE, [("/dev/char/195:0", "rw"), ("/dev/char/1:3", "rw")]
            )
            assert await device_policy(world.bus, SCOPE) == DevicePolicyRow(
                "strict", (("/dev/char/1:3", "rw"), ("char-*", "m"), ("/dev/char/195:0", "rw"))
            )
            assert world.systemd.asked.count("SetUnitProperties") == 1

    run(main())


def test_a_missing_scope_is_not_an_unrestricted_scope(run, tmp_path):
    async def main():
        async with World(tmp_path) as world:
            await world.heard(BusSignal.CONNECTED)
            for question in (
                device_policy(world.bus, SCOPE),
                allow_devices(world.bus, SCOPE, [("/dev/null", "r")]),
            ):
                with pytest.raises(BusError) as caught:
                    await question
                assert caught.value.kind is ErrorKind.MISSING

    run(main())
