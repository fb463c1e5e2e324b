"""Lines of the kernel's log that tell something about GPUs, and what they tell."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class KernelLine:
    """One line, as the kernel wrote it."""

    at: float
    "boottime, seconds"
    text: str


class KernelEvent(str, Enum):
    """What a line is about."""

    FOUND = "found"
    "the kernel enumerated a GPU on PCI"
    LOADED = "loaded"
    "the nvidia module finished loading"
    LOST = "lost"
    "a GPU fell off the bus (Xid 79), or its configuration space answers nobody"
    DEAD = "dead"
    "a GPU did not answer the driver when that looked for GPUs: it is bound to none"
    REGION = "region"
    "the firmware of the machine gave a GPU no memory window (BAR): the driver does not bind it"
    POWER = "power"
    "a GPU's power cables are not connected"
    UNFIT = "unfit"
    """a module was refused for it was built for another kernel, or for another version of nvidia's
    own"""
    FIRMWARE = "firmware"
    "the firmware of a GPU's own processor is not where the driver looks for it"
    GSP = "gsp"
    "a GPU's own processor no longer answers the driver (Xid 119, 120): who asks NVML now hangs"
    INIT_FAILED = "init-failed"
    "the driver could not initialise a GPU"
    UNSUPPORTED = "unsupported"
    "the driver does not support a GPU"
    REJECTED = "rejected"
    "a module was refused for its signature"
    MISMATCH = "mismatch"
    "a client's library is of another version than the module"
    XID = "xid"
    "any other error of a GPU or an NVSwitch that is no application's own"


@dataclass(frozen=True, slots=True)
class KernelEntry:
    """What one line tells."""

    at: float
    "boottime, seconds"
    event: KernelEvent
    line: str
    bus_id: str = ""
    '"" where the line names no device'
    client: str = ""
    "of MISMATCH: the client's version; of UNFIT: the module's name"
    xid: int = 0
    "0: the line is none"
