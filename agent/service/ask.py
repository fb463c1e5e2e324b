"""Ask the running agent, with nothing but a socket: `wait` and `status` start in a blink."""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Iterator
from typing import Any

from ..core.common.paths import RUN

SOCKET = f"{RUN}/agent.sock"
LIMIT_BYTES = 8 << 20


class NoAgent(Exception):
    """The agent did not answer."""


def get(path: str, within_s: float = 2.0, listen: str = "") -> tuple[int, bytes]:
    """(HTTP status, body) of a GET to the agent: by its root-only socket, else by the configured
    address."""
    try:
        return _get(socket.AF_UNIX, SOCKET, path, within_s)
    except OSError as exc:
        if not listen:
            raise NoAgent(_sentence(exc)) from exc
    host, _, port = listen.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return _get(family, (host.strip("[]"), int(port)), path, within_s)
    except OSError as exc:
        raise NoAgent(_sentence(exc)) from exc


def status(within_s: float = 2.0, listen: str = "") -> dict[str, Any]:
    """The agent's /status."""
    code, body = get("/status", within_s, listen)
    try:
        found = json.loads(body)
    except ValueError as exc:
        raise NoAgent(f"the agent answered {code} with something else than JSON") from exc
    gate = found.get("gate") if isinstance(found, dict) else None
    if (
        code != 200
        or not isinstance(gate, dict)
        or not {"ready", "released_why", "deadline_in_s"} <= gate.keys()
    ):
        raise NoAgent(
            "the agent does not answer there, something else does: ss -ltnp; systemctl status "
            "gpu-gate"
        )
    return dict(found)


def _check_owner(port: int) -> None:
    """Anybody may listen on a port of 127.0.0.1 that the agent has not taken yet, or has let go of
    while it is restarted: what is not root's, or our own, is not believed. OSError.

    /proc/self/net/tcp lists what listens first (Linux net/ipv4/tcp_ipv4.c, tcp_seq_start), each
    with its user, and is there under ProcSubset=pid too, which /proc/net is not.
    """
    owners = {
        int(fields[7])
        for name in ("tcp", "tcp6")
        for fields in _listening(f"/proc/self/net/{name}")
        if int(fields[1].rpartition(":")[2], 16) == port
    }
    if not owners or owners - {0, os.geteuid()}:
        who = ", ".join(f"user {uid}" for uid in sorted(owners)) or "an unknown user"
        raise PermissionError(
            errno.EPERM, f"port {port} is held by {who} and not by root: ss -ltnp"
        )


def _listening(path: str) -> Iterator[list[str]]:
    try:
        with open(path, encoding="ascii") as table:
            next(table, None)
            for line in table:
                fields = line.split()
                if fields[3] != "0A":  # TCP_LISTEN, include/net/tcp_states.h
                    return
                yield fields
    except FileNotFoundError:
        return


def _sentence(exc: OSError) -> str:
    return f"the agent does not answer ({exc.strerror or exc}): systemctl status gpu-gate"


def _get(family: int, address: Any, path: str, within_s: float) -> tuple[int, bytes]:
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        connection.settimeout(within_s)
        connection.connect(address)
        if family != socket.AF_UNIX:
            _check_owner(address[1])
        connection.sendall(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
        parts, size = [], 0
        while (part := connection.recv(1 << 16)) and size < LIMIT_BYTES:
            parts.append(part)
            size += len(part)
    head, _, body = b"".join(parts).partition(b"\r\n\r\n")
    code = head.split(b" ", 2)[1:2]
    if not code or not code[0].isdigit():
        raise ConnectionError("no HTTP answer")
    return int(code[0]), body
