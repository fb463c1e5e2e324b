"""Every NVML return code: NVIDIA's name for it and what waiting does for it.

Names and values: nvidia-ml-py 13.615.71, pynvml.py (NVML_SUCCESS … NVML_ERROR_UNKNOWN). The classes
are this project's judgement; a code that is not listed (a newer NVML) is treated as one that
waiting may heal.
"""

from __future__ import annotations

from ...model.finding import Heals

_SOON, _NEVER, _CONF = Heals.SOON, Heals.NEVER, Heals.CONFIGURATION

GPU_IS_LOST = 15
MISMATCH = 18
DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND = 9, 12

CODES: dict[int, tuple[str, Heals]] = {
    0: ("NVML_SUCCESS", _SOON),
    1: ("NVML_ERROR_UNINITIALIZED", _SOON),
    2: ("NVML_ERROR_INVALID_ARGUMENT", _CONF),
    3: ("NVML_ERROR_NOT_SUPPORTED", _CONF),
    4: ("NVML_ERROR_NO_PERMISSION", _CONF),
    5: ("NVML_ERROR_ALREADY_INITIALIZED", _SOON),
    6: ("NVML_ERROR_NOT_FOUND", _SOON),
    7: ("NVML_ERROR_INSUFFICIENT_SIZE", _CONF),
    8: ("NVML_ERROR_INSUFFICIENT_POWER", _NEVER),
    9: ("NVML_ERROR_DRIVER_NOT_LOADED", _SOON),
    10: ("NVML_ERROR_TIMEOUT", _SOON),
    11: ("NVML_ERROR_IRQ_ISSUE", _NEVER),
    12: ("NVML_ERROR_LIBRARY_NOT_FOUND", _CONF),
    13: ("NVML_ERROR_FUNCTION_NOT_FOUND", _CONF),
    14: ("NVML_ERROR_CORRUPTED_INFOROM", _NEVER),
    15: ("NVML_ERROR_GPU_IS_LOST", _NEVER),
    16: ("NVML_ERROR_RESET_REQUIRED", _NEVER),
    17: ("NVML_ERROR_OPERATING_SYSTEM", _SOON),
    18: ("NVML_ERROR_LIB_RM_VERSION_MISMATCH", _NEVER),
    19: ("NVML_ERROR_IN_USE", _SOON),
    20: ("NVML_ERROR_MEMORY", _SOON),
    21: ("NVML_ERROR_NO_DATA", _SOON),
    22: ("NVML_ERROR_VGPU_ECC_NOT_SUPPORTED", _CONF),
    23: ("NVML_ERROR_INSUFFICIENT_RESOURCES", _SOON),
    24: ("NVML_ERROR_FREQ_NOT_SUPPORTED", _CONF),
    25: ("NVML_ERROR_ARGUMENT_VERSION_MISMATCH", _CONF),
    26: ("NVML_ERROR_DEPRECATED", _CONF),
    27: ("NVML_ERROR_NOT_READY", _SOON),
    28: ("NVML_ERROR_GPU_NOT_FOUND", _SOON),
    29: ("NVML_ERROR_INVALID_STATE", _NEVER),
    30: ("NVML_ERROR_RESET_TYPE_NOT_SUPPORTED", _CONF),
    999: ("NVML_ERROR_UNKNOWN", _SOON),
}

REMEDIES: dict[int, str] = {
    4: "run gpu-gate as root: systemctl cat gpu-gate.service",
    8: "check the GPU's power cables and the chassis power budget",
    9: "lsmod | grep nvidia; dmesg | grep NVRM",
    12: "install the driver's user-space libraries (libnvidia-ml.so.1), or set [Probe] DriverRoot=",
    13: "the library is older than the driver: reinstall the driver's user-space packages",
    14: "the InfoROM is corrupted: take the GPU to its vendor",
    15: "a GPU fell off the bus: reboot the node; if it comes again, replace the GPU (dmesg | "
    "grep Xid)",
    16: "a GPU wants a reset: drain the node, then nvidia-smi --gpu-reset, or reboot",
    18: "the driver was upgraded under the loaded module: drain the node and reboot it",
    29: "a GPU is in an invalid state: drain the node, then reset the GPU or reboot",
}


def name_of(code: int) -> str:
    """NVIDIA's name and the number: "NVML_ERROR_UNKNOWN (999)"."""
    known = CODES.get(code)
    return f"{known[0]} ({code})" if known else f"NVML error {code}"


def heals(code: int) -> Heals:
    known = CODES.get(code)
    return known[1] if known else Heals.SOON


def next_step(code: int) -> str:
    return REMEDIES.get(code, "dmesg | grep -E 'NVRM|Xid'")
