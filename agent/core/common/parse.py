"""Bytes to parts. Each function takes what a file held and returns a part, or None where it cannot
be one."""

from __future__ import annotations

import json
import re
from typing import Any

from ...model.mark import Mark

LINE = 4096
"""Characters of a log line that are matched: whoever writes the log decides how long its lines
are."""


def without(mark: str) -> str:
    """A pattern for any text of one line in which the mark does not begin again.

    `A.*B`, searched, reads the rest of the line once for every A in it, which takes quadratic
    time. `A` + without(A) + `B` finds a match in the same lines, and reads each character once.
    """
    return rf"(?:(?!{mark}).)*"


_KERNEL_MODULE = re.compile(
    rf"Kernel Module\b{without('Kernel Module')}?\s(\d{{3,4}}(?:\.\d+){{1,2}})\b"
)
# nvidia.ko; nvidia-current.ko, nvidia-current-open.ko, nvidia-tesla-535.ko (Debian); not its
# relatives.
_MODULE_FILE = re.compile(
    r"^(?!\S*-(?:uvm|modeset|drm|peermem|vgpu-vfio)\.ko)"
    r"(\S*/nvidia(?:-(?:current|open|tesla|legacy)[\w.-]*)?\.ko(?:\.(?:gz|xz|zst))?):",
    re.M,
)
_RFC3339 = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d{1,9})?(Z|[+-]\d\d:\d\d)", re.A)
_LIBRARY = re.compile(r"\.so\.(\d{3,4}(?:\.\d+){1,2})$")
_BUS_ID = re.compile(r"^([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])$")


UNKNOWN_FORM = "is JSON of a form that we do not know"


def text(data: bytes) -> str:
    return data.decode("utf-8", "replace").strip()


def driver_version(data: bytes) -> str | None:
    """The version in /proc/driver/nvidia/version.

    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  …", and of the open modules
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build …".
    """
    found = _KERNEL_MODULE.search(data.decode("utf-8", "replace"))
    return found.group(1) if found else None


def library_version(path: str) -> str:
    """The version in a library's own file name, libnvidia-ml.so.550.90.07; "" where it carries
    none."""
    found = _LIBRARY.search(path)
    return found.group(1) if found else ""


def rfc3339(written: str) -> float:
    """Realtime, seconds, of 2026-11-29T12:36:14.099974037Z; 0.0 of anything else."""
    from datetime import (
        datetime,  # `gpu-gate wait` reads marks by this file, in the way of every boot
    )

    found = _RFC3339.fullmatch(written)
    if not found:
        return 0.0
    moment, fraction, zone = found.groups()
    try:
        whole = datetime.fromisoformat(moment + zone.replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError):
        return 0.0
    return whole + float(f"0{fraction or '.0'}")


def hex_number(data: bytes) -> int | None:
    try:
        return int(text(data), 16)
    except ValueError:
        return None


def bus_id(written: str) -> str | None:
    """A PCI bus id in sysfs's form; NVML writes an 8-digit domain (00000000:07:00.0), in
    capitals."""
    found = _BUS_ID.match(written.strip().lower())
    if not found:
        return None
    domain, bus, device, function = found.groups()
    return f"{int(domain, 16):04x}:{bus}:{device}.{function}"


def majors(data: bytes) -> dict[str, int]:
    """Character majors by name, from /proc/devices."""
    found: dict[str, int] = {}
    for line in data.decode("utf-8", "replace").splitlines():
        if line.startswith("Block devices"):
            break
        number, _, name = line.strip().partition(" ")
        if number.isascii() and number.isdecimal() and len(number) < 10 and name:
            found[name.strip()] = int(number)
    return found


def module_file(modules_dep: bytes) -> str | None:
    """The nvidia module's file in modules.dep, under any of the distributions' names for it."""
    found = _MODULE_FILE.search(modules_dep.decode("utf-8", "replace"))
    return found.group(1) if found else None


def json_object(data: bytes) -> dict[str, Any] | None:
    """None of anything else, however deep it is nested."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def mark(data: bytes) -> Mark | None:
    """A mark of /run/gpu-gate: {"reason": "…", "at": boottime seconds, "until": the same}. A file
    that is empty, or holds something else, is a mark as well: somebody made it, and it does not end
    by itself."""
    if not data.strip():
        return Mark("set by hand", 0.0)
    found = json_object(data)
    if found is None:
        return Mark(text(data)[:200], 0.0)
    return Mark(
        str(found.get("reason") or "no reason given")[:200],
        number(found.get("at")),
        number(found.get("until")),
    )


def number(value: object) -> float:
    """A finite number, 0.0 in the place of anything else: JSON may hold NaN, 1e999 and integers of
    400 digits."""
    try:
        found = float(value) if isinstance(value, (int, float)) else 0.0
    except OverflowError:
        return 0.0
    return found if found - found == 0.0 else 0.0


def checkpoint(data: bytes) -> dict[str, int] | None:
    """Devices by resource in RegisteredDevices of kubelet_internal_checkpoint, in any of its
    shapes.

    Its checksum is not checked: the file is a hint that outlives plugin, kubelet and boot, whatever
    it says.
    """
    stored = json_object(data)
    inner = stored.get("Data") if stored else None
    registered = inner.get("RegisteredDevices") if isinstance(inner, dict) else None
    if registered is None and isinstance(inner, dict):
        return {}
    if isinstance(registered, list):
        return {} if not registered else None
    if not isinstance(registered, dict):
        return None
    return {str(name): len(ids) if isinstance(ids, list) else 0 for name, ids in registered.items()}
