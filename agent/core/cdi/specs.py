"""CDI specs and the toolkit's configuration: bytes to parts. A spec comes as JSON, whatever its
file was."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from typing import Any

from ...model.cdi import CdiSpec
from ..common.parse import json_object

KIND = "nvidia.com/gpu"
MOST = 4096
"""Devices, or host paths, of one spec that are looked at. A node with 8 GPUs and MIG names some
150."""
_VERSION = re.compile(r"/lib(?:cuda|nvidia-ml|nvidia-ptxjitcompiler)\.so\.(\d{3,4}(?:\.\d+){1,2})$")
_SECTION = re.compile(r"^\s*\[([^\]]+)\]\s*(?:#.*)?$")
_MODE = re.compile(r'^\s*mode\s*=\s*"([\w-]{1,40})"')
_HANDLER = re.compile(r"^[ \t]*\[[^\]#\n]*\bruntimes\.\"?nvidia(?:-cdi|-legacy)?\"?\]", re.M)
_ENABLED = re.compile(r"^[ \t]*enable_cdi[ \t]*=[ \t]*true\b", re.M)


def spec(data: bytes) -> CdiSpec | None:
    """The spec that a file holds; None for one of another kind of device.

    Raises ValueError with a sentence if the file holds no CDI spec."""
    found = json_object(data)
    if found is None:
        raise ValueError("it holds no object")
    kind = found.get("kind")
    if not isinstance(kind, str) or "/" not in kind:
        raise ValueError("it names no kind")
    return _spec_of(kind, found) if kind.endswith(KIND) else None


def _spec_of(kind: str, found: dict[str, Any]) -> CdiSpec:
    listed = found.get("devices")
    if not isinstance(listed, list) or not listed:
        raise ValueError("it defines no device")
    devices = [d for d in listed if isinstance(d, dict)]
    edits = [each.get("containerEdits") for each in (found, *devices)]
    paths = set(chain.from_iterable(map(_paths, edits)))
    if len(listed) > MOST or len(paths) > MOST:
        raise ValueError(f"it names more than {MOST} devices or paths")
    return CdiSpec(
        kind,
        tuple(str(d["name"])[:120] for d in devices if "name" in d),
        tuple(sorted({m.group(1) for p in paths if (m := _VERSION.search(p))})),
        tuple(sorted(paths)),
        tuple(sorted(set(chain.from_iterable(map(_numbers, edits))))),
    )


def _items(edits: Any, part: str) -> Iterator[dict[str, Any]]:
    found = edits.get(part) if isinstance(edits, dict) else None
    for item in found if isinstance(found, list) else ():
        if isinstance(item, dict):
            yield item


def _paths(edits: Any) -> Iterator[str]:
    """Every path of the host; of a device node it is the container's where no other is given
    (SPEC.md, hostPath)."""
    named = [n.get("hostPath") or n.get("path") for n in _items(edits, "deviceNodes")]
    named += [m.get("hostPath") for m in _items(edits, "mounts")]
    named += [h.get("path") for h in _items(edits, "hooks")]
    for path in named:
        if isinstance(path, str) and path.startswith("/") and "\0" not in path:
            yield path[:4096]


def _numbers(edits: Any) -> Iterator[tuple[str, int, int]]:
    for node in _items(edits, "deviceNodes"):
        path, major, minor = (
            node.get("hostPath") or node.get("path"),
            node.get("major"),
            node.get("minor"),
        )
        if isinstance(path, str) and type(major) is int and type(minor) is int and major > 0:
            yield path, major, minor


def runtime_mode(data: bytes) -> str | None:
    """mode= of [nvidia-container-runtime] in the toolkit's config.toml; "auto" where it says none
    (1.9 and later)."""
    text = data.decode("utf-8", "replace")
    if "\0" in text:
        return None
    section = ""
    for line in text.splitlines():
        if found := _SECTION.match(line):
            section = found.group(1).strip()
        elif section == "nvidia-container-runtime" and (mode := _MODE.match(line)):
            return mode.group(1)
    return "auto"


def names_handler(data: bytes) -> bool:
    """A runtime's configuration names a handler called nvidia: containerd's
    [plugins."…".containerd.runtimes.nvidia], CRI-O's [crio.runtime.runtimes.nvidia]."""
    return bool(_HANDLER.search(data.decode("utf-8", "replace")))


def enables_cdi(data: bytes) -> bool:
    return bool(_ENABLED.search(data.decode("utf-8", "replace")))
