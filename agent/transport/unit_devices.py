"""The device list of a unit: DevicePolicy= and DeviceAllow=, read and added to over D-Bus while the
unit runs.

What systemd does with it (v252 src/core/dbus-cgroup.c, src/core/cgroup.c; seen on 252 and 257):

* SetUnitProperties adds to the list. An entry of the same path is replaced, so "rw" over "rwm"
  takes "m" away.
* It makes the unit's device program anew from the list and puts it beside those that others put
  there. All of them
  must allow: whatever the list lacks is denied from that moment on, as after a daemon-reload.
* A unit that is not there is no error for a property: it answers with "auto" and an empty list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..model.errors import BusError, ErrorKind
from .dbus import STRUCT, Variant, all_of
from .systemd import SYSTEMD, SystemdBus, unit_path


@dataclass(frozen=True, slots=True)
class DevicePolicyRow:
    """What systemd itself would allow a unit."""

    policy: str
    "auto, closed or strict"
    allow: tuple[tuple[str, str], ...]
    '("/dev/char/195:0", "rwm"), ("char-136", "rwm"), ("char-*", "m")'


async def device_policy(bus: SystemdBus, unit: str) -> DevicePolicyRow:
    """The device list of a scope, service or slice. Raises BusError, of kind MISSING
    where there is no such unit."""
    path, interface = unit_path(unit), f"{SYSTEMD}.{unit.rpartition('.')[2].capitalize()}"
    policy, allow = await all_of(
        [bus.get(path, interface, name) for name in ("DevicePolicy", "DeviceAllow")]
    )
    if policy == "auto" and not allow and not await bus.get(path, interface, "ControlGroup"):
        raise BusError(f"{unit} does not exist", ErrorKind.MISSING)
    return DevicePolicyRow(str(policy), tuple((str(path), str(rights)) for path, rights in allow))


async def allow_devices(
    bus: SystemdBus, unit: str, allow: Sequence[tuple[str, str]], within_s: float = 2.0
) -> None:
    """Add these to the unit's list until it ends, in one call (systemctl set-property --runtime).
    BusError."""
    value = Variant("a(ss)", [STRUCT(row) for row in allow])
    await bus.call(
        "SetUnitProperties",
        "sba(sv)",
        [unit, True, [STRUCT(("DeviceAllow", value))]],
        within_s=within_s,
    )
