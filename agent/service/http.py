"""Status over HTTP: GET only, answered from memory. TCP on loopback, and a root-only unix socket.

* `/`         a page that shows the chain and polls /status
* `/healthz`  200 while cycles run on time, else 503
* `/readyz`   200 only while GPU work may start, else 503; one line shows why
* `/status`   the whole last cycle as JSON, versioned (docs/status.schema.json)
* `/metrics`  the same for Prometheus
"""

from __future__ import annotations

import errno
import ipaddress
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from ..transport.http import Answer, Server
from . import page
from .ask import SOCKET
from .chain import printable
from .metrics import CONTENT_TYPE

log = logging.getLogger(__name__)

FRESH_S = 0.2
"""/status and /metrics are rendered at most once per cycle and interval; ages lag by as much."""
HEADERS = (
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)
LOW_PORT = (
    "the agent's unit lacks CAP_NET_BIND_SERVICE, for ports below 1024: name a "
    "higher one in [Http] Listen="
)
NOTHING = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


class Answers(Protocol):
    """What HTTP responses are made from."""

    def listen(self) -> str: ...

    def cycles(self) -> int: ...

    def is_overdue(self) -> bool: ...

    def readiness(self) -> tuple[bool, str]: ...

    def status(self) -> dict[str, Any]: ...

    def metrics(self) -> str: ...


class Http:
    """Serves the last cycle. If the port is in use, only HTTP fails, not the agent."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._unix: Server | None = None
        self._tcp: Server | None = None
        self._listening = ""
        self._cache: dict[str, tuple[int, float, bytes]] = {}
        self._paths: dict[str, Callable[[], Answer]] = {
            "/": page.answer,
            "/healthz": self._healthz,
            "/readyz": self._readyz,
            "/status": self._status,
            "/metrics": self._metrics,
        }
        self._problem: str | None = None

    @property
    def problem(self) -> str | None:
        """Why HTTP does not answer, as a sentence; None while it does."""
        shut = next(
            (s.problem for s in (self._tcp, self._unix) if s is not None and s.problem), None
        )
        return self._problem or (f"HTTP: {shut}" if shut else None)

    async def start(self) -> None:
        self._unix = await self._listen_unix()
        await self.keep()

    async def keep(self) -> None:
        """Listen on the configured address, or keep the reason in `problem`. Called every cycle."""
        wanted = self._answers.listen()
        if wanted == self._listening:
            return
        if self._tcp is not None:
            self._tcp.close()
        self._tcp, self._listening, self._problem = None, "", None
        if not wanted:
            return
        host, _, port = wanted.rpartition(":")
        server = Server(self._answer)
        try:
            await server.listen(host.strip("[]"), int(port))
        except OSError as exc:
            todo = LOW_PORT if exc.errno == errno.EACCES else "see ss -ltnp"
            self._problem = f"HTTP cannot listen on {wanted}: {exc.strerror or exc}; {todo}"
            return
        self._tcp, self._listening = server, wanted
        if not _is_loopback(host):
            log.warning(
                "HTTP listens on %s: every host that reaches it can read this node's state",
                wanted,
            )

    def close(self) -> None:
        for server in (self._tcp, self._unix):
            if server is not None:
                server.close()

    async def _listen_unix(self) -> Server | None:
        path, server = Path(SOCKET), Server(self._answer)
        try:
            path.unlink(missing_ok=True)
            await server.listen_unix(str(path))
            path.chmod(0o600)
        except OSError as exc:
            log.warning(
                "%s could not be opened (%s): gpu-gate status asks over HTTP", SOCKET, exc.strerror
            )
            return None
        return server

    def _answer(self, path: str, host: str) -> Answer:
        """Refuse a Host header with a name: a web page must not read this node through a name that
        resolves to 127.0.0.1 (DNS rebinding)."""
        if not _is_known_host(host):
            answer = _line(421, "ask by address or as localhost")
        elif path in self._paths:
            answer = self._paths[path]()
        else:
            answer = _line(404, f"not found; paths: {' '.join(self._paths)}")
        csp = (
            ()
            if any(name == page.POLICY for name, _ in answer.headers)
            else ((page.POLICY, NOTHING),)
        )
        return Answer(answer.code, answer.body, answer.kind, (*HEADERS, *csp, *answer.headers))

    def _healthz(self) -> Answer:
        return _line(503, "a cycle is overdue") if self._answers.is_overdue() else _line(200, "ok")

    def _readyz(self) -> Answer:
        ready, why = self._answers.readiness()
        if self._answers.is_overdue():
            return _line(503, "a cycle is overdue: the last snapshot is too old")
        return _line(200 if ready else 503, printable(" ".join(why.split())))

    def _status(self) -> Answer:
        return Answer(
            200,
            self._fresh("/status", lambda: json.dumps(self._answers.status(), indent=1) + "\n"),
            "application/json; charset=utf-8",
        )

    def _metrics(self) -> Answer:
        return Answer(200, self._fresh("/metrics", self._answers.metrics), CONTENT_TYPE)

    def _fresh(self, path: str, write: Callable[[], str]) -> bytes:
        """Return a body from the cache: a thousand requests a second must not render each time."""
        cycles, now = self._answers.cycles(), time.monotonic()
        number, at, body = self._cache.get(path, (-1, 0.0, b""))
        if number != cycles or now - at > FRESH_S:
            body = write().encode("utf-8", "replace")
            self._cache[path] = (cycles, now, body)
        return body


def _line(code: int, sentence: str) -> Answer:
    return Answer(code, f"{sentence}\n".encode("utf-8", "replace"))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _is_known_host(header: str) -> bool:
    """True for localhost and for an address literal."""
    host = header.rsplit(":", 1)[0] if not header.endswith("]") else header
    if host in ("localhost", ""):
        return True
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True
