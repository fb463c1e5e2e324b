"""Run gpu-gate as a program on a node that is a few folders: /run, /sys/bus, /proc/driver and /etc
laid over."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
ENDS_WITHIN_S = 60
"""A program that has not ended by then hangs; no test passes by waiting for it."""

# /etc keeps only what the loader and Python need.
LAY_OVER = """set -e
mount -t tmpfs tmpfs /run
mkdir /run/gpu-gate
mount --bind "$NODE/run" /run/gpu-gate
mount --bind "$NODE/bus" /sys/bus
[ ! -d "$NODE/devices" ] || mount --bind "$NODE/devices" /sys/devices
mount --bind "$NODE/driver" /proc/driver
mount --bind "$NODE/etc" /etc
exec "$@"
"""


def needs_root() -> None:
    """Skips, loudly, where a mount namespace of our own cannot be had."""
    if os.geteuid() == 0 and shutil.which("unshare"):
        done = subprocess.run(["unshare", "-m", "true"], capture_output=True)
        if done.returncode == 0:
            return
    reason = "NOT TESTED: this wants root and unshare -m, to lay over /run, /sys and /etc"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


class Node:
    """A node that is a folder; every program run on it gets its own mounts."""

    def __init__(self, folder: Path) -> None:
        needs_root()
        self.folder = folder
        for name in ("run", "bus/pci/devices", "driver", "etc/gpu-gate"):
            (folder / name).mkdir(parents=True)
        shutil.copy("/etc/ld.so.cache", folder / "etc")

    @property
    def run(self) -> Path:
        """/run/gpu-gate."""
        return self.folder / "run"

    def conf(self, text: str) -> None:
        (self.folder / "etc/gpu-gate/gpu-gate.conf").write_text(text)

    def pci(self, bus: str, vendor: str = "0x10de", class_code: str = "0x030200") -> None:
        function = self.folder / "bus/pci/devices" / bus
        function.mkdir()
        (function / "vendor").write_text(f"{vendor}\n")
        (function / "class").write_text(f"{class_code}\n")

    def module(self, version: str) -> None:
        """The kernel module is loaded, in this version."""
        (self.folder / "driver/nvidia").mkdir(exist_ok=True)
        (self.folder / "driver/nvidia/version").write_text(
            f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Tue Mar  5 22:23:56 "
            "UTC 2024\n"
        )

    def argv(self, *words: str) -> list[str]:
        return ["unshare", "-m", "--propagation", "private", "sh", "-c", LAY_OVER, "sh", *words]

    def env(self, **more: str) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "NODE": str(self.folder), **more}

    def start(self, *verb: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.argv(sys.executable, "-m", "agent", *verb),
            cwd=REPO,
            env=self.env(),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def gpu_gate(self, *verb: str) -> subprocess.CompletedProcess[str]:
        return self.run_program(sys.executable, "-m", "agent", *verb)

    def run_program(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.argv(*words),
            cwd=REPO,
            env=self.env(**env),
            text=True,
            capture_output=True,
            timeout=ENDS_WITHIN_S,
        )


def ended(child: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    """How a started program ended."""
    out, err = child.communicate(timeout=ENDS_WITHIN_S)
    return subprocess.CompletedProcess(child.args, child.returncode, out, err)


def run_doctor(*words: str) -> subprocess.CompletedProcess[str]:
    """`gpu-gate doctor` on a bundle."""
    return subprocess.run(
        [sys.executable, "-m", "agent", *words],
        cwd=REPO,
        capture_output=True,
        text=True,
        timeout=ENDS_WITHIN_S,
    )
