"""systemd's notify socket, as a socket in a temporary folder."""

from __future__ import annotations

import os
import socket

import pytest

from agent.transport.sd_notify import Notify


@pytest.fixture
def peer(tmp_path):
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as peer:
        peer.bind(path)
        peer.setblocking(False)
        yield peer


@pytest.fixture
def environ(monkeypatch):
    for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch.setenv


def test_systemd_is_notified(peer, environ):
    environ("NOTIFY_SOCKET", peer.getsockname())
    environ("WATCHDOG_USEC", "90000000")
    environ("WATCHDOG_PID", str(os.getpid()))
    notify = Notify()
    assert notify.watchdog_s == 90.0
    assert notify.ready() and notify.watchdog() and notify.reloading() and notify.stopping()
    said = [peer.recv(4096) for _ in range(4)]
    assert said[0] == b"READY=1"
    assert said[1] == b"WATCHDOG=1"
    assert said[2].startswith(b"RELOADING=1\nMONOTONIC_USEC=")
    assert said[3] == b"STOPPING=1"
    assert notify.problem is None
    notify.close()


def test_a_status_beyond_ascii_arrives_as_one_line(peer, environ):
    environ("NOTIFY_SOCKET", peer.getsockname())
    notify = Notify()
    assert notify.status("7 of 8 · 就绪\nREADY=1\x1b[2J")
    assert peer.recv(4096) == b"STATUS=7 of 8 ? ?? READY=1?[2J"
    notify.close()


def test_without_a_socket_there_is_no_finding(environ):
    notify = Notify()
    assert not notify.ready()
    assert notify.problem is None
    assert notify.watchdog_s is None


def test_a_watchdog_for_another_process_is_ignored(environ):
    environ("WATCHDOG_USEC", "1000000")
    environ("WATCHDOG_PID", "1")
    assert Notify().watchdog_s is None


def test_a_removed_socket_is_a_problem_not_an_exception(peer, environ):
    environ("NOTIFY_SOCKET", peer.getsockname())
    notify = Notify()
    peer.close()
    assert not notify.ready()
    assert "did not receive a message" in notify.problem
    notify.close()
