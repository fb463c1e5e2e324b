"""Ask NVML once. This program is exec'd, prints one JSON line, and imports nothing of the agent.

Every call that may enter the driver is in here, because a thread that hangs in the driver cannot be
cancelled, and makes its whole process unkillable. NVML's state does not survive a fork: this
program is always exec'd.

    nvml_probe.py [--library PATH] [--needs PATH] [--hold]

--needs  Ask nothing if this file is gone: nvmlInit would load a driver that was unloaded since the
         agent's last snapshot.
--hold   Stay initialised after printing the line, until standard input is closed: a driver without
         persistence takes 1-3 s for each GPU to initialise (NVIDIA, driver-persistence), and shuts
         down with its last client.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import sys
import time
from typing import Any

# The .deb installs nvidia-ml-py beside the package; elsewhere it is on Python's own path.
sys.path.insert(
    0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
)

SONAME = "libnvidia-ml.so.1"
NOT_SUPPORTED = 3
LOST = (15, 16)
"""GPU_IS_LOST, RESET_REQUIRED."""
MISMATCH = 18
LIBRARY_NOT_FOUND = 12
DRIVER_NOT_LOADED = 9
STATES_WITHIN_S = 5.0
"""After so many seconds no further question begins: the state of a GPU must not cost its
identity."""
FABRIC = ("not supported", "not started", "in progress", "completed")
VIRTUALIZATION = ("none", "passthrough", "vgpu", "host vgpu", "host vsga")
RECOVERY = (
    "none",
    "gpu reset",
    "node reboot",
    "drain p2p",
    "drain and reset",
    "imex domain",
    "bus reset",
    "system reboot",
)


def read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(65536)
    except OSError:
        return ""


def load(path: str) -> str:
    """Load the library, and return its file. Loading does not enter the driver. Raises OSError."""
    ctypes.CDLL(path or SONAME, mode=ctypes.RTLD_GLOBAL)
    for line in read("/proc/self/maps").splitlines():
        if "libnvidia-ml" in line:
            return os.path.realpath(line.split(maxsplit=5)[-1])
    return path or SONAME


def excluded_gpus() -> list[str]:
    """Bus ids that the driver excludes (NVreg_ExcludedGpus): "GPU Excluded: Yes"."""
    base = "/proc/driver/nvidia/gpus"
    try:
        names = sorted(os.listdir(base))
    except OSError:
        return []
    return [
        n
        for n in names
        if re.search(r"^GPU Excluded:\s*Yes", read(f"{base}/{n}/information"), re.M)
    ]


def mismatch(library: str, driver: str) -> bool:
    """True if the versions of library and module are known to differ: then NVML need not be
    called."""
    found = re.search(r"\.so\.(\d{3,4}(?:\.\d+){1,2})$", library)
    return bool(found and driver and found.group(1) != driver)


def driver_version() -> str:
    found = re.search(
        r"Kernel Module\b(?:(?!Kernel Module).)*?\s(\d{3,4}(?:\.\d+){1,2})\b",
        read("/proc/driver/nvidia/version"),
    )
    return found.group(1) if found else ""


def enumerate_gpus(nvml: Any, out: dict[str, Any]) -> list[Any]:
    """Add every GPU of NVML to `out`. A GPU that fails is an error in `out`, and the others follow.
    Returns the handles."""
    handles = []
    count = nvml.nvmlDeviceGetCount()
    out["count"] = count
    for index in range(count):
        call, bus_id = "nvmlDeviceGetHandleByIndex", ""
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            call = "nvmlDeviceGetPciInfo"
            bus_id = text(nvml.nvmlDeviceGetPciInfo(handle).busId)
            call = "nvmlDeviceGetUUID"
            uuid = text(nvml.nvmlDeviceGetUUID(handle))
            call = "nvmlDeviceGetMinorNumber"
            minor = quiet(nvml, nvml.nvmlDeviceGetMinorNumber, handle, -1)
            name = text(quiet(nvml, nvml.nvmlDeviceGetName, handle, ""))
            out["gpus"].append({"uuid": uuid, "bus_id": bus_id, "minor": minor, "name": name})
            handles.append(handle)
        except nvml.NVMLError as error:
            out["errors"].append(
                {"code": error.value, "call": call, "index": index, "bus_id": bus_id}
            )
    return handles


def quiet(nvml: Any, call: Any, handle: Any, default: Any) -> Any:
    """The result of the call, or the default where the GPU does not support it (NOT_SUPPORTED 3 on
    Tegra and vGPU), which is not an error of the GPU."""
    try:
        return call(handle)
    except nvml.NVMLError as error:
        if error.value != NOT_SUPPORTED:
            raise
        return default


def add_states(nvml: Any, handles: list[Any], out: dict[str, Any]) -> None:
    """Add the state of each GPU, once all are enumerated. What a GPU, a driver or nvidia-ml-py
    (11.525 has fewer functions than 13) does not support is left out; no failure here is an error
    of the probe."""
    until = time.monotonic() + STATES_WITHIN_S
    questions = (
        mig_state,
        fabric_state,
        persistence_state,
        remap_state,
        ecc_state,
        recovery_state,
        virtualization_state,
    )
    for gpu, handle in zip(out["gpus"], handles, strict=True):
        state: dict[str, Any] = {}
        gpu["state"] = state
        for question in questions:
            if time.monotonic() > until:
                return
            try:
                state.update(question(nvml, handle))
            except nvml.NVMLError as error:
                if error.value in LOST:
                    state["trouble"] = error.value
                    break
            except (AttributeError, TypeError, ValueError, LookupError, ctypes.ArgumentError):
                continue  # a function or a structure that this nvidia-ml-py lacks


def mig_state(nvml: Any, handle: Any) -> dict[str, Any]:
    current, pending = nvml.nvmlDeviceGetMigMode(handle)
    state: dict[str, Any] = {"mig": bool(current), "mig_pending": bool(pending)}
    if current:
        with contextlib.suppress(nvml.NVMLError):  # an incomplete list is left out
            state["mig_devices"] = mig_devices(nvml, handle)
    return state


def mig_devices(nvml: Any, handle: Any) -> list[dict[str, Any]]:
    found = []
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            device = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except nvml.NVMLError as error:
            if error.value in (6, 2):  # NOT_FOUND, INVALID_ARGUMENT: no instance has this index
                continue
            raise
        # "NVIDIA A100-SXM4-40GB MIG 1g.5gb" (driver 470 and later)
        profile = re.search(r" MIG (\S+)$", text(nvml.nvmlDeviceGetName(device)))
        found.append(
            {
                "uuid": text(nvml.nvmlDeviceGetUUID(device)),
                "profile": profile.group(1) if profile else "",
                "gpu_instance": quiet(nvml, nvml.nvmlDeviceGetGpuInstanceId, device, -1),
                "compute_instance": quiet(nvml, nvml.nvmlDeviceGetComputeInstanceId, device, -1),
            }
        )
    return found


class Fabric(ctypes.Structure):
    """nvmlGpuFabricInfo_t of nvml.h. nvidia-ml-py declared its first part 64 bytes too long until
    12.535."""

    _fields_ = (
        ("cluster", ctypes.c_ubyte * 16),
        ("status", ctypes.c_uint),
        ("clique", ctypes.c_uint),
        ("state", ctypes.c_ubyte),
    )


class FabricV(ctypes.Structure):
    """nvmlGpuFabricInfo_v2_t: the version holds its size, 36 bytes."""

    _fields_ = (("version", ctypes.c_uint), *Fabric._fields_, ("health", ctypes.c_uint))


def fabric_state(nvml: Any, handle: Any) -> dict[str, Any]:
    """nvmlDeviceGetGpuFabricInfoV exists since driver 550, the one without V since 525."""
    for name, info in (
        ("nvmlDeviceGetGpuFabricInfoV", FabricV(version=0x02000024)),
        ("nvmlDeviceGetGpuFabricInfo", Fabric()),
    ):
        try:
            getattr(nvml, name)(handle, ctypes.byref(info))
        except AttributeError:
            continue
        except nvml.NVMLError as error:
            if error.value in LOST:
                raise
            continue
        return {"fabric": FABRIC[info.state], "fabric_status": int(info.status)}
    return {}


def persistence_state(nvml: Any, handle: Any) -> dict[str, Any]:
    return {"persistence": bool(nvml.nvmlDeviceGetPersistenceMode(handle))}


def remap_state(nvml: Any, handle: Any) -> dict[str, Any]:
    _, _, pending, failed = nvml.nvmlDeviceGetRemappedRows(handle)
    return {"remap_pending": bool(pending), "remap_failed": bool(failed)}


def ecc_state(nvml: Any, handle: Any) -> dict[str, Any]:
    current, pending = nvml.nvmlDeviceGetEccMode(handle)
    return {"ecc": bool(current), "ecc_pending": bool(pending)}


def recovery_state(nvml: Any, handle: Any) -> dict[str, Any]:
    """The recovery action that the driver itself recommends for this GPU. Older drivers refuse the
    number of this field."""
    (value,) = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    return {} if value.nvmlReturn else {"recovery": RECOVERY[value.value.uiVal]}


def virtualization_state(nvml: Any, handle: Any) -> dict[str, Any]:
    return {"virtualization": VIRTUALIZATION[nvml.nvmlDeviceGetVirtualizationMode(handle)]}


def text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def ask(library: str, needs: str, out: dict[str, Any]) -> Any:
    """Fill `out`. Returns the nvml module if it is initialised and needs a shutdown."""
    if needs and not os.path.exists(needs):
        out["errors"].append({"code": DRIVER_NOT_LOADED, "call": "version check", "index": -1})
        return None
    try:
        out["library"] = load(library)
    except OSError as error:
        out["errors"].append(
            {"code": LIBRARY_NOT_FOUND, "call": "dlopen", "index": -1, "detail": str(error)}
        )
        return None
    module_version = driver_version()
    if mismatch(out["library"], module_version):
        out["errors"].append(
            {
                "code": MISMATCH,
                "call": "version check",
                "index": -1,
                "detail": f"module {module_version}, library {os.path.basename(out['library'])}",
            }
        )
        return None
    import pynvml as nvml

    call = "nvmlInit"
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        out["errors"].append({"code": error.value, "call": call, "index": -1})
        return None
    try:
        call = "nvmlSystemGetDriverVersion"
        out["driver_version"] = text(nvml.nvmlSystemGetDriverVersion())
        out["library_version"] = text(nvml.nvmlSystemGetNVMLVersion())
        call = "nvmlDeviceGetCount"
        add_states(nvml, enumerate_gpus(nvml, out), out)
    except nvml.NVMLError as error:
        out["errors"].append({"code": error.value, "call": call, "index": -1})
    return nvml


def main(argv: list[str]) -> int:
    library = argv[argv.index("--library") + 1] if "--library" in argv else ""
    needs = argv[argv.index("--needs") + 1] if "--needs" in argv else ""
    # Some driver libraries print to standard output (Tegra's do at every start): only our line may
    # go there.
    answer = os.dup(1)
    os.dup2(2, 1)
    started = time.monotonic()
    out: dict[str, Any] = {
        "v": 1,
        "gpus": [],
        "errors": [],
        "excluded": excluded_gpus(),
        "library": "",
        "driver_version": "",
        "library_version": "",
    }
    nvml = ask(library, needs, out)
    out["took_ms"] = round((time.monotonic() - started) * 1000, 1)
    os.write(answer, json.dumps(out).encode() + b"\n")
    if "--hold" in argv and nvml is not None:
        sys.stdin.read()
    if nvml is not None:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
