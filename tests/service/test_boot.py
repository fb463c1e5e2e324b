"""The first agent of a boot: without GPUs it reports READY at once, and its first snapshot comes
later; with GPUs the first probe comes before the first snapshot."""

from __future__ import annotations

import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent.host import marks
from agent.model.settings import Settings
from agent.service import boot

from .sandbox import ENDS_WITHIN_S, REPO, Node

QUIET = "STATUS=no NVIDIA GPU on the PCI bus; checking again"


@pytest.fixture
def systemd() -> Iterator[socket.socket]:
    """Its notification socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as peer:
        peer.bind(f"\0gpu-gate-{secrets.token_hex(8)}")
        peer.settimeout(ENDS_WITHIN_S)
        yield peer


@pytest.fixture
def agent(node: Node, systemd: socket.socket) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    children: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        notify = "@" + systemd.getsockname()[1:].decode()
        children.append(
            subprocess.Popen(
                node.argv(sys.executable, "-m", "agent", "run"),
                cwd=REPO,
                env=node.env(NOTIFY_SOCKET=notify),
                stderr=subprocess.DEVNULL,
            )
        )
        return children[-1]

    yield start
    for child in children:
        child.kill()
        child.wait()


def test_without_gpus_the_agent_reports_ready_and_loads_later(
    node: Node, systemd: socket.socket, agent
) -> None:
    child = agent()
    assert systemd.recv(4096).decode().startswith(QUIET)
    assert systemd.recv(4096) == b"READY=1"
    child.send_signal(signal.SIGHUP)  # no end of it: a reload asks for a look
    while not systemd.recv(4096).startswith(b"STATUS=NOT_APPLICABLE, ready: no NVIDIA GPU"):
        pass
    assert (node.run / "first-look").exists()
    assert child.poll() is None


def with_a_gpu(node: Node) -> None:
    node.pci("0000:07:00.0")


def looked_before(node: Node) -> None:
    (node.run / "first-look").write_text('{"reason": "x", "at": 1.0}')


def installed_on_a_running_node(node: Node) -> None:
    (node.run / "released").write_text("installed on a running node\n")


def expected(node: Node) -> None:
    node.conf("[Gate]\nExpectedGPUs=8\n")


@pytest.mark.parametrize(
    "prepare", [with_a_gpu, looked_before, installed_on_a_running_node, expected]
)
def test_otherwise_the_agent_starts_completely_at_once(
    node: Node, systemd: socket.socket, agent, prepare
) -> None:
    prepare(node)
    agent()
    assert systemd.recv(4096) == b"READY=1"


class Host:
    """A host whose driver holds a GPU, as a folder, and the probes that were started on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings = Settings()
        self.started: list[tuple[str, str, bool]] = []
        self.left: list[int] = []
        for name in ("run", "units", "gpus/0000:07:00.0"):
            (folder / name).mkdir(parents=True)
        self.says("version", "NVRM version")
        self.says("initstate", "live\n")

    def says(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    host = Host(tmp_path)
    for name, path in (
        ("DRIVER_VERSION", "version"),
        ("MODULE_STATE", "initstate"),
        ("DRIVER_GPUS", "gpus"),
        ("RUN", "run"),
    ):
        monkeypatch.setattr(boot, name, str(tmp_path / path))
    monkeypatch.setattr(marks, "RUN", str(tmp_path / "run"))
    monkeypatch.setattr(boot, "UNIT_FOLDERS", (str(tmp_path / "units"),))
    monkeypatch.setattr(boot, "CONTAINER_MARKS", (str(tmp_path / "container"),))
    monkeypatch.setattr(boot, "leftovers", lambda: host.left)
    monkeypatch.setattr(
        boot, "start", lambda root, needs, holds: host.started.append((root, needs, holds))
    )
    return host


def test_nvml_is_probed_at_once_if_the_driver_holds_gpus(host: Host) -> None:
    host.settings = Settings(driver_root="/run/nvidia/driver", expected_gpus=("8",))
    boot.first_probe(host.settings)
    assert host.started == [("/run/nvidia/driver", str(host.folder / "version"), True)]


# why a look must come first
NOT_YET: dict[str, Callable[[Host], object]] = {
    "an agent has looked in this boot": lambda h: h.says(
        "run/first-look", '{"reason": "x", "at": 1.0}'
    ),
    "installed on a running node": lambda h: h.says("run/released", "installed on a running node"),
    "paused": lambda h: h.says("run/paused", ""),
    "no driver": lambda h: (h.folder / "version").unlink(),
    "a driver that is loading": lambda h: h.says("initstate", "coming\n"),
    "no state of the driver": lambda h: (h.folder / "initstate").unlink(),
    "a driver without GPUs": lambda h: (h.folder / "gpus/0000:07:00.0").rmdir(),
    "MIG will be set up": lambda h: (h.folder / "units/nvidia-mig-manager.service").symlink_to(
        "/nowhere"
    ),
    "a container": lambda h: h.says("container", "docker"),
    "an earlier agent's probe that nothing ends": lambda h: h.left.append(4242),
    "a GPU set apart": lambda h: setattr(
        h, "settings", replace(h.settings, exclude_gpus=("0000:07:00.0",))
    ),
    "no GPU expected": lambda h: setattr(h, "settings", replace(h.settings, expected_gpus=("0",))),
}


@pytest.mark.parametrize("prepare", NOT_YET.values(), ids=NOT_YET)
def test_otherwise_a_snapshot_comes_first(host: Host, prepare: Callable[[Host], object]) -> None:
    prepare(host)
    assert boot.first_probe(host.settings) is None
    assert host.started == []
