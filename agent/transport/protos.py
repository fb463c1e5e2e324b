"""The messages of pod-resources and CRI, declared at run time from small tables.

There is no generated code: what protoc generates today does not load with the protobuf of Debian
12, and the other way round. Descriptors that are built at run time work from protobuf 3.12 to 7.
Each API has a descriptor pool of its own, so that it clashes with no other. The tables leave out
fields that gpu-gate never reads: protobuf skips unknown fields.

Wire numbers: kubernetes/kubelet pkg/apis/podresources/v1/api.proto and kubernetes/cri-api
pkg/apis/runtime/v1/api.proto (both v1.37-beta); older kubelets and runtimes only lack the newer
fields.

A table has one message a line, `Name: field=number type, …`: `type*` repeats, `map` is a map of
strings, an indented line continues the one above. `enum Name: VALUE=number, …` declares an enum.
The names of fields and values are those of the .proto files, which is what lets protobuf's own JSON
parser read the output of crictl.
"""

from __future__ import annotations

import functools
from typing import Any

_POD_RESOURCES = """
ContainerDevices: resource_name=1 string, device_ids=2 string*
ContainerResources: name=1 string, devices=2 ContainerDevices*
PodResources: name=1 string, namespace=2 string, containers=3 ContainerResources*
ListPodResourcesRequest:
ListPodResourcesResponse: pod_resources=1 PodResources*
AllocatableResourcesRequest:
AllocatableResourcesResponse: devices=1 ContainerDevices*
"""

_CRI = """
enum ContainerState: CONTAINER_CREATED=0, CONTAINER_RUNNING=1, CONTAINER_EXITED=2, CONTAINER_UNKNOWN=3
enum PodSandboxState: SANDBOX_READY=0, SANDBOX_NOTREADY=1
VersionRequest: version=1 string
VersionResponse: version=1 string, runtime_name=2 string, runtime_version=3 string, runtime_api_version=4 string
PodSandboxMetadata: name=1 string, uid=2 string, namespace=3 string, attempt=4 uint32
PodSandbox: id=1 string, metadata=2 PodSandboxMetadata, state=3 PodSandboxState, created_at=4 int64, labels=5 map,
  annotations=6 map, runtime_handler=7 string
ListPodSandboxRequest:
ListPodSandboxResponse: items=1 PodSandbox*
ContainerMetadata: name=1 string, attempt=2 uint32
ImageSpec: image=1 string, annotations=2 map, user_specified_image=18 string
Container: id=1 string, pod_sandbox_id=2 string, metadata=3 ContainerMetadata, image=4 ImageSpec, image_ref=5 string,
  state=6 ContainerState, created_at=7 int64, labels=8 map, annotations=9 map, image_id=10 string
ListContainersRequest:
ListContainersResponse: containers=1 Container*
ContainerStatus: id=1 string, metadata=2 ContainerMetadata, state=3 ContainerState, created_at=4 int64,
  started_at=5 int64, finished_at=6 int64, exit_code=7 int32, image=8 ImageSpec, image_ref=9 string, reason=10 string,
  message=11 string, labels=12 map, annotations=13 map, mounts=14 Mount*, log_path=15 string
Mount: container_path=1 string, host_path=2 string
ContainerStatusRequest: container_id=1 string, verbose=2 bool
ContainerStatusResponse: status=1 ContainerStatus, info=2 map
StopContainerRequest: container_id=1 string, timeout=2 int64
StopContainerResponse:
RemoveContainerRequest: container_id=1 string
RemoveContainerResponse:
"""

# FieldDescriptorProto.Type and .Label (google/protobuf/descriptor.proto)
_SCALARS = {"string": 9, "bool": 8, "int32": 5, "int64": 3, "uint32": 13}
_MESSAGE, _ENUM = 11, 14
_ONE, _MANY = 1, 3


@functools.lru_cache(maxsize=1)
def pod_resources() -> dict[str, Any]:
    """The kubelet's pod-resources API: message classes of package v1, by name."""
    return _classes("v1", _POD_RESOURCES)


@functools.lru_cache(maxsize=1)
def cri() -> dict[str, Any]:
    """The container runtime interface: message classes of package runtime.v1, by name."""
    return _classes("runtime.v1", _CRI)


def _classes(package: str, table: str) -> dict[str, Any]:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(
        name=f"gpu_gate/{package}.proto", package=package, syntax="proto3"
    )
    for line in table.strip().replace("\n  ", " ").splitlines():
        name, _, rest = line.partition(":")
        parts = [part.strip() for part in rest.split(",") if part.strip()]
        if name.startswith("enum "):
            _add_enum(file, name[len("enum ") :], parts)
        else:
            message = file.message_type.add(name=name)
            for part in parts:
                _add_field(file, message, part)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    # protobuf 5 removed MessageFactory; GetMessageClass exists since 4.22.
    make = (
        getattr(message_factory, "GetMessageClass", None)
        or message_factory.MessageFactory(pool).GetPrototype
    )
    return {
        m.name: make(pool.FindMessageTypeByName(f"{package}.{m.name}")) for m in file.message_type
    }


def _add_enum(file: Any, name: str, parts: list[str]) -> None:
    enum = file.enum_type.add(name=name)
    for part in parts:
        value, _, number = part.partition("=")
        enum.value.add(name=value, number=int(number))


def _add_field(file: Any, message: Any, text: str) -> None:
    name, _, rest = text.partition("=")
    number, _, kind = rest.partition(" ")
    field = message.field.add(
        name=name, number=int(number), label=_MANY if kind.endswith("*") else _ONE
    )
    kind = kind.rstrip("*")
    if kind == "map":
        field.label, field.type, field.type_name = (
            _MANY,
            _MESSAGE,
            _add_map_entry(file, message, name),
        )
    elif kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type = _ENUM if any(e.name == kind for e in file.enum_type) else _MESSAGE
        field.type_name = f".{file.package}.{kind}"


def _add_map_entry(file: Any, message: Any, field_name: str) -> str:
    """A map is a repeated nested message; its name is prescribed (protobuf's language guide,
    "Maps")."""
    entry = message.nested_type.add(
        name="".join(p.capitalize() for p in field_name.split("_")) + "Entry"
    )
    entry.options.map_entry = True
    for number, name in enumerate(("key", "value"), 1):
        entry.field.add(name=name, number=number, type=_SCALARS["string"], label=_ONE)
    return f".{file.package}.{message.name}.{entry.name}"
