"""The agent's first seconds on a host without GPUs: systemd is told at once, and the first look comes later."""

from __future__ import annotations

import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from .sandbox import ENDS_WITHIN_S, REPO, Node

QUIET = "STATUS=no NVIDIA GPU on the PCI bus; looks again"


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
        children.append(subprocess.Popen(node.argv(sys.executable, "-m", "agent", "run"), cwd=REPO,
                                         env=node.env(NOTIFY_SOCKET=notify), stderr=subprocess.DEVNULL))
        return children[-1]

    yield start
    for child in children:
        child.kill()
        child.wait()


def test_it_says_that_it_is_up_and_looks_later(node: Node, systemd: socket.socket, agent) -> None:
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


@pytest.mark.parametrize("prepare", [with_a_gpu, looked_before, installed_on_a_running_node, expected])
def test_otherwise_it_looks_at_once(node: Node, systemd: socket.socket, agent, prepare) -> None:
    prepare(node)
    agent()
    assert systemd.recv(4096) == b"READY=1"
