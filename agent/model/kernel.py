"""Lines of the kernel log about GPUs, and what they report."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class KernelLine:
    """One line, as the kernel wrote it."""

    at: float
    """boottime, seconds"""
    text: str


class KernelEvent(str, Enum):
    """What a line is about."""

    FOUND = "found"
    """the kernel enumerated a GPU on PCI"""
    LOADED = "loaded"
    """the nvidia module finished loading"""
    LOST = "lost"
    """a GPU fell off the bus (Xid 79), or its configuration space cannot be read"""
    DEAD = "dead"
    """a GPU did not answer while the driver probed it: no driver is bound to it"""
    REGION = "region"
    """the machine's firmware assigned no memory window (BAR) to a GPU: the driver does not bind
    it"""
    POWER = "power"
    """a GPU's power cables are not connected"""
    UNFIT = "unfit"
    """the kernel refused a module that was built for another kernel, or for another version of the
    nvidia module"""
    FIRMWARE = "firmware"
    """the driver did not find the firmware of a GPU's own processor"""
    GSP = "gsp"
    """a GPU's own processor no longer answers the driver (Xid 119, 120): NVML calls now hang"""
    INIT_FAILED = "init-failed"
    """the driver could not initialise a GPU"""
    UNSUPPORTED = "unsupported"
    """the driver does not support a GPU"""
    REJECTED = "rejected"
    """the kernel refused a module because of its signature"""
    MISMATCH = "mismatch"
    """the library of a client has another version than the module"""
    XID = "xid"
    """any other error of a GPU or an NVSwitch that an application did not cause"""


@dataclass(frozen=True, slots=True)
class KernelEntry:
    """What one line reports."""

    at: float
    """boottime, seconds"""
    event: KernelEvent
    line: str
    bus_id: str = ""
    """empty where the line names no device"""
    client: str = ""
    """of MISMATCH: the client's version; of UNFIT: the module's name"""
    xid: int = 0
    """0: the line reports no Xid"""
