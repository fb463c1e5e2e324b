"""CDI specs in the shape nvidia-ctk 1.17 and the device plugin 0.17 write them, made small."""

from __future__ import annotations

import json
from typing import Any

from .snapshots import UUIDS

DRIVER = "550.54.15"
LIB = "/usr/lib/x86_64-linux-gnu"
HOST = (
    "/dev/nvidia-uvm",
    "/dev/nvidia-uvm-tools",
    "/dev/nvidia0",
    "/dev/nvidia1",
    "/dev/nvidiactl",
    "/usr/bin/nvidia-cdi-hook",
    f"{LIB}/libcuda.so.{DRIVER}",
    f"{LIB}/libnvidia-ml.so.{DRIVER}",
)
"""The host paths of `ctk()`, sorted."""


def ctk(driver: str = DRIVER, uuids: tuple[str, ...] = UUIDS, **changes: Any) -> dict[str, Any]:
    """What `nvidia-ctk cdi generate` writes: each GPU by index and by UUID, and all of them."""
    nodes = [[{"path": f"/dev/nvidia{n}"}] for n in range(len(uuids))]
    devices = [
        {"name": name, "containerEdits": {"deviceNodes": nodes[n]}}
        for n, uuid in enumerate(uuids)
        for name in (str(n), uuid)
    ]
    devices.append(
        {
            "name": "all",
            "containerEdits": {"deviceNodes": [part for node in nodes for part in node]},
        }
    )
    ldcache = ["nvidia-cdi-hook", "update-ldcache", "--folder", LIB]
    return {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": devices,
        "containerEdits": {
            "env": ["NVIDIA_VISIBLE_DEVICES=void"],
            "deviceNodes": [
                {"path": f"/dev/{n}"} for n in ("nvidia-uvm", "nvidia-uvm-tools", "nvidiactl")
            ],
            "hooks": [
                {"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook", "args": ldcache}
            ],
            "mounts": [
                {
                    "hostPath": f"{LIB}/{name}.so.{driver}",
                    "containerPath": f"{LIB}/{name}.so.{driver}",
                    "options": ["ro", "nosuid", "nodev", "bind"],
                }
                for name in ("libcuda", "libnvidia-ml")
            ],
        },
        **changes,
    }


def text(spec: object) -> bytes:
    return json.dumps(spec).encode()
