"""What NVIDIA's plugin offers of the GPUs that it sees: by its MIG strategy, its replicas, and
their resource's name.

As in k8s-device-plugin v0.17 internal/rm (nvml_manager.go, device_map.go, rm.go) and internal/mig;
the names of its environment are the plugin's own, but for REPLICAS and RENAME, which stand for its
configuration file.
"""

from __future__ import annotations

import os
import re

import pynvml

STRATEGY = os.environ.get("MIG_STRATEGY", "none")
REPLICAS = int(os.environ.get("REPLICAS", "1"))
IS_RENAMED = os.environ.get("RENAME", "") == "yes"
RESOURCE = os.environ.get("RESOURCE", "nvidia.com/gpu")
CHOSEN = os.environ.get("NVIDIA_VISIBLE_DEVICES", "all")

Offers = dict[str, dict[str, int]]
"""Resource to device id to the minor of the GPU behind it."""


class Invalid(Exception):
    """The plugin does not start with MIG set up so."""


def sees(*names: str) -> bool:
    return CHOSEN == "all" or any(name in CHOSEN.split(",") for name in names)


def enumerate_devices() -> Offers:
    """NVML is initialised, and is left so. Raises pynvml.NVMLError, Invalid."""
    handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    found: Offers = {}
    modes: set[bool] = set()
    for index, handle in enumerate(handles):
        uuid, minor = pynvml.nvmlDeviceGetUUID(handle), pynvml.nvmlDeviceGetMinorNumber(handle)
        migs = mig_devices(handle) if STRATEGY != "none" else None
        mine = {u: p for u, p in (migs or {}).items() if sees(u, uuid, str(index))}
        if migs is None and sees(uuid, str(index)):
            found.setdefault(RESOURCE, {})[uuid] = minor
        elif migs == {} and sees(uuid, str(index)):
            raise Invalid(
                f"invalid MIG configuration: device {index} has no MIG devices configured"
            )
        if mine or sees(uuid, str(index)):
            modes.add(migs is not None)
        for mig_uuid, profile in mine.items():
            name = (
                RESOURCE if STRATEGY == "single" else f"nvidia.com/mig-{profile.replace('+', '.')}"
            )
            found.setdefault(name, {})[mig_uuid] = minor
    if STRATEGY == "single" and len(modes) > 1:
        raise Invalid("all devices on the node must be configured with the same migEnabled value")
    return shared(found) if REPLICAS > 1 else found


def mig_devices(handle) -> dict[str, str] | None:
    """UUID to profile; None where MIG mode is off, or the GPU does not know it."""
    try:
        if not pynvml.nvmlDeviceGetMigMode(handle)[0]:
            return None
    except pynvml.NVMLError as exc:
        if exc.value == pynvml.NVML_ERROR_NOT_SUPPORTED:
            return None
        raise
    found = {}
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            mig = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except pynvml.NVMLError as exc:
            if exc.value in (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT):
                continue
            raise
        profile = re.search(r" MIG (\S+)$", pynvml.nvmlDeviceGetName(mig))
        found[pynvml.nvmlDeviceGetUUID(mig)] = profile.group(1) if profile else ""
    return found


def shared(found: Offers) -> Offers:
    """Each device so many times, its number behind "::"; `renameByDefault` names the resource
    anew."""
    return {
        name + (".shared" if IS_RENAMED else ""): {
            f"{i}::{n}": m for i, m in ids.items() for n in range(REPLICAS)
        }
        for name, ids in found.items()
    }
