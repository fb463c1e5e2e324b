"""The probe program, and how it is started. Its imports are few, so that the first probe starts
before the agent itself is loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from ...core.common.layouts import DRIVER_ROOTS
from ...transport.clock import boottime
from ...transport.spawn import spawn

PROGRAM = Path(__file__).with_name("nvml_probe.py")
LIBRARY_PLACES = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "lib64",
    "lib",
)
SONAME = "libnvidia-ml.so.1"


class Started(NamedTuple):
    """A running probe."""

    process: subprocess.Popen[bytes]
    since: float
    """boottime, seconds"""


def start(driver_root: str, needs: str, holds: bool) -> Started | None:
    """Start a probe now. None if it cannot be started: the next probe reports why."""
    since = boottime()
    try:
        return Started(spawn(probe_argv(driver_root, needs, holds)), since)
    except OSError:
        return None


def probe_argv(driver_root: str, needs: str, holds: bool) -> list[str]:
    """Its command. The program asks nothing while the file `needs` is gone; with `holds`, NVML
    stays initialised until its stdin is closed."""
    argv = [sys.executable, "-I", str(PROGRAM)]
    library = find_library(driver_root)
    argv += ["--library", library] if library else []
    argv += ["--needs", needs] if needs else []
    return argv + (["--hold"] if holds else [])


def find_library(driver_root: str, soname: str = SONAME) -> str:
    """The path of a library of the driver that is not on the loader's own path; empty leaves the
    search to the loader."""
    for root in (driver_root,) if driver_root else DRIVER_ROOTS:
        for place in LIBRARY_PLACES:
            path = Path(root) / place / soname
            if path.exists():
                return str(path)
    return ""


def leftovers() -> list[int]:
    """Pids that an earlier agent left in our unit's cgroup: probes that SIGKILL could not end.

    Only their /proc/PID/stat may be read: cmdline and maps wait for a lock that a process in the
    driver may hold.
    """
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    own = next((line.partition("::")[2] for line in lines if line.startswith("0::")), "")
    if not own.endswith(".service"):
        return []
    for mount in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"):
        try:
            pids = Path(f"{mount}{own}/cgroup.procs").read_text().split()
        except OSError:
            continue
        return [int(pid) for pid in pids if int(pid) != os.getpid()]
    return []
