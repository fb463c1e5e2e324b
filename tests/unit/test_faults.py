"""Known faults: confirmed only where their own mark was observed, consistent with what merely fits,
else silent."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.core.common.kernel_log import words
from agent.core.common.parse import UNKNOWN_FORM
from agent.core.diagnose import diagnose
from agent.core.doctor import journal
from agent.core.doctor import suspects as faults
from agent.core.doctor.broken import first_broken, first_unknown
from agent.core.doctor.links import causes, links
from agent.core.doctor.suspects import FAULTS, suspects
from agent.model.diagnostics import (
    NO_DIAGNOSTICS,
    CudaReport,
    DiagnosticData,
    JournalLine,
    SocketSight,
)
from agent.model.finding import Diagnosis, Finding, Verdict
from agent.model.gpu import GpuState
from agent.model.kernel import KernelLine
from agent.model.mark import Mark
from agent.model.reading import Refusal, Why
from agent.model.runtime import ContainerState, Runtime
from agent.model.snapshot import Devices, Entry, ProbeEnd, Snapshot
from agent.model.suspect import Strength, Suspect

from . import access_snapshots as access
from .snapshots import (
    BUSES,
    DEFAULTS,
    DENIED,
    FAILED,
    FAILED_LOG,
    GPUS,
    MISSING,
    NO_DRIVER,
    NOW,
    OFFSET,
    TIMED_OUT,
    UUIDS,
    WELL_LOG,
    changed,
    container,
    failing,
    function,
    probed,
    sandbox,
    seen,
    sight,
    snapshot,
    unit,
)

CONFIRMED, CONSISTENT = Strength.CONFIRMED, Strength.CONSISTENT
KUBELET_AT = 50.0
STARTED_AT = 100.0
"""Of the plugin's container, boottime."""


def said(text: str, at: float = NOW - 60, source: str = "kubelet.service") -> DiagnosticData:
    return DiagnosticData(journal=seen(journal.words([JournalLine(at, source, text)])))


def logged(text: str, at: float = NOW - 50) -> dict[str, Any]:
    """In the kernel's own ring."""
    return {"kernel": seen(words([KernelLine(at, text)]))}


def reasoned(reason: str, verdict: Verdict = Verdict.FAILS, link: int = 6) -> Diagnosis:
    """A healthy node but for one finding."""
    healthy = diagnose(snapshot(), DEFAULTS)
    return replace(
        healthy, findings=(*healthy.findings, Finding(link, "Some", verdict, "as seen", reason))
    )


def found(of: Snapshot, diagnostics: DiagnosticData = NO_DIAGNOSTICS) -> dict[str, Suspect]:
    return {s.id: s for s in suspects(of, diagnose(of, DEFAULTS), diagnostics)}


def unlisted(**changes: Any) -> Snapshot:
    """The kubelet lists nothing, and the plugin's log shows an NVML failure."""
    return snapshot(
        **{
            "allocatable": seen(()),
            "checkpoint": seen({}),
            "plugins": (sight(FAILED_LOG),),
            **changes,
        }
    )


def stated(**state: Any) -> Any:
    """NVML shows every GPU with this state."""
    return probed(gpus=tuple(replace(g, state=GpuState(**state)) for g in GPUS))


def forgotten(sock_at: float, **changes: Any) -> Snapshot:
    """Its log shows a registration, the kubelet lists nothing."""
    sock = Entry("kubelet.sock", "socket", mtime=OFFSET + sock_at)
    return unlisted(plugins=(sight(),), plugin_sockets=seen((sock,)), **changes)


def ended(words: bytes) -> Any:
    """The plugin as a container that ended with this log."""
    return sight(words + b"\n", of=container(state=ContainerState.EXITED))


REGION = (
    "NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:\n"
    "NVRM: BAR1 is 0M @ 0x0 (PCI:0000:0f:00.0)"
)
OTHER_LIBRARY = b"Failed to initialize NVML: Driver/library version mismatch\n"
FM = "nvidia-fabricmanager.service"
FM_FAILED = seen((unit(FM, "failed"),))
FM_OTHER = (
    "fabric manager NVIDIA GPU driver interface version 550.127.05 don't match with driver version "
    "550.54.15. Please update with matching NVIDIA driver package."
)
SWITCHED = seen((*(function(b) for b in BUSES), function("0000:c0:00.0", "nvidia", 0x068000)))
HALF_MIG = {
    "allocatable": seen(()),
    "probe": probed(gpus=tuple(replace(g, state=GpuState(mig=True, mig_devices=())) for g in GPUS)),
}
NO_PLUGIN = unlisted(plugins=(), runtime=seen(Runtime((), ())))
NO_SANDBOX = '"network is not ready" pod="kube-system/nvidia-device-plugin-x"'
EVICTED = '"Eviction manager: pod is evicted successfully" pod="kube-system/nvidia-device-plugin-x"'
BETWEEN = unlisted(
    plugins=(
        sight(b"Retrieving plugins.\n", of=container(attempt=12, created_at=OFFSET + NOW - 2)),
    )
)
GKE_AGAIN = unlisted(plugins=(sight(b"failed to start GPU device manager: x\n"),))
UNWATCHED = unlisted(
    kernel=seen(()),
    plugins=(sight(b"Error waiting for event: ERROR_UNKNOWN; Marking all devices as unhealthy\n"),),
)
UNMADE = unlisted(plugins=(), runtime=seen(Runtime((sandbox(),), ())))
NOT_PERMITTED = unlisted(plugins=(sight(b"Failed to initialize NVML: Insufficient Permissions\n"),))
NOT_REACHED = (
    '"Unable to connect to device plugin client with socket path" '
    'path="/x/device-plugins/nvidia-gpu.sock"'
)
NOT_WRITTEN = (
    'failed to write checkpoint file "kubelet_internal_checkpoint": write /x: no '
    "space left on device"
)
DEAD = (
    f"NVRM: The NVIDIA GPU {BUSES[1]}\nNVRM: (PCI ID: 10de:26b5) installed in this system has\n"
    "NVRM: fallen off the bus and is not responding to commands."
)
FIRMWARE = (
    f"nvidia {BUSES[1]}: Direct firmware load for nvidia/550.54.15/{{}}.bin failed with error -2"
)
DENIED_PLUGIN = unlisted(plugins=(sight(b"Starting Plugins.", access=False),))
AKS = "nvidia-device-plugin.service"
FAILED_LINE = "E0627 10:12:47.588061 1667 factory.go:115] Failed to initialize NVML: ERROR_UNKNOWN"
UNIT_PLUGIN = unlisted(
    plugins=(),
    runtime=seen(Runtime((), ())),
    units=seen((unit("kubelet.service", since=KUBELET_AT), unit(AKS, since=80.0, sub="running"))),
)
LOST = access.verdict((access.CTL, access.UVM))
RELOADED = access.sighting(access.GPU0, allowed_at=NOW - 100, denied_at=NOW - 3, reload_at=NOW - 50)
TOUCHED = access.sighting(access.GPU0, allowed_at=NOW - 100, denied_at=NOW - 3, reload_at=20.0)
PCI_BUS = "0000:0f:00.0"
LOADED_LATE = logged("NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.15", STARTED_AT + 40)
SEVEN = {"probe": probed(gpus=GPUS[:1])}
LOST_GPU = {"probe": failing(15, "nvmlDeviceGetHandleByIndex", 1, BUSES[1])}
WATCHED_EARLY = {"waiting": seen(Mark("waits", 5.0))}
ALLOCATE = (
    "Allocate failed due to no healthy devices present; cannot allocate unhealthy "
    "devices nvidia.com/gpu"
)
ROWS: list[tuple[str, Snapshot, DiagnosticData, Strength | None]] = [
    (
        "Nouveau",
        snapshot(pci=seen(tuple(function(b, "nouveau") for b in BUSES)), **NO_DRIVER),
        DiagnosticData(),
        CONFIRMED,
    ),
    (
        "VfioBound",
        snapshot(pci=seen(tuple(function(b, "vfio-pci") for b in BUSES))),
        DiagnosticData(),
        CONFIRMED,
    ),
    (
        "VfioBound",
        snapshot(pci=seen((function(BUSES[0]), function(BUSES[1], "vfio-pci")))),
        DiagnosticData(),
        None,
    ),
    (
        "VfioBound",
        snapshot(pci=seen(tuple(function(b, "nvgrace-gpu-vfio-pci") for b in BUSES))),
        DiagnosticData(),
        CONFIRMED,
    ),
    (
        "Nouveau",
        snapshot(pci=seen(tuple(function(b, "NovaCore") for b in BUSES)), **NO_DRIVER),
        DiagnosticData(),
        CONFIRMED,
    ),
    (
        "GpuNoRegion",
        snapshot(pci=seen((function(BUSES[0]), function(BUSES[1], ""))), **SEVEN, **logged(REGION)),
        DiagnosticData(),
        CONFIRMED,
    ),
    (
        "GpuNoRegion",
        snapshot(
            pci=seen(tuple(function(b, "") for b in BUSES)),
            **logged(REGION),
            **{**NO_DRIVER, "module_installed": seen("nvidia.ko")},
        ),
        DiagnosticData(),
        CONFIRMED,
    ),
    ("GpuNoRegion", snapshot(**logged(REGION)), DiagnosticData(), None),  # it is bound
    (
        "ModuleUnfit",
        snapshot(
            **{**NO_DRIVER, "module_installed": seen("/lib/x/nvidia.ko")},
            **logged("nvidia: disagrees about version of symbol module_layout"),
        ),
        DiagnosticData(),
        CONFIRMED,
    ),
    (
        "ModuleUnfit",
        snapshot(majors=seen({"nvidia": 195}), **logged("nvidia_uvm: Unknown symbol x (err -2)")),
        DiagnosticData(),
        CONFIRMED,
    ),
    (
        "ModuleUnfit",
        snapshot(**logged("nvidia_uvm: Unknown symbol x (err -2)")),
        DiagnosticData(),
        None,
    ),  # it is loaded
    ("FabricManagerMismatch", snapshot(units=FM_FAILED), said(FM_OTHER, source=FM), CONFIRMED),
    ("FabricManagerMismatch", snapshot(units=seen((unit(FM),))), said(FM_OTHER, source=FM), None),
    ("FabricNotReady", snapshot(units=FM_FAILED), DiagnosticData(), CONSISTENT),
    (
        "FabricNotReady",
        snapshot(units=FM_FAILED, probe=stated(fabric="not supported")),
        DiagnosticData(),
        None,
    ),
    (
        "FabricNotReady",
        snapshot(units=seen((unit(FM, "inactive"),)), pci=SWITCHED),
        DiagnosticData(),
        CONSISTENT,
    ),
    (
        "FabricNotReady",
        snapshot(units=seen((unit(FM, "inactive", "not-found"),)), pci=SWITCHED),
        DiagnosticData(),
        CONSISTENT,
    ),
    (
        "FabricNotReady",
        snapshot(
            units=seen((unit(FM, "inactive"),)), pci=SWITCHED, probe=stated(fabric="completed")
        ),
        DiagnosticData(),
        None,
    ),
    (
        "FabricNotReady",
        snapshot(
            units=seen((unit(FM, "inactive", "not-found"),)),
            pci=SWITCHED,
            probe=probed(library="/run/nvidia/driver/usr/lib/libnvidia-ml.so.1"),
        ),
        DiagnosticData(),
        None,
    ),
    ("FabricNotReady", snapshot(units=seen((unit(FM),)), pci=SWITCHED), DiagnosticData(), None),
    (
        "FabricNotReady",
        snapshot(probe=stated(fabric="not supported")),
        DiagnosticData(cuda=seen(CudaReport("cuInit", 802))),
        CONSISTENT,
    ),
    (
        "GpuLacksPower",
        snapshot(
            **SEVEN,
            **logged(
                f"NVRM: GPU {PCI_BUS}: GPU does not have the necessary power cables connected."
            ),
        ),
        DiagnosticData(),
        CONFIRMED,
    ),
    (
        "GpuLacksPower",
        snapshot(probe=failing(8, "nvmlDeviceGetHandleByIndex", 1, BUSES[1])),
        DiagnosticData(),
        CONFIRMED,
    ),
    ("GpuLacksPower", snapshot(**SEVEN), DiagnosticData(), None),
    (
        "GpuInitFailed",
        snapshot(**SEVEN, **logged("NVRM: Xid (PCI:0000:0f:00): 143, GPU Initialization Error")),
        DiagnosticData(),
        CONFIRMED,
    ),
    (
        "GpuWantsReset",
        snapshot(**logged("NVRM: Xid (PCI:0000:0f:00): 95, Uncontained: LTC TAG")),
        DiagnosticData(),
        CONSISTENT,
    ),
    (
        "GpuWantsReset",
        snapshot(**logged("NVRM: Xid (PCI:0000:0f:00): 94, Contained: SM")),
        DiagnosticData(),
        None,
    ),
    (
        "MigHalfConfigured",
        snapshot(**HALF_MIG, plugins=(ended(b"error: invalid MIG configuration"),)),
        DiagnosticData(),
        CONFIRMED,
    ),
    (
        "MigHalfConfigured",
        snapshot(**HALF_MIG, plugins=(ended(b"panic: nil pointer"),)),
        DiagnosticData(),
        None,
    ),
    (
        "MigHalfConfigured",
        snapshot(allocatable=seen(()), plugins=(ended(b"error: invalid MIG configuration"),)),
        DiagnosticData(),
        None,
    ),
    ("NoDriver", snapshot(**NO_DRIVER), DiagnosticData(), CONFIRMED),
    (
        "DriverNotLoaded",
        snapshot(**{**NO_DRIVER, "module_installed": seen("/lib/x/nvidia.ko")}),
        DiagnosticData(),
        CONFIRMED,
    ),
    (
        "SecureBoot",
        snapshot(
            **{**NO_DRIVER, "module_installed": seen("/lib/x/nvidia.ko")},
            **logged("Loading of unsigned module is rejected"),
        ),
        DiagnosticData(),
        CONFIRMED,
    ),
    ("DeviceNodesMissing", snapshot(nodes=seen(())), DiagnosticData(), CONFIRMED),
    ("FabricNotReady", snapshot(), DiagnosticData(cuda=seen(CudaReport("cuInit", 802))), CONFIRMED),
    ("FabricNotReady", snapshot(probe=stated(fabric="in progress")), DiagnosticData(), CONSISTENT),
    (
        "FabricNotReady",
        snapshot(probe=stated(fabric="in progress")),
        DiagnosticData(cuda=seen(CudaReport("cuDeviceGetCount", 0, 2))),
        None,
    ),
    ("DriverLibraryMismatch", snapshot(probe=failing(18)), DiagnosticData(), CONFIRMED),
    (
        "DriverLibraryMismatch",
        snapshot(
            **logged(
                "NVRM: API mismatch: the client has the version 550.90.07, but NVRM: this "
                "kernel module has the version "
                "550.54.15."
            )
        ),
        DiagnosticData(),
        CONSISTENT,
    ),
    (
        "FellOffBus",
        snapshot(
            **SEVEN, **logged(f"NVRM: Xid (PCI:{PCI_BUS[:-2]}): 79, GPU has fallen off the bus.")
        ),
        DiagnosticData(),
        CONFIRMED,
    ),
    (
        "FellOffBus",
        snapshot(**LOST_GPU),
        said("NVRM: Xid (PCI:0000:0f:00): 79, GPU has fallen off the bus.", source="kernel"),
        CONFIRMED,
    ),
    ("FellOffBus", snapshot(**LOST_GPU), DiagnosticData(), CONSISTENT),
    ("FellOffBus", snapshot(**SEVEN), DiagnosticData(), None),
    (
        "GspTimeout",
        snapshot(**logged("NVRM: Xid (PCI:0000:0f:00): 119, Timeout", NOW - 1)),
        DiagnosticData(),
        CONFIRMED,
    ),
    (
        "GpuInitFailed",
        snapshot(**SEVEN, **logged(f"NVRM: GPU {PCI_BUS}: RmInitAdapter failed! (0x24:0x72:1568)")),
        DiagnosticData(),
        CONFIRMED,
    ),
    (
        "GpuInitFailed",
        snapshot(**logged(f"NVRM: GPU {PCI_BUS}: RmInitAdapter failed! (0x24:0x72:1568)")),
        DiagnosticData(),
        None,
    ),
    ("GpuAbsentFromNvml", snapshot(**SEVEN), DiagnosticData(), CONFIRMED),
    (
        "NvmlHang",
        snapshot(probe=probed(end=ProbeEnd.HUNG, detail="pid 7, state D")),
        DiagnosticData(),
        CONFIRMED,
    ),
    ("NvmlHang", snapshot(), DiagnosticData(cuda=TIMED_OUT), CONFIRMED),
    ("NvmlNotReady", snapshot(probe=failing(999)), DiagnosticData(), CONFIRMED),
    ("GpuWantsReset", snapshot(probe=stated(remap_pending=True)), DiagnosticData(), CONFIRMED),
    # --- link 6 and 12
    (
        "NoNvidiaHandler",
        snapshot(),
        said('failed to get sandbox runtime: no runtime for "nvidia" is configured'),
        CONFIRMED,
    ),
    (
        "PluginWithoutLibrary",
        unlisted(plugins=(sight(b"Failed to initialize NVML: could not load NVML library.\n"),)),
        DiagnosticData(),
        CONFIRMED,
    ),
    ("CdiSpecMissing", snapshot(), said("unresolvable CDI devices nvidia.com/gpu=0"), CONSISTENT),
    (
        "ContainerToolkit251",
        access.access_scene(verdicts=(LOST,), sightings=(RELOADED,)),
        DiagnosticData(),
        CONFIRMED,
    ),
    ("ContainerToolkit251", access.access_scene(verdicts=(LOST,)), DiagnosticData(), CONSISTENT),
    (
        "ContainerToolkit251",
        access.access_scene(verdicts=(LOST,), sightings=(TOUCHED,)),
        DiagnosticData(),
        None,
    ),
    ("ContainerToolkit251", DENIED_PLUGIN, DiagnosticData(), CONSISTENT),
    ("ContainerToolkit251", unlisted(), DiagnosticData(), CONSISTENT),
    (
        "ContainerToolkit251",
        unlisted(plugins=(sight(FAILED_LOG, access=True),)),
        DiagnosticData(),
        None,
    ),
    (
        "CpuManagerUpdate",
        access.access_scene(verdicts=(LOST,), sightings=(TOUCHED,)),
        DiagnosticData(cpu_policy=seen("static")),
        CONFIRMED,
    ),
    (
        "CpuManagerUpdate",
        access.access_scene(verdicts=(LOST,), sightings=(TOUCHED,)),
        DiagnosticData(cpu_policy=seen("none")),
        CONSISTENT,
    ),
    (
        "CpuManagerUpdate",
        access.access_scene(verdicts=(LOST,), sightings=(RELOADED,)),
        DiagnosticData(cpu_policy=seen("static")),
        None,
    ),
    ("ReloadWillTakeDevices", access.access_scene(), DiagnosticData(), CONFIRMED),
    # --- links 8 and 9
    ("EarlyNvml", unlisted(), DiagnosticData(), CONSISTENT),
    (
        "EarlyNvml",
        unlisted(),
        said(
            "device 0000:07:00.0 - persistence mode enabled.",
            STARTED_AT + 5,
            "nvidia-persistenced.service",
        ),
        CONFIRMED,
    ),
    (
        "EarlyNvml",
        unlisted(),
        said(
            "device 0000:07:00.0 - persistence mode enabled.",
            STARTED_AT - 5,
            "nvidia-persistenced.service",
        ),
        CONSISTENT,
    ),
    (
        "EarlyNvml",
        unlisted(**WATCHED_EARLY),
        DiagnosticData(first_seen=seen(Mark("", STARTED_AT + 5))),
        CONFIRMED,
    ),
    (
        "EarlyNvml",
        unlisted(),
        DiagnosticData(first_seen=seen(Mark("", STARTED_AT + 5))),
        CONSISTENT,
    ),
    ("EarlyNvml", unlisted(probe=failing(999)), DiagnosticData(), CONFIRMED),
    ("EarlyNvml", DENIED_PLUGIN, DiagnosticData(), None),
    ("EarlyNvml", forgotten(10.0), DiagnosticData(), None),
    ("UnitNotRegistered", UNIT_PLUGIN, DiagnosticData(), CONSISTENT),
    ("UnitNotRegistered", UNIT_PLUGIN, said(FAILED_LINE, 90.0, AKS), CONFIRMED),
    (
        "UnitNotRegistered",
        UNIT_PLUGIN,
        said("No devices found. Waiting indefinitely.", 90.0, AKS),
        CONFIRMED,
    ),
    (
        "UnitNotRegistered",
        UNIT_PLUGIN,
        said(FAILED_LINE, 20.0, AKS),
        CONSISTENT,
    ),  # of its start before
    ("UnitNotRegistered", UNIT_PLUGIN, said(FAILED_LINE, 90.0, "dcgm.service"), CONSISTENT),
    ("UnitNotRegistered", unlisted(), DiagnosticData(), None),
    ("DeafPlugin", unlisted(), DiagnosticData(), CONFIRMED),
    (
        "DeafPlugin",
        unlisted(plugins=(sight(FAILED_LOG, of=container(image="registry/plugin:v0.17.0")),)),
        DiagnosticData(),
        None,
    ),
    (
        "DeafPlugin",
        unlisted(plugins=(sight(FAILED_LOG, of=container(image="registry/plugin:latest")),)),
        DiagnosticData(),
        CONSISTENT,
    ),
    ("PluginOwnAccessLost", DENIED_PLUGIN, DiagnosticData(), CONFIRMED),
    ("ContainerOlderThanModule", unlisted(**LOADED_LATE), DiagnosticData(), CONFIRMED),
    ("K8sDevicePlugin426", forgotten(STARTED_AT + 500), DiagnosticData(), CONFIRMED),
    ("K8sDevicePlugin426", forgotten(NOW - 5), DiagnosticData(), CONSISTENT),
    ("K8sDevicePlugin426", forgotten(STARTED_AT - 40), DiagnosticData(), None),
    (
        "K8sDevicePlugin426",
        forgotten(STARTED_AT + 500),
        said(
            'Got registration request from device plugin with resource" '
            'resourceName="nvidia.com/gpu"',
            NOW - 9,
        ),
        None,
    ),
    ("OverlapOfTwo", forgotten(STARTED_AT - 40), DiagnosticData(), CONSISTENT),
    (
        "OverlapOfTwo",
        forgotten(STARTED_AT - 40),
        said(
            '"ListAndWatch ended unexpectedly for device plugin" err="EOF" '
            'resource="nvidia.com/gpu"'
        ),
        CONFIRMED,
    ),
    ("OverlapOfTwo", forgotten(STARTED_AT + 500), DiagnosticData(), None),
    (
        "TwoPlugins",
        unlisted(plugins=(sight(), sight(of=container("c2")))),
        DiagnosticData(),
        CONFIRMED,
    ),
    (
        "PluginSawFewer",
        snapshot(allocatable=seen((Devices("nvidia.com/gpu", UUIDS[:1]),))),
        DiagnosticData(),
        CONFIRMED,
    ),
    (
        "PluginMarkedUnhealthy",
        unlisted(plugins=(sight(b"'nvidia.com/gpu' device marked unhealthy: GPU-1\n"),)),
        DiagnosticData(),
        CONFIRMED,
    ),
    (
        "RegistrationFailed",
        unlisted(plugins=(sight(b"Could not register device plugin: deadline exceeded\n"),)),
        DiagnosticData(),
        CONFIRMED,
    ),
    (
        "RegistrationFailed",
        unlisted(plugins=(sight(b"Starting to serve on /x/nvidia.sock\n"),)),
        DiagnosticData(),
        None,
    ),
    ("EarlyNvml", unlisted(probe=failing(18)), DiagnosticData(), None),
    (
        "GpuAbsentFromNvml",
        snapshot(pci=seen((function(BUSES[0]), function(BUSES[1], ""))), **SEVEN),
        DiagnosticData(),
        None,
    ),
    (
        "PluginHangsInNvml",
        unlisted(plugins=(sight(b"2026/11/29 12:46:07 Loading NVML\n"),)),
        DiagnosticData(),
        CONSISTENT,
    ),
    ("NoPlugin", unlisted(plugins=(), runtime=seen(Runtime((), ()))), DiagnosticData(), CONFIRMED),
    ("PluginPodWaits", UNMADE, DiagnosticData(), CONFIRMED),
    ("NoPlugin", UNMADE, DiagnosticData(), None),
    (
        "MpsDaemonMissing",
        unlisted(plugins=(sight(b"Failed to start plugin: error waiting for MPS daemon: x\n"),)),
        DiagnosticData(),
        CONFIRMED,
    ),
    (
        "PluginHangsInNvml",
        unlisted(plugins=(sight(b"Retrieving plugins.\nerror waiting for MPS daemon: x\n"),)),
        DiagnosticData(),
        None,
    ),
    (
        "PluginHangsInNvml",
        unlisted(plugins=(sight(b"Retrieving plugins.\n", of=container(attempt=4)),)),
        DiagnosticData(),
        CONSISTENT,
    ),  # it was started long ago
    ("PluginPodWaits", NO_PLUGIN, said(NO_SANDBOX, NOW - 60), CONFIRMED),
    ("PluginPodWaits", NO_PLUGIN, said(NO_SANDBOX, NOW - 700), CONSISTENT),
    ("PluginPodWaits", snapshot(), said(NO_SANDBOX, NOW - 60), None),
    ("NoPlugin", NO_PLUGIN, said(NO_SANDBOX, NOW - 60), None),
    ("PluginPodTurnedOut", NO_PLUGIN, said(EVICTED, NOW - 700), CONFIRMED),
    ("PluginPodTurnedOut", snapshot(), said(EVICTED, NOW - 60), None),
    ("PluginTriesAgain", GKE_AGAIN, DiagnosticData(), CONFIRMED),
    ("MpsDaemonMissing", GKE_AGAIN, DiagnosticData(), None),
    ("PluginHealthFailed", UNWATCHED, DiagnosticData(), CONFIRMED),
    ("PluginHealthFailed", changed(UNWATCHED, kernel=DENIED), DiagnosticData(), None),
    ("PluginMarkedUnhealthy", changed(UNWATCHED, kernel=DENIED), DiagnosticData(), CONFIRMED),
    ("PluginCrashes", BETWEEN, DiagnosticData(), CONSISTENT),
    ("PluginHangsInNvml", BETWEEN, DiagnosticData(), None),
    ("PluginNotPermitted", NOT_PERMITTED, DiagnosticData(), CONFIRMED),
    ("EarlyNvml", NOT_PERMITTED, DiagnosticData(), None),
    (
        "PluginMarkedUnhealthy",
        unlisted(
            plugins=(
                sight(
                    WELL_LOG + b"Skipping non-nvmlEventTypeXidCriticalError event: {EventType:2}\n"
                ),
            )
        ),
        DiagnosticData(),
        None,
    ),
    (
        "HookRefused",
        NO_PLUGIN,
        said("nvidia-container-cli: mount error: failed to add device rules"),
        CONFIRMED,
    ),
    (
        "HookRefused",
        NO_PLUGIN,
        said("nvidia-container-cli: error of a kind that nobody knows"),
        CONFIRMED,
    ),
    (
        "HookRefused",
        NO_PLUGIN,
        said("nvidia-container-cli: ldcache error: process /sbin/ldconfig failed"),
        None,
    ),
    (
        "PluginWithoutLibrary",
        NO_PLUGIN,
        said("nvidia-container-cli: initialization error: load library failed: libnvidia-ml.so.1"),
        CONFIRMED,
    ),
    (
        "PluginWithoutLibrary",
        NO_PLUGIN,
        said("nvidia-container-cli: device error: 8: unknown device"),
        None,
    ),
    (
        "ContainerOlderThanModule",
        unlisted(plugins=(sight(OTHER_LIBRARY),)),
        DiagnosticData(),
        CONFIRMED,
    ),
    (
        "ContainerOlderThanModule",
        unlisted(plugins=(sight(OTHER_LIBRARY),), probe=failing(18)),
        DiagnosticData(),
        None,
    ),
    ("EarlyNvml", unlisted(plugins=(sight(OTHER_LIBRARY),)), DiagnosticData(), None),
    ("RegistrationFailed", forgotten(60.0), said(NOT_REACHED, NOW - 5), CONFIRMED),
    (
        "RegistrationFailed",
        forgotten(60.0),
        said(NOT_REACHED, 90.0),
        None,
    ),  # before this plugin's start
    (
        "PluginWithoutLibrary",
        unlisted(
            plugins=(
                sight(
                    b"Incompatible strategy detected auto\n",
                    of=container(state=ContainerState.EXITED),
                ),
            )
        ),
        DiagnosticData(),
        CONFIRMED,
    ),
    (
        "PluginWithoutLibrary",
        unlisted(plugins=(sight(FAILED_LOG, of=container(state=ContainerState.EXITED)),)),
        DiagnosticData(),
        None,
    ),
    (
        "FellOffBus",
        snapshot(pci=seen((function(BUSES[0]), function(BUSES[1], ""))), **SEVEN, **logged(DEAD)),
        DiagnosticData(),
        CONFIRMED,
    ),
    (
        "GspFirmwareMissing",
        snapshot(**SEVEN, **logged(FIRMWARE.format("gsp_ga10x"))),
        DiagnosticData(),
        CONFIRMED,
    ),
    (
        "GspFirmwareMissing",
        snapshot(**SEVEN, **logged(FIRMWARE.format("gsp_log_ga10x"))),
        DiagnosticData(),
        None,
    ),
    (
        "GspFirmwareMissing",
        snapshot(**logged(FIRMWARE.format("gsp_ga10x"))),
        DiagnosticData(),
        None,
    ),
    # --- the kubelet
    (
        "KubeletDown",
        snapshot(units=seen((unit("kubelet.service", "inactive"),)), allocatable=MISSING),
        DiagnosticData(),
        CONFIRMED,
    ),
    ("KubeletSocketGone", unlisted(plugin_sockets=seen(())), DiagnosticData(), CONFIRMED),
    ("KubeletSocketGone", snapshot(plugin_sockets=MISSING), DiagnosticData(), None),
    ("KubeletSocketGone", snapshot(plugin_sockets=TIMED_OUT), DiagnosticData(), None),
    (
        "KubeletSocketGone",
        snapshot(plugin_sockets=seen(()), allocatable=TIMED_OUT),
        DiagnosticData(),
        None,
    ),
    ("KubeletCannotWrite", snapshot(), said(NOT_WRITTEN), CONFIRMED),
    (
        "KubeletTooOld",
        snapshot(allocatable=Refusal(Why.MISSING, "UNIMPLEMENTED: unknown method")),
        DiagnosticData(),
        CONFIRMED,
    ),
    ("KubeletTooOld", snapshot(allocatable=MISSING), DiagnosticData(), None),
    ("KubeletElsewhere", snapshot(allocatable=MISSING), DiagnosticData(), CONSISTENT),
    ("KubeletElsewhere", snapshot(allocatable=TIMED_OUT), DiagnosticData(), None),
    ("KubeletSilent", snapshot(allocatable=TIMED_OUT), DiagnosticData(), CONSISTENT),
    ("KubeletSilent", snapshot(allocatable=MISSING), DiagnosticData(), None),
    ("KubeletSilent", snapshot(allocatable=DENIED), DiagnosticData(), None),
    (
        "StaleCheckpoint",
        unlisted(checkpoint=seen({"nvidia.com/gpu": 2})),
        DiagnosticData(),
        CONFIRMED,
    ),
    ("StaleCheckpoint", snapshot(), DiagnosticData(), None),
    ("CheckpointTorn", snapshot(checkpoint=FAILED), DiagnosticData(), CONFIRMED),
    (
        "CheckpointTorn",
        snapshot(checkpoint=Refusal(Why.FAILED, f"f {UNKNOWN_FORM}: …")),
        DiagnosticData(),
        CONSISTENT,
    ),
    ("CheckpointTorn", snapshot(checkpoint=DENIED), DiagnosticData(), None),
    (
        "OutOfGpus",
        snapshot(),
        said("Node didn't have enough resource: nvidia.com/gpu, requested: 1"),
        CONFIRMED,
    ),
    (
        "OutOfGpus",
        snapshot(),
        said("Node didn't have enough resource: cpu, requested: 1, used: 0"),
        None,
    ),
    ("UnexpectedAdmission", snapshot(), said(ALLOCATE), CONFIRMED),
    ("InitContainerRace", snapshot(), said(ALLOCATE, KUBELET_AT + 20), CONSISTENT),
    ("InitContainerRace", snapshot(), said(ALLOCATE, KUBELET_AT + 400), None),
    ("AllocatableButLost", snapshot(**LOST_GPU), DiagnosticData(), CONFIRMED),
    ("RuntimeSilent", snapshot(runtime=TIMED_OUT), DiagnosticData(), CONFIRMED),
    ("RuntimeSilent", snapshot(runtime=MISSING), DiagnosticData(), CONSISTENT),
    ("RuntimeSilent", snapshot(runtime=Refusal(Why.NOT_RECORDED)), DiagnosticData(), None),
]
BY_REASON = {
    "GpuNotOnBus": "PciShort",
    "GpuUnsupported": "GpuUnsupported",
    "CdiSpecMissing": "CdiMissing",
    "CdiSpecOld": "CdiOlderDriver",
    "CdiSpecPointsNowhere": "CdiPathsMissing",
    "CdiSpecBroken": "CdiConflict",
    "PluginGivenNothing": "PluginGivenNothing",
    "PluginCrashes": "PluginExited",
    "NodeShowsFewer": "NodeShowsFewer",
    "OverlapOfTwo": "AnotherServes",
}


@pytest.mark.parametrize(
    ("fault", "of", "diagnostics", "strength"),
    ROWS,
    ids=[f"{r[0]}-{r[3].value if r[3] else 'not'}-{n}" for n, r in enumerate(ROWS)],
)
def test_each_fault(
    fault: str, of: Snapshot, diagnostics: DiagnosticData, strength: Strength | None
) -> None:
    known = found(of, diagnostics).get(fault)
    assert (known.strength if known else None) is strength, known
    if known and strength is CONSISTENT:
        assert known.decide and known.capture and "{" not in known.capture


@pytest.mark.parametrize(("fault", "reason"), BY_REASON.items())
def test_faults_confirmed_by_a_finding(fault: str, reason: str) -> None:
    ids = {s.id: s.strength for s in suspects(snapshot(), reasoned(reason))}
    assert ids.get(fault) is CONFIRMED
    assert fault not in {s.id for s in suspects(snapshot(), reasoned(reason, Verdict.UNKNOWN))}


def test_every_fault_is_tried_in_each_of_its_strengths() -> None:
    tried = {(fault, strength) for fault, _, _, strength in ROWS} | {
        (fault, CONFIRMED) for fault in BY_REASON
    }
    never_sure = {f.id for f in FAULTS if f.confirmed.startswith("none that")}
    hinted = {"NoNvidiaHandler"}
    for fault in FAULTS:
        assert (fault.id, CONFIRMED) in tried or fault.id in never_sure, fault.id
        assert (fault.id, CONSISTENT) in tried or not fault.consistent or fault.id in hinted, (
            fault.id
        )


def test_remedies_for_a_container_apply_to_a_unit() -> None:
    older = found(changed(UNIT_PLUGIN, **LOADED_LATE))["ContainerOlderThanModule"]
    assert older.do == f"systemctl restart {AKS}" and "restart its unit" in older.remedy
    assert found(UNIT_PLUGIN)["UnitNotRegistered"].capture == f"journalctl -b -u {AKS} -n 50"


def test_only_the_kubelet_can_show_that_no_container_holds_a_gpu() -> None:
    """A container without a claim that we know of may have been allocated one."""

    def workloads(**changes: Any) -> Finding:
        of = snapshot(
            **{"processes": seen(()), "runtime": seen(Runtime((), ())), "plugins": (), **changes}
        )
        return next(
            f
            for f in links(of, diagnose(of, DEFAULTS), DiagnosticData())
            if f.condition == "WorkloadAccess"
        )

    assert workloads(allocations=seen(())).verdict is Verdict.HOLDS
    assert workloads(allocations=TIMED_OUT).verdict is Verdict.UNKNOWN
    assert (
        workloads(allocations=MISSING, allocatable=MISSING, units=seen(())).verdict is Verdict.HOLDS
    )  # no kubelet


def test_a_healthy_node_has_no_fault() -> None:
    assert found(snapshot()) == {}
    assert (
        found(
            snapshot(),
            DiagnosticData(
                cuda=seen(CudaReport("cuDeviceGetCount", 0, 2)), cpu_policy=seen("static")
            ),
        )
        == {}
    )


def test_reasons_that_faults_refer_to_exist() -> None:
    page = (Path(faults.__file__).parents[3] / "docs/reasons.md").read_text()
    for path in Path(faults.__file__).parent.glob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            name = getattr(call, "func", None)
            named = getattr(name, "id", "") == "when" or getattr(name, "attr", "") == "finding"
            for word in call.args if isinstance(call, ast.Call) and named else ():
                if isinstance(word, ast.Constant):
                    assert f"`{word.value}`" in page or str(word.value).startswith("Nvml"), (
                        word.value
                    )


# --- the chain


def broken(of: Snapshot, diagnostics: DiagnosticData = NO_DIAGNOSTICS) -> tuple[int, str]:
    of_node = first_broken(links(of, diagnose(of, DEFAULTS), diagnostics))
    return (of_node.link, of_node.reason) if of_node else (0, "")


@pytest.mark.parametrize(
    ("of", "diagnostics", "link"),
    [
        (snapshot(), DiagnosticData(), (0, "")),
        (unlisted(), DiagnosticData(), (8, "PluginInitFailed")),
        (
            snapshot(allocatable=MISSING, units=seen((unit("kubelet.service", "failed"),))),
            DiagnosticData(),
            (7, "KubeletInactive"),
        ),
        (snapshot(allocatable=MISSING, units=seen(())), DiagnosticData(), (0, "")),
        (access.access_scene(verdicts=(LOST,)), DiagnosticData(), (12, "AccessDenied")),
        (snapshot(probe=failing(999), allocatable=seen(())), DiagnosticData(), (5, "NvmlUnknown")),
        (snapshot(), DiagnosticData(cuda=seen(CudaReport("cuInit", 802))), (4, "CudaNotReady")),
        (snapshot(), DiagnosticData(cuda=seen(CudaReport("cuInit", 3))), (5, "CudaFailed")),
        (snapshot(), DiagnosticData(cuda=TIMED_OUT), (5, "CudaSilent")),
        (snapshot(), DiagnosticData(cuda=FAILED), (0, "")),
        (snapshot(), DiagnosticData(sockets=(SocketSight("nvidia-gpu.sock", FAILED),)), (0, "")),
    ],
)
def test_the_first_broken_link(
    of: Snapshot, diagnostics: DiagnosticData, link: tuple[int, str]
) -> None:
    assert broken(of, diagnostics) == link


def test_every_link_has_a_finding() -> None:
    chain = links(snapshot(), diagnose(snapshot(), DEFAULTS), DiagnosticData())
    assert {f.link for f in chain} == set(range(1, 15))
    assert [f.link for f in chain] == sorted(f.link for f in chain)
    assert {f.condition for f in chain if f.link in (13, 14)} == {"NotAsked"}
    none = snapshot(pci=seen(()))
    assert all(
        f.condition != "NotAsked" for f in links(none, diagnose(none, DEFAULTS), DiagnosticData())
    )


def test_a_silent_component_is_unknown_and_not_broken() -> None:
    silent = snapshot(
        allocatable=DENIED, runtime=DENIED, units=DENIED, processes=DENIED, kernel=DENIED
    )
    chain = links(silent, diagnose(silent, DEFAULTS), DiagnosticData(journal=DENIED, cuda=DENIED))
    assert first_broken(chain) is None
    unknown = first_unknown(chain)
    assert unknown is not None and unknown.condition == "PluginRegistered"
    assert found(silent, DiagnosticData(journal=DENIED, cuda=DENIED)) == {}


def test_a_symptom_is_not_a_cause() -> None:
    of = unlisted(checkpoint=seen({"nvidia.com/gpu": 2}))
    diagnosis = diagnose(of, DEFAULTS)
    first = first_broken(links(of, diagnosis, DiagnosticData()))
    assert first is not None
    assert [s.id for s in causes(first, suspects(of, diagnosis))] == [
        "EarlyNvml",
        "ContainerToolkit251",
    ]


def explained(of: Snapshot, diagnostics: DiagnosticData = NO_DIAGNOSTICS) -> list[str]:
    diagnosis = diagnose(of, DEFAULTS)
    first = first_broken(links(of, diagnosis, diagnostics))
    return [s.id for s in causes(first, suspects(of, diagnosis, diagnostics))] if first else []


def test_the_cause_of_a_missing_plugin_and_not_an_unused_spec() -> None:
    refused = said(
        "nvidia-container-cli: ldcache error: process /sbin/ldconfig terminated with signal 9",
        NOW - 9,
    )
    assert explained(NO_PLUGIN, refused)[0] == "PluginWithoutLibrary"
    stale = replace(
        diagnose(NO_PLUGIN, DEFAULTS),
        findings=reasoned("CdiOlderDriver").findings[-1:] + diagnose(NO_PLUGIN, DEFAULTS).findings,
    )
    first = first_broken(tuple(f for f in stale.findings if f.condition == "PluginHealthy"))
    assert first and [s.id for s in causes(first, suspects(NO_PLUGIN, stale))] == ["NoPlugin"]
    ended = unlisted(
        plugins=(
            sight(
                b"Incompatible strategy detected auto\n", of=container(state=ContainerState.EXITED)
            ),
        )
    )
    assert explained(ended) == ["PluginWithoutLibrary", "PluginCrashes"]
    assert (
        explained(
            unlisted(plugins=(sight(FAILED_LOG, of=container(state=ContainerState.EXITED)),)),
            refused,
        )[0]
        == "PluginCrashes"
    )  # it ran: another container was refused
