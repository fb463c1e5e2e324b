"""``kubelet_internal_checkpoint``: the real shape, with the real checksum.

The checksum is FNV-1a (32 bit) over Go's printed form of the data; it was checked against captured
files.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

NAME = "kubelet_internal_checkpoint"


@dataclass(frozen=True)
class Entry:
    """What one container was given."""

    pod_uid: str
    container: str
    resource: str
    device_ids: tuple[str, ...]
    response: bytes
    """The plugin's ContainerAllocateResponse as it came."""


class Corrupt(Exception):
    """The file is there and cannot be used; the kubelet goes on without it."""


def _fnv32a(data: bytes) -> int:
    value = 0x811C9DC5
    for byte in data:
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value


def _printed(data: dict) -> str:
    """The data as Go's spew prints it with ``%#v``."""

    def lists(of: dict) -> str:
        return " ".join(f"{key}:[{' '.join(of[key])}]" for key in sorted(of))

    def entry(e: dict) -> str:
        octets = " ".join(str(b) for b in base64.b64decode(e["AllocResp"]))
        return (
            f"{{PodUID:(string){e['PodUID']} ContainerName:(string){e['ContainerName']} "
            f"ResourceName:(string){e['ResourceName']} "
            f"DeviceIDs:(checkpoint.DevicesPerNUMA)map[{lists(e['DeviceIDs'])}] "
            f"AllocResp:([]uint8)[{octets}]}}"
        )

    entries = data["PodDeviceEntries"]
    pods = "<nil>" if entries is None else f"[{' '.join(map(entry, entries))}]"
    return (
        f"(checkpoint.checkpointData){{PodDeviceEntries:([]checkpoint.PodDevicesEntry){pods} "
        f"RegisteredDevices:(map[string][]string)map[{lists(data['RegisteredDevices'])}]}}"
    )


def checksum(data: dict) -> int:
    return _fnv32a(_printed(data).encode())


def write(directory: Path, entries: list[Entry], registered: dict[str, list[str]]) -> None:
    data = {
        "PodDeviceEntries": [
            {
                "PodUID": e.pod_uid,
                "ContainerName": e.container,
                "ResourceName": e.resource,
                "DeviceIDs": {"-1": list(e.device_ids)},
                "AllocResp": base64.b64encode(e.response).decode(),
            }
            for e in entries
        ]
        or None,
        "RegisteredDevices": registered,
    }
    text = json.dumps({"Data": data, "Checksum": checksum(data)}, separators=(",", ":"))
    new = directory / f".{NAME}.new"
    new.write_text(text)
    new.chmod(0o600)
    os.replace(new, directory / NAME)


def read(directory: Path) -> tuple[list[Entry], dict[str, list[str]]]:
    """Raises FileNotFoundError, or Corrupt with the kubelet's own words."""
    text = (directory / NAME).read_text()
    try:
        whole = json.loads(text)
        data = whole["Data"]
        wrong = whole["Checksum"] != checksum(data)
        entries = [
            Entry(
                e["PodUID"],
                e["ContainerName"],
                e["ResourceName"],
                tuple(i for ids in e["DeviceIDs"].values() for i in ids),
                base64.b64decode(e["AllocResp"]),
            )
            for e in data["PodDeviceEntries"] or []
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise Corrupt("unexpected end of JSON input") from exc
    if wrong:
        raise Corrupt("checkpoint is corrupted")
    return entries, data["RegisteredDevices"]


def remove_sockets(directory: Path) -> None:
    """What every kubelet does before it listens: all sockets go, the checkpoint stays."""
    for path in directory.iterdir():
        with contextlib.suppress(FileNotFoundError):
            if path.is_socket():
                path.unlink()
