"""systemd's notify socket and journald's, as sockets in a temporary folder."""

from __future__ import annotations

import logging
import os
import socket
import struct

import pytest

from agent.transport.sd import JournalHandler, Notify


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


def test_systemd_is_told(peer, environ):
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


def test_without_a_socket_nothing_is_said(environ):
    notify = Notify()
    assert not notify.ready()
    assert notify.problem is None
    assert notify.watchdog_s is None


def test_a_watchdog_meant_for_another_process_is_not_ours(environ):
    environ("WATCHDOG_USEC", "1000000")
    environ("WATCHDOG_PID", "1")
    assert Notify().watchdog_s is None


def test_a_socket_that_went_away_is_a_problem_not_an_exception(peer, environ):
    environ("NOTIFY_SOCKET", peer.getsockname())
    notify = Notify()
    peer.close()
    assert not notify.ready()
    assert "did not take a message" in notify.problem
    notify.close()


def _journal(peer) -> tuple[JournalHandler, logging.Logger]:
    handler = JournalHandler("gpu-gate", path=peer.getsockname())
    logger = logging.Logger("agent.daemon")
    logger.addHandler(handler)
    return handler, logger


def _parse(data: bytes) -> dict[str, str]:
    """The native protocol, read as journald reads it."""
    fields = {}
    while data:
        line, _, data = data.partition(b"\n")
        name, equals, value = line.partition(b"=")
        if not equals:
            (length,) = struct.unpack("<Q", data[:8])
            value, end, data = (
                data[8 : 8 + length],
                data[8 + length : 9 + length],
                data[9 + length :],
            )
            assert end == b"\n"
        fields[name.decode()] = value.decode()
    return fields


def test_a_record_arrives_as_fields(peer):
    handler, logger = _journal(peer)
    more = {
        "gpu_gate_phase": "OPEN",
        "message_id": "0" * 32,
        "_trusted": "x\ny",
        "bad name": 8,
        "9": "",
    }
    logger.warning("gate %s", "opened", extra={"gpu_gate_fields": more})
    fields = _parse(peer.recv(65536))
    assert fields["MESSAGE"] == "gate opened"
    assert fields["PRIORITY"] == "4"
    assert fields["SYSLOG_IDENTIFIER"] == "gpu-gate"
    assert fields["GPU_GATE_PHASE"] == "OPEN"
    assert fields["MESSAGE_ID"] == "0" * 32
    assert fields["TRUSTED"] == "x\ny"
    assert fields["BAD_NAME"] == "8"
    assert fields["CODE_FUNC"] == "test_a_record_arrives_as_fields"
    assert "" not in fields
    handler.close()


@pytest.mark.parametrize(
    ("level", "priority"), [(10, "7"), (20, "6"), (30, "4"), (40, "3"), (50, "2")]
)
def test_levels_are_syslog_priorities(peer, level, priority):
    handler, logger = _journal(peer)
    logger.log(level, "x")
    assert _parse(peer.recv(65536))["PRIORITY"] == priority
    handler.close()


def test_a_traceback_is_one_message(peer):
    handler, logger = _journal(peer)
    try:
        raise ValueError("\udcff")
    except ValueError:
        logger.exception("it broke")
    message = _parse(peer.recv(65536))["MESSAGE"]
    assert message.startswith("it broke\nTraceback")
    assert message.endswith("\\udcff")
    handler.close()


def test_a_message_too_large_for_a_datagram_comes_as_a_sealed_memfd(peer):
    handler, logger = _journal(peer)
    logger.error("x" * 3_000_000)
    _, fds, _, _ = socket.recv_fds(peer, 1, 1)
    with os.fdopen(fds[0], "rb") as file:
        file.seek(0)
        assert len(_parse(file.read())["MESSAGE"]) == 1 << 20
    assert handler.dropped == 0
    handler.close()


def test_a_full_socket_drops_and_counts_and_never_blocks(peer):
    handler, logger = _journal(peer)
    while not handler.dropped:
        logger.info("again")
    assert peer.recv(65536)
    logger.info("and again")
    assert handler.dropped == 1
    handler.close()


def test_no_journald_drops_and_counts(peer):
    handler, logger = _journal(peer)
    os.unlink(peer.getsockname())
    logger.info("unheard")
    assert handler.dropped == 1
    handler.close()
