"""`gpu-gate node`: ask the agent, compare with the Node, write what differs. One loop, and a
thread that watches the Node."""

from __future__ import annotations

import logging
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from ..model.errors import ApiError
from ..model.settings import Settings
from ..transport.clock import boottime
from ..transport.kube_api import ApiServer
from ..transport.sd_notify import Notify
from . import decide, report
from .outage import Outage
from .readiness import AgentReadiness, from_status, no_answer
from .watcher import Watcher

log = logging.getLogger(__name__)

ASK_S = 2.0
"""Interval of the requests to /readyz: one line over loopback."""
FRESH_S = 30.0
"""/status is read when the answer of /readyz changes, and otherwise at this interval."""
REPORT_S = 30.0
TAINT_RETRY_S = 3600.0
FORBIDDEN = 403
MOST_PATCHES = 3


class Agent:
    """The agent's readiness, polled by /readyz; /status is read only when that answer changes."""

    def __init__(
        self,
        readyz: Callable[[], tuple[int, bytes]],
        status: Callable[[], dict[str, Any]],
        no_agent: type[Exception],
    ) -> None:
        self._readyz, self._status, self._no_agent = readyz, status, no_agent
        self._last: tuple[int, bytes] | None = None
        self._readiness = no_answer("the agent has not been asked yet")
        self._read_at = 0.0

    def readiness(self, now: float) -> AgentReadiness:
        try:
            answer = self._readyz()
            if answer != self._last or now - self._read_at > FRESH_S:
                readiness = from_status(self._status())
                if readiness.ready and answer[0] != 200:  # it changed between the two requests
                    readiness = AgentReadiness(
                        None, "NotVerified", "the agent's two answers differ"
                    )
                    answer = (0, b"")
                self._readiness, self._read_at, self._last = readiness, now, answer
        except self._no_agent as exc:
            self._readiness, self._last = no_answer(str(exc)), None
        return self._readiness


class Barrier:
    """Keeps condition, label and startup taint of one Node."""

    def __init__(
        self,
        settings: Settings,
        agent: Agent,
        api: Callable[[], ApiServer],
        boot_id: str,
        clock: Callable[[], float],
        realtime: Callable[[], float],
        sleep: Callable[[float], object] | None = None,
        report_path: str = report.PATH,
    ) -> None:
        self._report_path = report_path
        self._settings, self._agent, self._boot_id = settings, agent, boot_id
        self._clock, self._realtime = clock, realtime
        self._name = settings.node_name or socket.gethostname().lower()
        self._api = api()
        self._wake = threading.Event()
        self._stop = threading.Event()
        self.watcher = Watcher(api(), self._name, self._wake.set, clock, sleep)
        self._writing = Outage("writing to the Node")
        self._write_after = 0.0
        self._no_taint_until = 0.0
        self._state: decide.BarrierState | None = None
        self._asked_at = -ASK_S
        self._reported: tuple[Any, ...] = ()
        self._reported_at = 0.0
        self._notify = Notify()

    def stop(self) -> None:
        self._stop.set()
        self._wake.set()

    def close(self, within_s: float = 0.0) -> None:
        self.watcher.close(within_s)
        self._api.close()

    def run(self) -> None:
        """Run until stop(), then set the condition to Unknown and close the barrier.

        Raises RuntimeError if the watching thread has ended: its view of the Node would grow old.
        systemd restarts the service then.
        """
        log.info(
            "barrier of node %s: condition %s, label %s, startup taint %s",
            self._name,
            *(
                key or "none"
                for key in (
                    self._settings.node_condition,
                    self._settings.node_label,
                    self._settings.node_taint,
                )
            ),
        )
        self.watcher.start()
        self._notify.ready()
        while not self._stop.is_set():
            if not self.watcher.is_alive():
                raise RuntimeError(
                    "the thread that follows the Node has ended: its traceback is above"
                )
            self.turn()
            self._notify.watchdog()
            self._wake.wait(ASK_S)
            self._wake.clear()
        self._notify.stopping()
        self._withdraw()
        self.close()

    def turn(self) -> None:
        """Ask the agent if that is due, and write what differs on the Node."""
        now = self._clock()
        node, seen_at = self.watcher.seen()
        if node is not None and self._state is None:
            self._state = decide.adopt(node, self._boot_id, self._settings)
        if self._state is not None and now - self._asked_at >= ASK_S * 0.9:
            self._asked_at = now
            self._state = self._step(self._state, self._agent.readiness(now), now)
        if self._state is not None and now >= self._write_after:
            self._write(self._state, now)
        self._report(seen_at, now)

    def _step(
        self, before: decide.BarrierState, readiness: AgentReadiness, now: float
    ) -> decide.BarrierState:
        after = decide.step(before, readiness, now, self._settings)
        if (after.is_open, after.status, after.readiness.reason) != (
            before.is_open,
            before.status,
            before.readiness.reason,
        ):
            log.info("%s: %s", "open" if after.is_open else "closed", after.readiness.line)
            self._notify.status(f"{'open' if after.is_open else 'closed'}: {after.readiness.line}")
        return after

    def _write(self, state: decide.BarrierState, now: float) -> None:
        """Send one patch after the other, each computed from the Node as the last one left it."""
        for _ in range(MOST_PATCHES):
            node, _ = self.watcher.seen()
            todo = (
                decide.patches(
                    state,
                    node,
                    self._boot_id,
                    self._realtime(),
                    self._settings,
                    now >= self._no_taint_until,
                )
                if node is not None
                else ()
            )
            if not todo:
                return
            patch = todo[0]
            try:
                self.watcher.take(self._api.patch(self._name, patch.body, patch.status))
            except ApiError as error:
                self._refused(patch, error, now)
                return
            self._writing.ended(now)
            if not patch.status:
                log.info("the node is %s for GPU work", "open" if patch.opens else "closed")

    def _refused(self, patch: decide.Patch, error: ApiError, now: float) -> None:
        if error.code == FORBIDDEN and "spec" in patch.body:
            # A kubelet's credential may not change taints (NodeRestriction). The label alone is
            # still useful.
            log.warning(
                "the API server refused to change the startup taint; retrying in an hour, label "
                "and condition are kept up to date: %s",
                error,
            )
            self._no_taint_until = now + TAINT_RETRY_S
            self._wake.set()
            return
        self._write_after = now + self._writing.failed(error, now)
        if error.code == 409:
            self._reread()

    def _reread(self) -> None:
        try:
            self.watcher.take(self._api.node(self._name))
        except ApiError as error:
            self._write_after = self._clock() + self._writing.failed(error, self._clock())

    def _withdraw(self) -> None:
        """Try three times without a pause: systemd kills the service after ten seconds."""
        state = decide.stopped()
        for _ in range(3):
            self._write(state, self._clock())

    def _report(self, seen_at: float, now: float) -> None:
        node, _ = self.watcher.seen()
        trouble = self.watcher.outage.sentence or self._writing.sentence
        known = (node.version if node else "", trouble)
        if known != self._reported or now - self._reported_at >= REPORT_S:
            self._reported, self._reported_at = known, now
            report.write(report.report(node, seen_at, trouble), self._report_path)


def run(settings: Settings, agent: Agent, boot_id: str) -> int:
    """The program of gpu-gate-node.service."""
    barrier = Barrier(
        settings, agent, lambda: ApiServer(settings.node_kubeconfig), boot_id, boottime, time.time
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: barrier.stop())
    barrier.run()
    return 0
