"""The links of the chain, and one condition for each thing that must hold."""

from __future__ import annotations

from enum import Enum, IntEnum


class Link(IntEnum):
    """One of the fourteen steps from PCI to alert; none proves the next one (docs/terms.md)."""

    PCI = 1
    "GPUs on the bus"
    DRIVER = 2
    "the kernel module"
    DEVICE_NODES = 3
    "/dev/nvidia*"
    FABRIC = 4
    "persistence, NVLink fabric"
    NVML = 5
    "the library that enumerates GPUs"
    RUNTIME = 6
    "the container runtime, its handler, CDI"
    KUBELET = 7
    "the kubelet"
    PLUGIN = 8
    "the device plugin"
    SOCKET = 9
    "the sockets in the kubelet's folder; a hint"
    REGISTRATION = 10
    "what the kubelet lists"
    NODE = 11
    "the Node object"
    WORKLOADS = 12
    "device access of running containers"
    METRICS = 13
    "the metric store"
    ALERT = 14
    "the alert manager"

    __str__ = int.__repr__


class Condition(str, Enum):
    """What a finding is about; CamelCase, as Kubernetes names conditions."""

    GPUS_ON_PCI = "GpusOnPci"
    GPUS_BOUND = "GpusBound"
    DRIVER_LOADED = "DriverLoaded"
    DEVICE_NODES = "DeviceNodes"
    DEVICE_NODES_OPEN = "DeviceNodesOpen"
    DEV_CHAR_LINKS = "DevCharLinks"
    UVM_LOADED = "UvmLoaded"
    PERSISTENCE_ACTIVE = "PersistenceActive"
    FABRIC_MANAGER_ACTIVE = "FabricManagerActive"
    IMEX_ACTIVE = "ImexActive"
    FABRIC_READY = "FabricReady"
    NVML_COMPLETE = "NvmlComplete"
    GPU_SET_UNCHANGED = "GpuSetUnchanged"
    MIG_CONFIGURED = "MigConfigured"
    NO_GPU_MAINTENANCE_PENDING = "NoGpuMaintenancePending"
    KERNEL_LOG_QUIET = "KernelLogQuiet"
    NOT_PAUSED = "NotPaused"
    RUNTIME_ANSWERS = "RuntimeAnswers"
    RUNTIME_HANDLER = "RuntimeHandler"
    CDI_SPEC = "CdiSpec"
    KUBELET_ACTIVE = "KubeletActive"
    KUBELET_SOCKET = "KubeletSocket"
    PLUGIN_LAUNCHED = "PluginLaunched"
    PLUGIN_HEALTHY = "PluginHealthy"
    SINGLE_PLUGIN = "SinglePlugin"
    PLUGIN_SOCKET = "PluginSocket"
    SOCKET_OWNER = "SocketOwner"
    CHECKPOINT = "Checkpoint"
    PLUGIN_REGISTERED = "PluginRegistered"
    ALLOCATION_WORKS = "AllocationWorks"
    NODE_RESOURCES = "NodeResources"
    WORKLOAD_ACCESS = "WorkloadAccess"
    ACCESS_AFTER_RELOAD = "AccessAfterReload"
    DEVICE_ALLOW_UPDATES_ENABLED = "DeviceAllowUpdatesEnabled"
    WORKLOAD_DRIVER = "WorkloadDriver"
    METRIC_AGREES = "MetricAgrees"
    ALERT_AGREES = "AlertAgrees"
    CUDA_ANSWERS = "CudaAnswers"
    SOCKETS_ANSWER = "SocketsAnswer"
    NOT_ASKED = "NotAsked"

    __str__ = str.__str__
