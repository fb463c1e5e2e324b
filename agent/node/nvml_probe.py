"""Ask NVML once: an exec'd program that prints one JSON line, and nothing of the agent's is imported here.

Every call that may enter the driver is in here, because a thread that hangs in the driver cannot be cancelled
and makes its whole process unkillable. NVML state does not survive a fork: this program is always exec'd.

    nvml_probe.py [--library PATH] [--needs PATH] [--hold]

--needs  ask nothing where this file is gone: nvmlInit would load a driver that went away since the agent looked.
--hold   stay initialised after the line was printed, until standard input is closed: a driver without
         persistence takes 1-3 s a GPU to come up (NVIDIA, driver-persistence), and goes down with its last client.
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

# nvidia-ml-py lies beside the package where the .deb put it, else on Python's own path.
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

SONAME = "libnvidia-ml.so.1"
MISMATCH = 18
LIBRARY_NOT_FOUND = 12
DRIVER_NOT_LOADED = 9


def read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(65536)
    except OSError:
        return ""


def load(path: str) -> str:
    """Load the library, and return the file it came from. Loading enters no driver."""
    ctypes.CDLL(path or SONAME, mode=ctypes.RTLD_GLOBAL)
    for line in read("/proc/self/maps").splitlines():
        if "libnvidia-ml" in line:
            return os.path.realpath(line.split(maxsplit=5)[-1])
    return path or SONAME


def excluded_gpus() -> list[str]:
    """Bus ids the driver was told to leave out (NVreg_ExcludedGpus): "GPU Excluded: Yes"."""
    base = "/proc/driver/nvidia/gpus"
    try:
        names = sorted(os.listdir(base))
    except OSError:
        return []
    return [n for n in names if re.search(r"^GPU Excluded:\s*Yes", read(f"{base}/{n}/information"), re.M)]


def mismatch(library: str, driver: str) -> bool:
    """True where library and module are known to differ, so that NVML need not be called to learn it."""
    found = re.search(r"\.so\.(\d{3,4}(?:\.\d+){1,2})$", library)
    return bool(found and driver and found.group(1) != driver)


def driver_version() -> str:
    found = re.search(r"Kernel Module\b.*?\s(\d{3,4}(?:\.\d+){1,2})\b", read("/proc/driver/nvidia/version"))
    return found.group(1) if found else ""


def enumerate_gpus(nvml: Any, out: dict[str, Any]) -> None:
    """Every GPU NVML shows; a GPU that fails is an error beside the others, not the end."""
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
        except nvml.NVMLError as error:
            out["errors"].append({"code": error.value, "call": call, "index": index, "bus_id": bus_id})


def quiet(nvml: Any, call: Any, handle: Any, default: Any) -> Any:
    """What not every GPU can say (NOT_SUPPORTED 3 on Tegra and vGPU) is not an error of the GPU."""
    try:
        return call(handle)
    except nvml.NVMLError as error:
        if error.value != 3:
            raise
        return default


def text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def ask(library: str, needs: str, out: dict[str, Any]) -> Any:
    """Fill `out`; returns the nvml module where it is initialised and wants a shutdown."""
    if needs and not os.path.exists(needs):
        out["errors"].append({"code": DRIVER_NOT_LOADED, "call": "version check", "index": -1})
        return None
    try:
        out["library"] = load(library)
    except OSError as error:
        out["errors"].append({"code": LIBRARY_NOT_FOUND, "call": "dlopen", "index": -1, "detail": str(error)})
        return None
    module_version = driver_version()
    if mismatch(out["library"], module_version):
        out["errors"].append({"code": MISMATCH, "call": "version check", "index": -1, "detail":
                              f"module {module_version}, library {os.path.basename(out['library'])}"})
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
        enumerate_gpus(nvml, out)
    except nvml.NVMLError as error:
        out["errors"].append({"code": error.value, "call": call, "index": -1})
    return nvml


def main(argv: list[str]) -> int:
    library = argv[argv.index("--library") + 1] if "--library" in argv else ""
    needs = argv[argv.index("--needs") + 1] if "--needs" in argv else ""
    # Drivers' libraries print to standard output (Tegra's do at every start): only our line may go there.
    answer = os.dup(1)
    os.dup2(2, 1)
    started = time.monotonic()
    out: dict[str, Any] = {"v": 1, "gpus": [], "errors": [], "excluded": excluded_gpus(), "library": "",
           "driver_version": "", "library_version": ""}
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
