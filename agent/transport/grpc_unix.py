"""Unary gRPC calls over unix sockets, each with a deadline.

This uses the synchronous API in a thread of the loop's own pool: once closed, its channel leaves
one sleeping thread and no wake-ups, where grpc.aio leaves nine threads and 2-6 wake-ups a second
(grpcio 1.51.1). grpc and protobuf are imported at the first call: 10 MiB that `status` and `wait`
do not need.

No channel outlives one snapshot. gRPC's retries are off: if it sent a request to stop a container
again by itself, that would be an action without evidence.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from ..model.errors import ErrorKind, RpcError
from .protos import pod_resources

MAX_MESSAGE_BYTES = 16 << 20
"""The kubelet's own limit (pkg/kubelet/apis/podresources/constants.go)."""

BACKSTOP_S = 1.0
"""How long a call waits beyond gRPC's own deadline. It matters only where the loop's pool has no
free thread."""

_KINDS = {
    "UNAVAILABLE": ErrorKind.MISSING,
    "NOT_FOUND": ErrorKind.NOT_FOUND,
    "RESOURCE_EXHAUSTED": ErrorKind.BUSY,
    "UNIMPLEMENTED": ErrorKind.UNIMPLEMENTED,
    "DEADLINE_EXCEEDED": ErrorKind.TIMED_OUT,
    "PERMISSION_DENIED": ErrorKind.NOT_PERMITTED,
    "UNAUTHENTICATED": ErrorKind.NOT_PERMITTED,
}
"""by gRPC status code; every other code is FAILED"""


@dataclass(frozen=True, slots=True)
class AllocatableRow:
    """ContainerDevices of GetAllocatableResources: one resource, one or more ids."""

    resource: str
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AllocatedRow:
    """ContainerDevices of List: the devices of one resource that one container of one pod has."""

    namespace: str
    pod: str
    container: str
    resource: str
    ids: tuple[str, ...]


class Channel:
    """One connection for the few calls of one snapshot: `with Channel(socket) as ch:`, then
    unary(ch, …) for each. It is opened at the first call, in the pool's thread."""

    def __init__(self, socket: str) -> None:
        self.socket = socket
        self._lock = threading.Lock()
        self._made: Any = None
        self._closed = False

    def __enter__(self) -> Channel:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Calls under way fail at once."""
        with self._lock:
            self._closed = True
            made, self._made = self._made, None
        if made is not None:
            made.close()

    def call(self, method: str, data: bytes, within_s: float) -> bytes:
        """One blocking call. gRPC's own deadline includes connecting. Raises RpcError."""
        import grpc

        try:
            ask = self._open(grpc).unary_unary(method)
            answer: bytes = ask(data, timeout=max(within_s, 0.001))
        except grpc.RpcError as exc:
            raise _error(method, exc) from exc
        except (ValueError, RuntimeError) as exc:
            # The channel was closed meanwhile, or gRPC could not start a thread.
            raise RpcError(f"{method}: {exc}"[:300], ErrorKind.FAILED) from exc
        return answer

    def _open(self, grpc: Any) -> Any:
        with self._lock:
            if self._closed:
                raise ValueError("the channel was closed")
            if self._made is None:
                self._made = grpc.insecure_channel(
                    f"unix://{self.socket}",
                    options=[
                        # grpcio up to 1.57 and later ones send different authorities for unix
                        # sockets; Rust and Java servers reject one of them.
                        ("grpc.default_authority", "localhost"),
                        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
                        ("grpc.enable_retries", 0),
                        # Or else a new channel may inherit the backoff of an old one, and not try a
                        # socket that exists again.
                        ("grpc.use_local_subchannel_pool", 1),
                    ],
                )
            return self._made


async def unary(
    over: str | Channel, method: str, request: Any, response_class: Any, within_s: float
) -> Any:
    """The reply to one request, over this channel, or over a new one to this socket. Raises
    RpcError."""
    if isinstance(over, str):
        with Channel(over) as own:
            return await unary(own, method, request, response_class, within_s)
    call = functools.partial(over.call, method, request.SerializeToString(), within_s)
    try:
        running = asyncio.get_running_loop().run_in_executor(None, call)
    except RuntimeError as exc:
        # No thread could be started (pids.max, kernel.pid_max). The call waits in the pool for the
        # next thread, so the channel is closed: the request must not be sent later.
        over.close()
        raise RpcError(
            f"{method}: {exc}: sysctl kernel.pid_max; systemctl status gpu-gate",
            ErrorKind.NOT_ASKED,
        ) from exc
    try:
        data = await asyncio.wait_for(running, within_s + BACKSTOP_S)
    except asyncio.TimeoutError as exc:
        raise RpcError(
            f"{method}: no thread was free for it within {within_s + BACKSTOP_S:g} s",
            ErrorKind.TIMED_OUT,
        ) from exc
    return _parsed(method, response_class, data)


async def get_allocatable(socket: str, within_s: float) -> list[AllocatableRow]:
    """What the kubelet behind this pod-resources socket lists as allocatable. Raises RpcError."""
    types = pod_resources()
    answer = await unary(
        socket,
        "/v1.PodResourcesLister/GetAllocatableResources",
        types["AllocatableResourcesRequest"](),
        types["AllocatableResourcesResponse"],
        within_s,
    )
    return [AllocatableRow(d.resource_name, tuple(d.device_ids)) for d in answer.devices]


async def list_allocated(socket: str, within_s: float) -> list[AllocatedRow]:
    """What the kubelet behind this pod-resources socket allocated. Some kubelets list pods that
    have ended. Raises RpcError."""
    types = pod_resources()
    answer = await unary(
        socket,
        "/v1.PodResourcesLister/List",
        types["ListPodResourcesRequest"](),
        types["ListPodResourcesResponse"],
        within_s,
    )
    return [
        AllocatedRow(
            pod.namespace,
            pod.name,
            container.name,
            devices.resource_name,
            tuple(devices.device_ids),
        )
        for pod in answer.pod_resources
        for container in pod.containers
        for devices in container.devices
    ]


def _parsed(method: str, response_class: Any, data: bytes) -> Any:
    from google.protobuf.message import DecodeError

    message = response_class()
    try:
        message.ParseFromString(data)
    except (DecodeError, UnicodeDecodeError) as exc:  # protobuf in pure Python raises the latter
        what = response_class.DESCRIPTOR.name
        raise RpcError(
            f"{method}: the {len(data)} bytes of the reply are not a valid {what}",
            ErrorKind.FAILED,
        ) from exc
    return message


def _error(method: str, exc: Any) -> RpcError:
    code, details = exc.code().name, str(exc.details() or "")
    kind = _KINDS.get(code, ErrorKind.FAILED)
    if kind is ErrorKind.BUSY and "larger than max" in details:
        kind = ErrorKind.FAILED  # gRPC reports our own message limit with the server's code
    if kind is ErrorKind.MISSING and "Permission denied" in details:
        kind = ErrorKind.NOT_PERMITTED  # connect(2) returned EACCES
    return RpcError(f"{method}: {code}: {details}"[:300], kind, code)
