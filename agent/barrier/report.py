"""A file with what the API server shows of this node: the doctor checks link 11 without a
credential."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from ..transport.atomic_write import write_whole
from .view import NodeView

log = logging.getLogger(__name__)

PATH = "/run/gpu-gate-node/node.json"
REPORT_VERSION = 1


def report(node: NodeView | None, seen_at: float, trouble: str) -> dict[str, Any]:
    """Build the report. `seen_at` is boottime, seconds, of the API server's last answer."""
    body: dict[str, Any] = {
        "version": REPORT_VERSION,
        "seen_at": round(seen_at, 2),
        "trouble": trouble,
    }
    if node is not None:
        ready = node.conditions.get("Ready")
        body |= {
            "node": node.name,
            "resource_version": node.version,
            "boot_id": node.boot_id,
            "kubelet_heartbeat_at": ready.heartbeat_at if ready else 0.0,
            "capacity": _extended(node.capacity),
            "allocatable": _extended(node.allocatable),
        }
    return body


def write(body: Mapping[str, Any], path: str) -> None:
    """Write it atomically, readable by every user."""
    try:
        write_whole(path, json.dumps(body, indent=1).encode() + b"\n")
    except OSError as exc:
        log.warning("could not write %s (%s): the doctor cannot check link 11", path, exc.strerror)


def _extended(quantities: Mapping[str, str]) -> dict[str, str]:
    """Extended resources: their names have a domain. The doctor decides which of them are GPUs."""
    return {name: value for name, value in quantities.items() if "/" in name}
