"""Says on netlink what systemd-udevd would say of a device: for listeners of libudev's "udev"
source.

The kernel's own group cannot be spoken for from user space; listeners drop it.
"""

from __future__ import annotations

import itertools
import os
import socket
import struct

NETLINK_KOBJECT_UEVENT, UDEV_GROUP = 15, 2
_MAGIC, _HEADER = 0xFEEDCAFE, 40
_sequence = itertools.count(os.getpid() * 1000)


def _hash(text: str) -> int:
    """MurmurHash2 with seed 0, by which receivers filter subsystems."""
    data, m = text.encode(), 0x5BD1E995
    h = len(data)
    for at in range(0, len(data) // 4 * 4, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & 0xFFFFFFFF
        h = (h * m & 0xFFFFFFFF) ^ ((k ^ k >> 24) * m & 0xFFFFFFFF)
    tail = data[len(data) // 4 * 4 :]
    if tail:
        h = (h ^ int.from_bytes(tail, "little")) * m & 0xFFFFFFFF
    h = (h ^ h >> 13) * m & 0xFFFFFFFF
    return h ^ h >> 15


def message(action: str, subsystem: str, devpath: str, **more: str) -> bytes:
    fields = {
        "ACTION": action,
        "DEVPATH": devpath,
        "SUBSYSTEM": subsystem,
        "SEQNUM": str(next(_sequence)),
        **more,
    }
    body = b"".join(f"{key}={value}".encode() + b"\0" for key, value in fields.items())
    header = (
        b"libudev\0" + struct.pack("!I", _MAGIC) + struct.pack("=III", _HEADER, _HEADER, len(body))
    )
    return header + struct.pack("!IIII", _hash(subsystem), 0, 0, 0) + body


def send(action: str, subsystem: str, devpath: str, **more: str) -> None:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_KOBJECT_UEVENT) as out:
        out.bind((0, 0))
        out.sendto(message(action, subsystem, devpath, **more), (0, UDEV_GROUP))
