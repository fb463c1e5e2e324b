"""Wall time of commands, as JSON: time_it.py TIMES [NAME…]. They take turns, so that noise falls on
all alike."""

import contextlib
import json
import os
import subprocess
import sys
import time

COMMANDS = {
    "wait": ["gpu-gate", "wait"],
    "status": ["gpu-gate", "status"],
    "pass": ["python3", "-c", "pass"],
    "probe": ["/opt/bench/poll-nvml", "8"],
}
MARK = "/run/gpu-gate/released"


def took(name):
    if name == "wait":  # else it only reads the mark
        with contextlib.suppress(FileNotFoundError):
            os.unlink(MARK)
    began = time.perf_counter()
    subprocess.run(
        COMMANDS[name],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return time.perf_counter() - began


def main():
    names = sys.argv[2:] or list(COMMANDS)
    for name in names:
        took(name)
    times = {name: [] for name in names}
    for _ in range(int(sys.argv[1])):
        for name in names:
            times[name].append(took(name))
    print(json.dumps(times))


main()
