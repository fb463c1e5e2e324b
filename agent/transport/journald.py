"""Log records for journald, by its native protocol (systemd.io/JOURNAL_NATIVE_PROTOCOL).

A datagram holds KEY=value lines; a value with a newline is written as KEY, newline, its length as a
64-bit little-endian number, the value. What no datagram holds goes in a sealed memfd.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import socket
import sys
from collections.abc import Mapping

JOURNAL_SOCKET = "/run/systemd/journal/socket"
JOURNAL_LIMIT_BYTES = 1 << 20
"""The most of one field's value that is sent; the rest is cut off."""
_PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))


class JournalHandler(logging.Handler):
    """Sends log records to journald as fields. It never blocks: with a full socket it drops the
    record."""

    def __init__(
        self,
        identifier: str,
        *,
        path: str = JOURNAL_SOCKET,
        fields_attribute: str = "gpu_gate_fields",
    ) -> None:
        """`fields_attribute` names the record's dict of further fields; its keys become upper case.
        A key MESSAGE_ID in it (32 hex digits) is found by `journalctl MESSAGE_ID=`."""
        super().__init__()
        self.dropped = 0
        """The number of records that journald did not receive."""
        self._identifier, self._path, self._fields_attribute = identifier, path, fields_attribute
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)

    def emit(self, record: logging.LogRecord) -> None:
        fields = {
            "MESSAGE": self.format(record),
            "PRIORITY": str(next((p for level, p in _PRIORITIES if record.levelno >= level), 7)),
            "SYSLOG_IDENTIFIER": self._identifier,
            "LOGGER": record.name,
            "CODE_FILE": record.pathname,
            "CODE_LINE": str(record.lineno),
            "CODE_FUNC": record.funcName or "",
        }
        more: Mapping[str, object] = getattr(record, self._fields_attribute, None) or {}
        fields.update((_field_name(name), str(value)) for name, value in more.items())
        try:
            self._send(b"".join(_entry(name, value) for name, value in fields.items() if name))
        except OSError:
            self.dropped += 1

    def close(self) -> None:
        self._socket.close()
        super().close()

    def _send(self, message: bytes) -> None:
        """Send to the path, without connecting: journald may have been restarted."""
        try:
            self._socket.sendto(message, self._path)
        except OSError as exc:
            if exc.errno != errno.EMSGSIZE:
                raise
            self._send_memfd(message)

    def _send_memfd(self, message: bytes) -> None:
        fd = os.memfd_create("journal-entry", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            with open(fd, "wb", closefd=False) as file:
                file.write(message)
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, fd.to_bytes(4, sys.byteorder))
            self._socket.sendmsg([], [rights], 0, self._path)
        finally:
            os.close(fd)


def _field_name(name: str) -> str:
    """A valid field name: A-Z, 0-9 and _, at most 64 characters, beginning with a letter; empty
    where nothing is left."""
    return re.sub(r"[^A-Z0-9]", "_", name.upper()).lstrip("_0123456789")[:64]


def _entry(name: str, value: str) -> bytes:
    data = value.encode("utf-8", "backslashreplace")[:JOURNAL_LIMIT_BYTES]
    if b"\n" in data:
        return name.encode() + b"\n" + len(data).to_bytes(8, "little") + data + b"\n"
    return name.encode() + b"=" + data + b"\n"
