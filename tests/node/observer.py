"""Runs on a node and prints one JSON line for each sample of the node's state.

It asks the parts themselves (systemd, NVML, the container's log, the kubelet's pod-resources API),
never gpu-gate.
"""

import glob
import json
import subprocess
import sys
import time

sys.path.insert(0, "/opt/gpu-gate-sim")
import pynvml

PAUSE_S = 0.2


def unit_times(units):
    """Boottime seconds when each unit became active; None where it has not."""
    names = ["systemctl", "show", "-p", "ActiveEnterTimestampMonotonic,ActiveState", "--", *units]
    said = subprocess.run(names, capture_output=True, text=True).stdout.split("\n\n")
    found = {}
    for unit, block in zip(units, said, strict=True):
        fields = dict(line.split("=", 1) for line in block.strip().splitlines() if "=" in line)
        usec = int(fields.get("ActiveEnterTimestampMonotonic") or 0)
        found[unit] = usec / 1e6 if usec and fields.get("ActiveState") == "active" else None
    return found


def nvml():
    """The number of GPUs NVML shows on the host, or its error."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return str(error)
    try:
        return pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as error:
        return str(error)
    finally:
        pynvml.nvmlShutdown()


def plugin_log():
    lines = []
    for path in glob.glob("/var/log/pods/*/nvidia-device-plugin-ctr/*.log"):
        with open(path) as file:
            lines += [line.rstrip("\n").split(" ", 3)[-1] for line in file]
    return lines


def kubelet():
    said = subprocess.run(["simgpu", "node"], capture_output=True, text=True)
    try:
        return json.loads(said.stdout)
    except ValueError:
        return {}


def main():
    units = [
        "nvidia-persistenced.service",
        "kubelet.service",
        "gpu-gate.service",
        "gpu-gate.target",
    ]
    while True:
        seen = {
            "at": time.clock_gettime(time.CLOCK_MONOTONIC),
            "units": unit_times(units),
            "nvml": nvml(),
            "log": plugin_log(),
            "node": kubelet(),
        }
        print(json.dumps(seen), flush=True)
        time.sleep(PAUSE_S)


main()
