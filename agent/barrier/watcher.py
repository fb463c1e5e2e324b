"""The Node as the API server shows it, kept up to date by a watch in a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from ..model.errors import ApiError
from ..transport.kube_api import ApiServer
from .outage import Outage
from .view import NodeView, is_older, view

log = logging.getLogger(__name__)

GONE, NOT_FOUND = 410, 404
BRIEF_S = 5.0
"""A watch that ends sooner counts as failed: the next one starts after a pause."""


class Watcher:
    """Reads the Node once, then follows its changes."""

    def __init__(
        self,
        api: ApiServer,
        name: str,
        wake: Callable[[], object],
        clock: Callable[[], float],
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        self._api, self._name, self._wake, self._clock = api, name, wake, clock
        self._closed = threading.Event()
        self._sleep = sleep or self._closed.wait
        self._lock = threading.Lock()
        self._seen: NodeView | None = None
        self._seen_at = 0.0
        self._version = ""
        self.outage = Outage("reading the Node")
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, within_s: float = 0.0) -> None:
        """Stop watching. A thread that waits for the server ends with the program."""
        self._closed.set()
        self._thread.join(within_s)

    def is_alive(self) -> bool:
        """False only after an unexpected exception: otherwise the thread retries for ever."""
        return self._thread.is_alive()

    def seen(self) -> tuple[NodeView | None, float]:
        """The Node (None if it does not exist) and the boottime in seconds of the last answer."""
        with self._lock:
            return self._seen, self._seen_at

    def take(self, node: dict[str, Any]) -> None:
        """Take a Node from the answer to a patch or from a read. An older one is ignored."""
        found = view(node)
        with self._lock:
            self._seen_at = self._clock()
            if self._seen is None or not is_older(found.version, self._seen.version):
                self._seen = found

    def _run(self) -> None:
        while not self._closed.is_set():
            began = self._clock()
            try:
                self._follow()
                if self._clock() - began < BRIEF_S:
                    raise ApiError("the watch ended as soon as it began")
            except ApiError as error:
                pause_s = self.outage.failed(
                    error, self._clock()
                )  # before the Node is cleared, so that the reason is known by then
                if error.code in (GONE, NOT_FOUND):  # the server keeps minutes of history only
                    self._version = ""
                if error.code == NOT_FOUND:
                    with self._lock:
                        self._seen = None
                self._wake()
                if not self._closed.is_set():
                    self._sleep(pause_s)
        self._api.close()

    def _follow(self) -> None:
        if not self._version:
            node = self._api.node(self._name)
            self._version = view(node).version
            with self._lock:  # a recreated Node has versions of its own
                self._seen, self._seen_at = view(node), self._clock()
            self._wake()
        for kind, found in self._api.watch(self._name, self._version):
            self.outage.ended(self._clock())
            if kind == "DELETED":
                raise ApiError(f"the Node {self._name} was deleted", NOT_FOUND)
            if kind:
                self._version = view(found).version or self._version
            if kind in ("ADDED", "MODIFIED"):
                self.take(found)
                self._wake()
            else:
                with self._lock:
                    self._seen_at = self._clock()
