"""The faces over HTTP: GET only, answered from memory. TCP on loopback, and a root-only unix socket.

/healthz  200 while cycles run on time, else 503
/readyz   200 only while GPU work may start, else 503; one line says why
/status   the whole of the last cycle as JSON, versioned
/metrics  the same for Prometheus
"""

from __future__ import annotations

import ipaddress
import json
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

from aiohttp import web

from .ask import SOCKET
from .metrics import CONTENT_TYPE

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Answers(Protocol):
    """What the faces are answered from."""

    def listen(self) -> str: ...

    def is_overdue(self) -> bool: ...

    def readiness(self) -> tuple[bool, str]: ...

    def status(self) -> dict[str, Any]: ...

    def metrics(self) -> str: ...


class Http:
    """Serves what the daemon saw last. A port that is taken costs the face, not the agent."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._runner: web.AppRunner | None = None
        self._listening = ""
        self.problem: str | None = None

    async def start(self) -> None:
        app = web.Application(middlewares=[self._only_known_hosts], client_max_size=1024)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/status", self._status)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/", self._index)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, keepalive_timeout=10)
        await self._runner.setup()
        await self._start_unix(self._runner)
        await self.keep()

    async def keep(self) -> None:
        """Listen where the configuration says, or say why not; tried again at every cycle."""
        wanted = self._answers.listen()
        if self._runner is None or wanted == self._listening:
            return
        for site in list(self._runner.sites):
            if isinstance(site, web.TCPSite):
                await site.stop()
        self._listening, self.problem = "", None
        if not wanted:
            return
        host, _, port = wanted.rpartition(":")
        try:
            await web.TCPSite(self._runner, host.strip("[]"), int(port), backlog=64).start()
        except OSError as exc:
            self.problem = f"HTTP cannot listen on {wanted}: {exc.strerror or exc}; see ss -ltnp"
            return
        self._listening = wanted
        if not _is_loopback(host):
            log.warning("HTTP listens on %s: whoever reaches it can read this node's GPU state", wanted)

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _start_unix(self, runner: web.AppRunner) -> None:
        path = Path(SOCKET)
        try:
            path.unlink(missing_ok=True)
            await web.UnixSite(runner, str(path)).start()
            path.chmod(0o600)
        except OSError as exc:
            log.warning("%s could not be opened (%s): gpu-gate status asks over HTTP", SOCKET, exc.strerror)

    @web.middleware
    async def _only_known_hosts(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """A web page must not read this node through a name that resolves to 127.0.0.1 (DNS rebinding)."""
        if not _is_known_host(request.headers.get("Host", "")):
            raise web.HTTPMisdirectedRequest(text="ask by address or as localhost\n")
        response = await handler(request)
        response.headers["Cache-Control"] = "no-store"
        return response

    async def _healthz(self, _request: web.Request) -> web.Response:
        if self._answers.is_overdue():
            return web.Response(status=503, text="a cycle is overdue\n")
        return web.Response(text="ok\n")

    async def _readyz(self, _request: web.Request) -> web.Response:
        ready, why = self._answers.readiness()
        if self._answers.is_overdue():
            return web.Response(status=503, text="a cycle is overdue: what was last seen is too old\n")
        return web.Response(status=200 if ready else 503, text=f"{why}\n")

    async def _status(self, _request: web.Request) -> web.Response:
        return web.json_response(self._answers.status(), dumps=_dumps)

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._answers.metrics().encode(), headers={"Content-Type": CONTENT_TYPE})

    async def _index(self, _request: web.Request) -> web.Response:
        return web.Response(text="gpu-gate: /healthz /readyz /status /metrics\n")


def _dumps(body: Any) -> str:
    return json.dumps(body, indent=1) + "\n"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _is_known_host(header: str) -> bool:
    """localhost or any address literal: a name that somebody else chose is neither."""
    host = header.rsplit(":", 1)[0] if not header.endswith("]") else header
    if host in ("localhost", ""):
        return True
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True
