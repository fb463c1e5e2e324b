"""Ask CUDA once. This program is exec'd, prints one JSON line, and imports nothing of the agent.

cuInit opens every GPU and may hang in the driver. It fails with 802 while an NVSwitch fabric is not
ready, although nvidia-smi succeeds (CUDA driver API, CUDA_ERROR_SYSTEM_NOT_READY).

    cuda_probe.py [LIBRARY]
"""

from __future__ import annotations

import ctypes
import json
import sys


def ask(path: str) -> dict[str, object]:
    try:
        library = ctypes.CDLL(path)
        init, count_of = library.cuInit, library.cuDeviceGetCount
    except (OSError, AttributeError) as exc:
        return {"problem": f"{path} could not be loaded: {exc}"}
    code = int(init(ctypes.c_uint(0)))
    if code:
        return {"call": "cuInit", "code": code, "library": path}
    count = ctypes.c_int(0)
    code = int(count_of(ctypes.byref(count)))
    return {"call": "cuDeviceGetCount", "code": code, "count": count.value, "library": path}


if __name__ == "__main__":
    print(
        json.dumps({"v": 1, **ask(sys.argv[1] if len(sys.argv) > 1 else "libcuda.so.1")}),
        flush=True,
    )
