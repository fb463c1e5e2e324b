"""journald's socket, as a socket in a temporary folder."""

from __future__ import annotations

import logging
import os
import socket
import struct

import pytest

from agent.transport.journald import JournalHandler


@pytest.fixture
def peer(tmp_path):
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as peer:
        peer.bind(path)
        peer.setblocking(False)
        yield peer


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


def test_a_message_too_large_for_a_datagram_is_sent_as_a_sealed_memfd(peer):
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
