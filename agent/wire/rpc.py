"""gRPC over unix sockets, with message types declared at run time.

No generated code: what protoc makes today does not load with the protobuf of Debian 12, and the other way round;
descriptors built at run time work from protobuf 3.12 to 7. Wire numbers: kubernetes/kubelet
pkg/apis/podresources/v1/api.proto (v1.37-beta); older kubelets only lack the newer fields.

The synchronous API is used, in a thread of the loop's own pool: once closed, its channel leaves one sleeping
thread and no wake-ups, where grpc.aio leaves nine threads and 2-6 wake-ups a second (grpcio 1.51.1).
grpc and protobuf are imported at the first call: 10 MiB that `status` and `wait` do not need.
"""

from __future__ import annotations

import asyncio
import functools
from dataclasses import dataclass
from typing import Any

MAX_MESSAGE_BYTES = 16 << 20
"""The kubelet's own limit (pkg/kubelet/apis/podresources/constants.go)."""

_WORDS = {
    "UNAVAILABLE": "missing",
    "NOT_FOUND": "missing",
    "UNIMPLEMENTED": "missing",
    "DEADLINE_EXCEEDED": "timed-out",
    "PERMISSION_DENIED": "not-permitted",
}


class RpcError(Exception):
    """A call that gave no answer; `word` is missing, timed-out, not-permitted or failed."""

    def __init__(self, word: str, detail: str, code: str = "") -> None:
        super().__init__(detail)
        self.word = word
        self.detail = detail
        self.code = code
        """gRPC's name of the status code, "" where the trouble is on our side."""


@dataclass(frozen=True, slots=True)
class AllocatableRow:
    """ContainerDevices of GetAllocatableResources: one resource, one or more ids."""

    resource: str
    ids: tuple[str, ...]


async def get_allocatable(socket: str, within_s: float) -> list[AllocatableRow]:
    """What the kubelet behind this pod-resources socket lists as allocatable. RpcError."""
    answer = await _unary(
        socket,
        "/v1.PodResourcesLister/GetAllocatableResources",
        "AllocatableResourcesRequest",
        "AllocatableResourcesResponse",
        within_s,
    )
    return [AllocatableRow(d.resource_name, tuple(d.device_ids)) for d in answer.devices]


async def _unary(socket: str, method: str, request: str, response: str, within_s: float) -> Any:
    call = functools.partial(_call, socket, method, request, response, within_s)
    return await asyncio.get_running_loop().run_in_executor(None, call)


def _call(socket: str, method: str, request: str, response: str, within_s: float) -> Any:
    """One unary call on a channel of its own. The deadline is gRPC's, and holds for connecting as well."""
    import grpc
    from google.protobuf.message import DecodeError

    types = _pod_resources()
    options = [
        # grpcio before 1.57 and after send different authorities for unix sockets; Rust and Java servers mind.
        ("grpc.default_authority", "localhost"),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.enable_retries", 0),
    ]
    with grpc.insecure_channel(f"unix://{socket}", options=options) as channel:
        ask = channel.unary_unary(method, request_serializer=lambda m: m.SerializeToString())
        try:
            data = ask(types[request](), timeout=within_s)
        except grpc.RpcError as exc:
            code = exc.code().name
            raise RpcError(
                _WORDS.get(code, "failed"), f"{method}: {code}: {exc.details()}"[:300], code
            ) from exc
    message = types[response]()
    try:
        message.ParseFromString(data)
    except DecodeError as exc:
        raise RpcError("failed", f"{method}: {len(data)} bytes that are no {response}") from exc
    return message


@functools.lru_cache(maxsize=1)
def _pod_resources() -> dict[str, Any]:
    """Message classes of package v1, in a pool of their own so that they clash with nobody's."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    field = descriptor_pb2.FieldDescriptorProto
    one, many = field.LABEL_OPTIONAL, field.LABEL_REPEATED
    file = descriptor_pb2.FileDescriptorProto(name="podresources.proto", package="v1", syntax="proto3")
    layout = {
        "ContainerDevices": [
            ("resource_name", 1, one, field.TYPE_STRING, ""),
            ("device_ids", 2, many, field.TYPE_STRING, ""),
        ],
        "AllocatableResourcesRequest": [],
        "AllocatableResourcesResponse": [("devices", 1, many, field.TYPE_MESSAGE, ".v1.ContainerDevices")],
    }
    for name, fields in layout.items():
        message = file.message_type.add(name=name)
        for field_name, number, label, kind, type_name in fields:
            message.field.add(
                name=field_name,
                number=number,
                label=label,
                type=kind,
                **({"type_name": type_name} if type_name else {}),
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file) if hasattr(pool, "Add") else pool.AddSerializedFile(file.SerializeToString())
    get = (
        getattr(message_factory, "GetMessageClass", None) or message_factory.MessageFactory(pool).GetPrototype
    )
    return {name: get(pool.FindMessageTypeByName(f"v1.{name}")) for name in layout}
