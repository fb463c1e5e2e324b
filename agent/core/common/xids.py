"""What an Xid wants, in the words of a person who has to do it.

Numbers and what they want: NVIDIA's Xid catalogue (docs.nvidia.com/deploy/xid-errors,
analyzing-xid-catalog, its column of immediate actions, for Ampere and later). Xid 154 says itself
what the driver wants of a person (driver 565 and later).
"""

from __future__ import annotations

import re

from . import parse

APPLICATIONS = frozenset({13, 31, 43, 45, 68, 109})
"""Of a program's own making; NVIDIA's device plugin leaves out the same (k8s-device-plugin 0.17,
health.go)."""
RECOVERY = 154
RESET = frozenset({46, 48, 62, 64, 95, 110, 136, 140, 150, 155, 156, 158})
"""After these a GPU is to be reset before other work runs on it."""
LINKS = frozenset({74, 144, 145, 146, 147, 148, 149})
"""Of an NVLink: what a line wants depends on the error bits in it."""
_PROGRAMS = frozenset(
    {
        8,
        32,
        39,
        40,
        41,
        44,
        60,
        69,
        *range(70, 73),
        *range(75, 78),
        *range(80, 90),
        *range(96, 106),
        *range(126, 136),
        139,
    }
)
_OTHERS = {
    63: "the row is remapped at the next reset, the GPU works until then",
    79: "reboot the drained node",
    92: "watch it: its vendor, if it goes on",
    94: "start the program it names again, reset the GPU when it is idle",
    119: "reset the GPU, or reboot",
    120: "reset the GPU, or reboot",
    143: "reset the GPU, or reboot",
    121: "nothing, while it stays alone",
    151: "reboot the machine",
    157: "its vendor, if it comes again",
}
_FATAL = re.compile(r"(?<!non-)\bfatal\b", re.I)
_ACTION = re.compile(rf"changed from {parse.without('changed from ')}? to \S+ \((?!None)([^()]+)\)")


def recovery(line: str) -> str:
    """What an Xid 154 says that the driver wants: "Node Reboot Required"; "" where it wants
    nothing."""
    found = _ACTION.search(line)
    return found.group(1) if found else ""


def wants(number: int, line: str) -> str:
    """What a person is to do; "" where the number alone does not say. Of 0, which is no Xid, an
    NVSwitch's fatal SXid."""
    if number == 0:
        return "an NVSwitch: reset every GPU of it, or reboot" if ": SXid (" in line else ""
    if number == RECOVERY:
        return recovery(line)
    if number in RESET:
        return "reset the GPU before other work runs on it"
    if number in LINKS:
        return "an NVLink: reset the GPU where it says Fatal; its vendor, if it comes again"
    return "start the program it names again" if number in _PROGRAMS else _OTHERS.get(number, "")


def is_reset(number: int, line: str) -> bool:
    """No other work should run on this GPU before a reset or a reboot."""
    return (
        number in RESET
        or bool(number == RECOVERY and recovery(line))
        or (number in LINKS and bool(_FATAL.search(line)))
    )
