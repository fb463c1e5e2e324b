"""The pod-resources API of the stand-in kubelet: rate limited as the real one, and breakable on
demand.

The faults file holds at most one word for it, read again at every call:
``podresources hang | garbage | empty | unavailable | unimplemented | slow=SECONDS | refuse |
absent``.
``refuse``: the socket's file is there and nobody listens; ``absent``: the file is gone.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import grpc

from sim import rpc
from sim.wire import pod_resources_api as api


class RateLimit:
    """A token bucket: 100 a second, 10 at once, as the kubelet's."""

    def __init__(self, per_s: float = 100.0, burst: int = 10) -> None:
        self.per_s, self.burst = per_s, burst
        self.tokens, self.at = float(burst), time.monotonic()
        self.lock = threading.Lock()

    def takes_one(self) -> bool:
        with self.lock:
            now = time.monotonic()
            self.tokens = min(self.burst, self.tokens + (now - self.at) * self.per_s)
            self.at = now
            if self.tokens < 1:
                return False
            self.tokens -= 1
            return True


class PodResources:
    def __init__(
        self,
        path: Path,
        faults: Path,
        allocatable: Callable[[], dict[str, list[str]]],
        pods: Callable[[], list],
        limit: RateLimit,
    ) -> None:
        """``pods`` answers with tuples: name, namespace, [(container, [entries])]."""
        self.path, self.faults, self.limit = path, faults, limit
        self.allocatable, self.pods = allocatable, pods
        self.server: grpc.Server | None = None

    def start(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._listen()
        threading.Thread(target=self._follow_faults, daemon=True).start()

    def _listen(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()
        methods = {
            "List": rpc.unary(self._guarded(self._list), api.ListPodResourcesRequest),
            "GetAllocatableResources": rpc.unary(
                self._guarded(self._all), api.AllocatableResourcesRequest
            ),
            "Get": rpc.unary(self._guarded(self._get), api.GetPodResourcesRequest),
        }
        self.server = rpc.serve(self.path, "v1.PodResourcesLister", methods, threads=64)

    def fault(self) -> str:
        with contextlib.suppress(OSError):
            for line in self.faults.read_text().splitlines():
                if line.startswith("podresources "):
                    return line.split()[1]
        return ""

    def _follow_faults(self) -> None:
        """The two faults that are not an answer: the socket itself changes when the word does."""
        before = ""
        while True:
            fault = self.fault()
            if fault in ("refuse", "absent") and fault != before:
                if self.server:
                    self.server.stop(None).wait()
                    self.server = None
                self.path.unlink(missing_ok=True)
                if fault == "refuse":
                    with socket.socket(socket.AF_UNIX) as left:
                        left.bind(str(self.path))
            elif fault not in ("refuse", "absent") and not self.server:
                self._listen()
            before = fault
            time.sleep(0.2)

    def _guarded(self, handler):
        def guarded(request, context):
            if not self.limit.takes_one():
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
            fault = self.fault()
            while fault == "hang" and context.is_active():
                time.sleep(0.1)
                fault = self.fault()
            if fault.startswith("slow="):
                time.sleep(float(fault[5:]))
            if fault == "garbage":
                return b"\xff\xfe\xfd not a message \x00\x80"
            if fault == "unavailable":
                context.abort(grpc.StatusCode.UNAVAILABLE, "connection error")
            if fault == "unimplemented":
                context.abort(
                    grpc.StatusCode.UNIMPLEMENTED, "unknown service v1.PodResourcesLister"
                )
            return handler(request, context, fault == "empty")

        return guarded

    def _all(self, request, context, is_empty: bool):
        answer = api.AllocatableResourcesResponse()
        for name, ids in ({} if is_empty else self.allocatable()).items():
            for one in ids:
                answer.devices.add(resource_name=name, device_ids=[one])
        return answer

    def _fill(self, pod, name: str, namespace: str, containers) -> None:
        pod.name, pod.namespace = name, namespace
        for container, entries in containers:
            made = pod.containers.add(name=container)
            for entry in entries:
                for one in entry.device_ids:
                    made.devices.add(resource_name=entry.resource, device_ids=[one])

    def _list(self, request, context, is_empty: bool):
        answer = api.ListPodResourcesResponse()
        for pod in [] if is_empty else self.pods():
            self._fill(answer.pod_resources.add(), *pod)
        return answer

    def _get(self, request, context, is_empty: bool):
        for pod in self.pods():
            if pod[:2] == (request.pod_name, request.pod_namespace):
                answer = api.GetPodResourcesResponse()
                self._fill(answer.pod_resources, *pod)
                return answer
        return context.abort(
            grpc.StatusCode.UNKNOWN,
            f"pod {request.pod_name} in namespace {request.pod_namespace} not found",
        )
