"""The stand-ins, run as programs over a folder that plays the node: no root, no mounts, no
systemd."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

STANDINS = Path(__file__).resolve().parents[1] / "node" / "standins"
sys.path.insert(0, str(STANDINS))

import install  # noqa: E402


def wait_for(condition: Callable[[], object], timeout_s: float = 5.0):
    """The first true answer; a test that waits in vain fails here."""
    deadline = time.monotonic() + timeout_s
    while not (answer := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
    return answer


@pytest.fixture(scope="session")
def library() -> Path:
    try:
        return install.library()
    except (OSError, subprocess.CalledProcessError) as exc:
        pytest.skip(f"the stand-in library cannot be built here: {exc}")


class Programs:
    """A node as a folder, and the programs that were started over it."""

    def __init__(self, root: Path, library: Path) -> None:
        self.root = root
        self.plugins = root / "kubelet/device-plugins"
        self.pod_resources = root / "kubelet/pod-resources/kubelet.sock"
        self.faults = root / "run/simgpu/kubelet.faults"
        self.env = {
            **os.environ,
            "SIMGPU_NVML": str(root / "run/simgpu/nvml"),
            "LD_LIBRARY_PATH": str(library.parent),
            "SOCKET_DIR": str(self.plugins),
        }
        self.running: list[subprocess.Popen[str]] = []

    def simgpu(self, *words: str) -> None:
        subprocess.run(
            [sys.executable, STANDINS / "simgpu.py", "--root", self.root, *words], check=True
        )

    def python(self, code: str, timeout_s: float = 10.0) -> subprocess.CompletedProcess[str]:
        """A program that uses NVML; its output is the answer."""
        return subprocess.run(
            [sys.executable, "-c", code],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def start(self, program: str, *words: str, **env: str) -> subprocess.Popen[str]:
        name = self.root / f"{program}.{len(self.running)}.log"
        with name.open("w") as log:
            made = subprocess.Popen(
                [sys.executable, STANDINS / program, *words],
                env={**self.env, **env},
                stderr=log,
                text=True,
            )
        made.log = name  # type: ignore[attr-defined]
        self.running.append(made)
        return made

    def kubelet(self, *words: str) -> subprocess.Popen[str]:
        options = {
            "root": self.root / "kubelet",
            "state": self.root / "state",
            "faults": self.faults,
        }
        argv = [word for key, value in options.items() for word in (f"--{key}", str(value))]
        made = self.start("kubelet.py", "--cri", "none", *argv, *words)
        wait_for(lambda: '"Started kubelet"' in text_of(made))
        return made

    def plugin(self, **env: str) -> subprocess.Popen[str]:
        return self.start("plugin.py", **env)

    def node(self) -> dict:
        path = self.root / "state"
        return json.loads(path.read_text()) if path.exists() else {}

    def allocatable(self) -> int | None:
        return self.node().get("allocatable", {}).get("nvidia.com/gpu")

    def capacity(self) -> int | None:
        return self.node().get("capacity", {}).get("nvidia.com/gpu")


@pytest.fixture
def programs(library: Path) -> Iterator[Programs]:
    with tempfile.TemporaryDirectory(prefix="sim-") as folder:  # a socket's path has but 107 bytes
        yield from _running(Programs(Path(folder), library))


def _running(made: Programs) -> Iterator[Programs]:
    made.simgpu("plug", "--gpus", "8")
    made.simgpu("nvml", "check-devices=off")
    yield made
    for one in made.running:
        if one.poll() is None:
            one.send_signal(signal.SIGKILL)
        one.wait()


def text_of(program: subprocess.Popen[str]) -> str:
    return program.log.read_text()  # type: ignore[attr-defined]
