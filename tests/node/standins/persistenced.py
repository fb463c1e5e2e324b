#!/usr/bin/python3
"""nvidia-persistenced's outside: it forks, writes its pid file and the real log lines, and stays.

When it starts, what /etc/simgpu.conf has after "persistenced:" is run, so that a window in which
NVML fails is counted from its start, as in the incident.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import syslog
from pathlib import Path

import simgpu

PID_FILE = Path("/run/nvidia-persistenced/nvidia-persistenced.pid")


def main() -> None:
    simgpu.run(["started", "persistenced"])
    PID_FILE.parent.mkdir(exist_ok=True)
    if pid := os.fork():
        PID_FILE.write_text(f"{pid}\n")
        return
    os.setsid()
    syslog.openlog("nvidia-persistenced", syslog.LOG_PID, syslog.LOG_DAEMON)
    syslog.syslog("Verbose syslog connection opened")
    syslog.syslog(f"Started ({os.getpid()})")
    state = Path("/run/simgpu/hardware.json")
    for gpu in json.loads(state.read_text())["gpus"] if state.exists() else []:
        syslog.syslog(f"device {gpu['bus']} - registered")
        syslog.syslog(f"device {gpu['bus']} - persistence mode enabled.")
    syslog.syslog("Local RPC services initialized")

    def stop(number, frame) -> None:
        syslog.syslog("Received signal 15")
        syslog.syslog("PID file closed.")
        syslog.syslog(
            "The daemon no longer has permission to remove its runtime data directory "
            "/run/nvidia-persistenced"
        )
        syslog.syslog("Shutdown (1)")
        sys.exit(0)

    signal.signal(signal.SIGTERM, stop)
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
