"""The Kubernetes messages the stand-ins speak, declared at run time.

A table of its own on purpose: were the product's table wrong, sharing it would let both sides agree
on the error. One line a message: ``Name: field=number type, …``; ``type*`` repeats, ``map`` is a
map of strings; an indented line goes on with the one above. Enums are declared int32, which is the
same on the wire.
"""

from __future__ import annotations

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

DEVICE_PLUGIN = """
Empty:
DevicePluginOptions: pre_start_required=1 bool, get_preferred_allocation_available=2 bool
RegisterRequest: version=1 string, endpoint=2 string, resource_name=3 string, options=4 DevicePluginOptions
NUMANode: ID=1 int64
TopologyInfo: nodes=1 NUMANode*
Device: ID=1 string, health=2 string, topology=3 TopologyInfo
ListAndWatchResponse: devices=1 Device*
ContainerAllocateRequest: devices_ids=1 string*
AllocateRequest: container_requests=1 ContainerAllocateRequest*
Mount: container_path=1 string, host_path=2 string, read_only=3 bool
DeviceSpec: container_path=1 string, host_path=2 string, permissions=3 string
CDIDevice: name=1 string
ContainerAllocateResponse: envs=1 map, mounts=2 Mount*, devices=3 DeviceSpec*, annotations=4 map,
  cdi_devices=5 CDIDevice*
AllocateResponse: container_responses=1 ContainerAllocateResponse*
ContainerPreferredAllocationRequest: available_deviceIDs=1 string*, must_include_deviceIDs=2 string*,
  allocation_size=3 int32
PreferredAllocationRequest: container_requests=1 ContainerPreferredAllocationRequest*
ContainerPreferredAllocationResponse: deviceIDs=1 string*
PreferredAllocationResponse: container_responses=1 ContainerPreferredAllocationResponse*
"""

POD_RESOURCES = """
ListPodResourcesRequest:
AllocatableResourcesRequest:
GetPodResourcesRequest: pod_name=1 string, pod_namespace=2 string
ContainerDevices: resource_name=1 string, device_ids=2 string*
ContainerResources: name=1 string, devices=2 ContainerDevices*, cpu_ids=3 int64*
PodResources: name=1 string, namespace=2 string, containers=3 ContainerResources*, cpu_ids=4 int64*
ListPodResourcesResponse: pod_resources=1 PodResources*
AllocatableResourcesResponse: devices=1 ContainerDevices*, cpu_ids=2 int64*
GetPodResourcesResponse: pod_resources=1 PodResources
"""

CRI = """
VersionRequest: version=1 string
VersionResponse: version=1 string, runtime_name=2 string, runtime_version=3 string,
  runtime_api_version=4 string
ImageSpec: image=1 string, annotations=2 map
Image: id=1 string, repo_tags=2 string*
ImageStatusRequest: image=1 ImageSpec, verbose=2 bool
ImageStatusResponse: image=1 Image
NamespaceOption: network=1 int32, pid=2 int32, ipc=3 int32
SandboxSecurityContext: namespace_options=1 NamespaceOption, privileged=6 bool
LinuxPodSandboxConfig: cgroup_parent=1 string, security_context=2 SandboxSecurityContext
DNSConfig: servers=1 string*, searches=2 string*, options=3 string*
PodSandboxMetadata: name=1 string, uid=2 string, namespace=3 string, attempt=4 uint32
PodSandboxConfig: metadata=1 PodSandboxMetadata, hostname=2 string, log_directory=3 string,
  dns_config=4 DNSConfig, labels=6 map, annotations=7 map, linux=8 LinuxPodSandboxConfig
RunPodSandboxRequest: config=1 PodSandboxConfig, runtime_handler=2 string
RunPodSandboxResponse: pod_sandbox_id=1 string
StopPodSandboxRequest: pod_sandbox_id=1 string
StopPodSandboxResponse:
RemovePodSandboxRequest: pod_sandbox_id=1 string
RemovePodSandboxResponse:
PodSandboxFilter: id=1 string, label_selector=3 map
ListPodSandboxRequest: filter=1 PodSandboxFilter
PodSandbox: id=1 string, metadata=2 PodSandboxMetadata, state=3 int32, created_at=4 int64, labels=5 map,
  annotations=6 map
ListPodSandboxResponse: items=1 PodSandbox*
KeyValue: key=1 string, value=2 string
Mount: container_path=1 string, host_path=2 string, readonly=3 bool, propagation=5 int32
Device: container_path=1 string, host_path=2 string, permissions=3 string
CDIDevice: name=1 string
LinuxContainerResources: cpu_period=1 int64, cpu_quota=2 int64, cpu_shares=3 int64,
  memory_limit_in_bytes=4 int64, oom_score_adj=5 int64
Capability: add_capabilities=1 string*, drop_capabilities=2 string*
SecurityProfile: profile_type=1 int32
ContainerSecurityContext: capabilities=1 Capability, privileged=2 bool, namespace_options=3 NamespaceOption,
  no_new_privs=11 bool, masked_paths=13 string*, readonly_paths=14 string*, seccomp=15 SecurityProfile
LinuxContainerConfig: resources=1 LinuxContainerResources, security_context=2 ContainerSecurityContext
ContainerMetadata: name=1 string, attempt=2 uint32
ContainerConfig: metadata=1 ContainerMetadata, image=2 ImageSpec, command=3 string*, args=4 string*,
  working_dir=5 string, envs=6 KeyValue*, mounts=7 Mount*, devices=8 Device*, labels=9 map,
  annotations=10 map, log_path=11 string, linux=15 LinuxContainerConfig, CDI_devices=17 CDIDevice*
CreateContainerRequest: pod_sandbox_id=1 string, config=2 ContainerConfig, sandbox_config=3 PodSandboxConfig
CreateContainerResponse: container_id=1 string
StartContainerRequest: container_id=1 string
StartContainerResponse:
StopContainerRequest: container_id=1 string, timeout=2 int64
StopContainerResponse:
RemoveContainerRequest: container_id=1 string
RemoveContainerResponse:
ContainerFilter: id=1 string, pod_sandbox_id=3 string, label_selector=4 map
ListContainersRequest: filter=1 ContainerFilter
Container: id=1 string, pod_sandbox_id=2 string, metadata=3 ContainerMetadata, image=4 ImageSpec,
  image_ref=5 string, state=6 int32, created_at=7 int64, labels=8 map, annotations=9 map
ListContainersResponse: containers=1 Container*
ContainerStatus: id=1 string, metadata=2 ContainerMetadata, state=3 int32, created_at=4 int64,
  started_at=5 int64, finished_at=6 int64, exit_code=7 int32, reason=10 string, message=11 string
ContainerStatusRequest: container_id=1 string, verbose=2 bool
ContainerStatusResponse: status=1 ContainerStatus, info=2 map
"""

_SCALARS = {"string": 9, "bool": 8, "int32": 5, "int64": 3, "uint32": 13, "uint64": 4}
_MESSAGE, _SINGLE, _REPEATED = 11, 1, 3


def _add_field(package: str, message, text: str) -> None:
    name, _, kind = text.partition("=")
    number, _, type_ = kind.partition(" ")
    field = message.field.add(
        name=name, number=int(number), label=_REPEATED if type_[-1] == "*" else _SINGLE
    )
    type_ = type_.rstrip("*")
    if type_ == "map":
        entry = message.nested_type.add(
            name="".join(part.capitalize() for part in name.split("_")) + "Entry"
        )
        entry.options.map_entry = True
        for key, at in (("key", 1), ("value", 2)):
            entry.field.add(name=key, number=at, type=_SCALARS["string"], label=_SINGLE)
        field.label, field.type = _REPEATED, _MESSAGE
        field.type_name = f".{package}.{message.name}.{entry.name}"
    elif type_ in _SCALARS:
        field.type = _SCALARS[type_]
    else:
        field.type, field.type_name = _MESSAGE, f".{package}.{type_}"


class Package:
    """The messages of one API as attributes: ``cri.ListContainersRequest(…)``."""

    def __init__(self, package: str, table: str) -> None:
        file = descriptor_pb2.FileDescriptorProto(
            name=f"{package}.proto", package=package, syntax="proto3"
        )
        for line in table.strip().replace("\n  ", " ").splitlines():
            name, _, fields = line.partition(":")
            message = file.message_type.add(name=name)
            for text in filter(None, fields.strip().split(", ")):
                _add_field(package, message, text)
        pool = descriptor_pool.DescriptorPool()
        pool.Add(file) if not hasattr(pool, "AddSerializedFile") else pool.AddSerializedFile(
            file.SerializeToString()
        )
        for message in file.message_type:
            found = pool.FindMessageTypeByName(f"{package}.{message.name}")
            if hasattr(message_factory, "GetMessageClass"):
                made = message_factory.GetMessageClass(found)
            else:
                made = message_factory.MessageFactory(pool).GetPrototype(found)
            setattr(self, message.name, made)


plugin_api = Package("v1beta1", DEVICE_PLUGIN)
pod_resources_api = Package("v1", POD_RESOURCES)
cri = Package("runtime.v1", CRI)
