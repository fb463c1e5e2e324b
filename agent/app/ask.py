"""Ask the running agent, with nothing but a socket: `wait` and `status` start in a blink."""

from __future__ import annotations

import json
import socket
from typing import Any

from ..core.paths import RUN

SOCKET = f"{RUN}/agent.sock"
LIMIT_BYTES = 8 << 20


class NoAgent(Exception):
    """The agent did not answer."""


def get(path: str, within_s: float = 2.0, listen: str = "") -> tuple[int, bytes]:
    """(HTTP status, body) of a GET to the agent: by its root-only socket, else by the configured address."""
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
    if code != 200 or not isinstance(gate, dict) or not {"ready", "released_why", "deadline_in_s"} <= gate.keys():
        raise NoAgent("the agent does not answer there, something else does: ss -ltnp; systemctl status gpu-gate")
    return dict(found)


def _sentence(exc: OSError) -> str:
    return f"the agent does not answer ({exc.strerror or exc}): systemctl status gpu-gate"


def _get(family: int, address: Any, path: str, within_s: float) -> tuple[int, bytes]:
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        connection.settimeout(within_s)
        connection.connect(address)
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
