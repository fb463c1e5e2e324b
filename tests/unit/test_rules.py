"""Each condition: when it holds, when it fails, when it is unknown, and its sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from agent.core.diagnose import diagnose
from agent.model.actions import LinkDevChar, LoadModule, MakeNodes
from agent.model.finding import Heals, Scope, Verdict
from agent.model.mark import Mark
from agent.model.reading import Refusal
from agent.model.reason import Reason
from agent.model.settings import Settings
from agent.model.snapshot import (
    DeviceNode,
    Devices,
    Entry,
    Gpu,
    Manager,
    NvmlError,
    ProbeEnd,
    ProbeState,
    Remains,
)

from .snapshots import (
    BUSES,
    DEFAULTS,
    DENIED,
    FAILED,
    GPUS,
    LINKS,
    MAJORS,
    MISSING,
    NO_DRIVER,
    NODES,
    NOW,
    TIMED_OUT,
    UUIDS,
    diagnosed,
    failing,
    finding,
    function,
    probed,
    report,
    seen,
    snapshot,
    unit,
)

HOLDS, FAILS, UNKNOWN = Verdict.HOLDS, Verdict.FAILS, Verdict.UNKNOWN
KUBELET = unit("kubelet.service", since=50.0)


def listed(ids: Sequence[str], resource: str = "nvidia.com/gpu", at: float = NOW) -> Any:
    """The kubelet's own answer."""
    return seen((Devices(resource, tuple(ids)),), at)


def test_a_healthy_node_has_no_broken_link_and_no_note() -> None:
    diagnosis = diagnosed()
    assert diagnosis.first_broken() is None
    assert {f.verdict for f in diagnosis.findings} <= {HOLDS, FAILS}
    assert [f.condition for f in diagnosis.findings if f.verdict is FAILS] == [
        "PluginSocket"
    ]  # a hint only
    assert diagnosis.additive == ()
    assert diagnosis.expected == BUSES
    assert (diagnosis.scope, diagnosis.may_probe, diagnosis.kubelet_active) == (
        Scope.GPUS,
        True,
        True,
    )


def test_findings_come_in_the_order_of_the_chain() -> None:
    links = [
        f.link for f in diagnosed(learned=seen(("0000:ff:00.0",)), char_links=seen({})).findings
    ]
    assert links == sorted(links)


SWITCHED = seen((*(function(b) for b in BUSES), function("0000:c0:00.0", "nvidia", 0x068000)))
# condition, what is changed, settings, verdict, reason, a part of the sentence
CASES: list[tuple[str, dict[str, Any], dict[str, Any], Verdict, str, str]] = [
    # 1 PCI
    ("GpusOnPci", {}, {}, HOLDS, "", "2 GPUs on the PCI bus"),
    (
        "GpusOnPci",
        {"pci": DENIED},
        {},
        UNKNOWN,
        "PciUnreadable",
        "could not be read (not-permitted",
    ),
    ("GpusOnPci", {"pci": FAILED}, {}, UNKNOWN, "PciUnreadable", "Input/output error"),
    ("GpusOnPci", {"pci": MISSING}, {}, HOLDS, "NoGpuForContainers", "no PCI bus"),
    (
        "GpusOnPci",
        {"pci": seen(())},
        {},
        HOLDS,
        "NoGpuForContainers",
        "no NVIDIA GPU on the PCI bus",
    ),
    ("GpusOnPci", {}, {"expected_gpus": ("8",)}, FAILS, "PciShort", "2 of 8 expected GPUs"),
    (
        "GpusOnPci",
        {},
        {"expected_gpus": (*UUIDS, "GPU-x")},
        FAILS,
        "PciShort",
        "2 of 3 expected GPUs",
    ),
    ("GpusOnPci", {}, {"expected_gpus": ("2",)}, HOLDS, "", "2 GPUs"),
    (
        "GpusOnPci",
        {},
        {"expected_gpus": ("0",)},
        HOLDS,
        "NoGpuForContainers",
        "the owner expects no GPU",
    ),
    (
        "GpusOnPci",
        {"pci": seen((function(BUSES[0], "vfio-pci"),))},
        {},
        HOLDS,
        "NoGpuForContainers",
        f"{BUSES[0]} vfio-pci",
    ),
    (
        "GpusOnPci",
        {"pci": seen((function(BUSES[0], "", override="vfio-pci"),))},
        {},
        HOLDS,
        "NoGpuForContainers",
        "vfio-pci (driver_override)",
    ),
    (
        "GpusOnPci",
        {},
        {"exclude_gpus": BUSES},
        HOLDS,
        "NoGpuForContainers",
        "excluded by ExcludeGPUs=",
    ),
    (
        "GpusOnPci",
        {},
        {"exclude_gpus": ("00000000:07:00.0",)},
        HOLDS,
        "",
        "1 GPUs on the PCI bus; 0000:07:00.0: exc",
    ),
    (
        "GpusOnPci",
        {
            "pci": seen(
                (function(BUSES[0], class_code=0x040300), function(BUSES[1], class_code=0x068000))
            )
        },
        {},
        HOLDS,
        "NoGpuForContainers",
        "no NVIDIA GPU on the PCI bus",
    ),  # sound, NVSwitch
    (
        "GpusBound",
        {"pci": seen((function(BUSES[0]), function(BUSES[1], "")))},
        {},
        FAILS,
        "GpuUnbound",
        f"1 of 2 GPUs bound to no driver: {BUSES[1]}",
    ),
    (
        "GpusBound",
        {"pci": seen((function(BUSES[0]), function(BUSES[1], "nouveau")))},
        {},
        FAILS,
        "NouveauBound",
        f"bound to nouveau: {BUSES[1]}",
    ),
    # 2 driver
    ("DriverLoaded", {}, {}, HOLDS, "", "driver 550.54.15"),
    ("DriverLoaded", {"module_state": seen("coming")}, {}, FAILS, "DriverLoading", "still loading"),
    (
        "DriverLoaded",
        {"driver_version": DENIED, "module_state": MISSING},
        {},
        UNKNOWN,
        "DriverUnreadable",
        "not-perm",
    ),
    (
        "DriverLoaded",
        {"driver_version": FAILED, "module_state": MISSING},
        {},
        FAILS,
        "DriverUnreadable",
        "failed",
    ),
    (
        "DriverLoaded",
        NO_DRIVER,
        {},
        FAILS,
        "DriverNotInstalled",
        "no nvidia driver on the host yet",
    ),
    (
        "DriverLoaded",
        {**NO_DRIVER, "module_installed": seen("updates/dkms/nvidia.ko")},
        {},
        FAILS,
        "DriverNotLoaded",
        "updates/dkms/nvidia.ko is installed and not loaded yet",
    ),
    (
        "DriverLoaded",
        {**NO_DRIVER, "driver_building": seen("nvidia 550")},
        {},
        FAILS,
        "DriverNotLoaded",
        "dkms is building nvidia 550",
    ),
    (
        "DriverLoaded",
        {**NO_DRIVER, "module_installed": DENIED},
        {},
        FAILS,
        "DriverNotLoaded",
        "whether a driver is installed could not be read",
    ),
    # 3 device nodes
    ("DeviceNodes", {}, {}, HOLDS, "", "5 device nodes under /dev"),
    (
        "DeviceNodes",
        {"nodes": DENIED},
        {},
        UNKNOWN,
        "DevUnreadable",
        "/dev was not read (not-permitted",
    ),
    (
        "DeviceNodes",
        {"nodes": seen(NODES[:2])},
        {},
        FAILS,
        "DeviceNodesMissing",
        "missing: /dev/nvidiactl, /dev/nvidia-uvm, /dev/nvidia-uvm-tools",
    ),
    (
        "DeviceNodes",
        {"nodes": seen(NODES[1:])},
        {},
        FAILS,
        "DeviceNodesMissing",
        "missing: /dev/nvidia0",
    ),
    (
        "DeviceNodes",
        {"nodes": seen((DeviceNode("/dev/nvidia0", 1, 3), *NODES[1:]))},
        {},
        FAILS,
        "DeviceNodesMissing",
        "/dev/nvidia0",
    ),  # a node with somebody else's major is not this node
    ("DeviceNodes", {"majors": DENIED}, {}, HOLDS, "", "5 device nodes"),
    (
        "DevCharLinks",
        {"char_links": seen({k: v for k, v in LINKS.items() if k != "195:1"})},
        {},
        FAILS,
        "DevCharLinksMissing",
        "no /dev/char link for 195:1",
    ),
    (
        "UvmLoaded",
        {"majors": seen({k: v for k, v in MAJORS.items() if k != "nvidia-uvm"})},
        {},
        FAILS,
        "UvmNotLoaded",
        "CUDA loads it at its first use",
    ),
    (
        "DeviceNodes",
        {
            "nodes": seen(tuple(replace(n, major=510) if "uvm" in n.path else n for n in NODES)),
            "majors": seen({**MAJORS, "nvidia-caps": 510}),
        },
        {},
        FAILS,
        "DeviceNodesMissing",
        "/dev/nvidia-uvm (it is there as 510:0, which is not its driver's)",
    ),
    (
        "DeviceNodesOpen",
        {"nodes": seen((replace(NODES[0], mode=0o660), *NODES[1:]))},
        {},
        FAILS,
        "DeviceNodesClosed",
        "only their owner and group may open /dev/nvidia0 (0660)",
    ),
    # 4 services
    ("PersistenceActive", {}, {}, HOLDS, "", "nvidia-persistenced.service is active"),
    (
        "PersistenceActive",
        {"units": TIMED_OUT},
        {},
        UNKNOWN,
        "SystemdUnreadable",
        "systemd was not read (timed-out",
    ),
    (
        "PersistenceActive",
        {"units": seen((unit("nvidia-persistenced.service", "inactive"),))},
        {},
        FAILS,
        "PersistenceInactive",
        "is inactive",
    ),
    (
        "PersistenceActive",
        {"units": seen((unit("nvidia-persistenced.service", "inactive", "not-found"),))},
        {},
        FAILS,
        "PersistenceInactive",
        "is not-found",
    ),
    (
        "FabricManagerActive",
        {"units": seen((unit("nvidia-fabricmanager.service", "failed"),))},
        {},
        FAILS,
        "FabricManagerFailed",
        "has failed",
    ),
    (
        "FabricManagerActive",
        {"units": seen((unit("nvidia-fabricmanager.service", "inactive"),)), "pci": SWITCHED},
        {},
        FAILS,
        "FabricManagerInactive",
        "NVSwitches are on the PCI bus, and nvidia-fabricmanager.service does not run",
    ),
    (
        "ImexActive",
        {"units": seen((unit("nvidia-imex.service", "failed"),))},
        {},
        FAILS,
        "ImexFailed",
        "has failed",
    ),
    # 5 NVML
    ("NvmlComplete", {}, {}, HOLDS, "", "NVML enumerates 2 of 2 GPUs"),
    (
        "NvmlComplete",
        {"probe": seen(ProbeState())},
        {},
        UNKNOWN,
        "NotProbed",
        "no probe has been made",
    ),
    ("NvmlComplete", {"probe": DENIED}, {}, UNKNOWN, "NotProbed", "no probe has been made"),
    (
        "NvmlComplete",
        {"probe": seen(ProbeState(running_since=NOW - 7))},
        {},
        UNKNOWN,
        "NotProbed",
        "first probe under way for 7 s",
    ),
    (
        "NvmlComplete",
        {"probe": probed(gpus=GPUS[:1])},
        {},
        FAILS,
        "GpuMissing",
        f"1 of 2: {BUSES[1]} on PCI, absent from NVML",
    ),
    ("NvmlComplete", {"probe": probed(gpus=())}, {}, FAILS, "GpuMissing", "0 of 2"),
    (
        "NvmlComplete",
        {"probe": probed(gpus=(), excluded=BUSES)},
        {},
        FAILS,
        "GpuMissing",
        "NVML enumerates no GPU",
    ),
    (
        "NvmlComplete",
        {"probe": failing(999)},
        {},
        FAILS,
        "NvmlUnknown",
        "nvmlInit said NVML_ERROR_UNKNOWN (999)",
    ),
    (
        "NvmlComplete",
        {"probe": failing(18, "version check")},
        {},
        FAILS,
        "NvmlLibRmVersionMismatch",
        "version check said NVML_ERROR_LIB_RM_VERSION_MISMATCH (18)",
    ),
    (
        "NvmlComplete",
        {"probe": failing(15, "nvmlDeviceGetUUID", 1, BUSES[1])},
        {},
        FAILS,
        "NvmlGpuIsLost",
        f"1 of 2: nvmlDeviceGetUUID for {BUSES[1]} said NVML_ERROR_GPU_IS_LOST (15); missing "
        f"{BUSES[1]}",
    ),
    (
        "NvmlComplete",
        {"probe": failing(15, "nvmlDeviceGetHandleByIndex", 1)},
        {},
        FAILS,
        "NvmlGpuIsLost",
        "for index 1",
    ),
    (
        "NvmlComplete",
        {"probe": probed(end=ProbeEnd.HUNG, gpus=(), detail="pid 7 gave no answer")},
        {},
        FAILS,
        "ProbeHung",
        "pid 7 gave no answer",
    ),
    (
        "NvmlComplete",
        {"probe": probed(end=ProbeEnd.BROKEN, gpus=(), detail="junk")},
        {},
        FAILS,
        "ProbeBroken",
        "the probe failed: junk",
    ),
    (
        "NvmlComplete",
        {"probe": seen(ProbeState(report(), None, Remains(77, "D", "rm_ioctl", NOW - 140)))},
        {},
        FAILS,
        "ProbeHung",
        "probe hung, pid 77, state D, wchan rm_ioctl, 140 s",
    ),
    (
        "NvmlComplete",
        {"probe": seen(ProbeState(report(), None, Remains(77, "D", "", NOW - 1)))},
        {},
        FAILS,
        "ProbeHung",
        "wchan ?",
    ),
    ("NvmlComplete", {}, {"expected_gpus": UUIDS}, HOLDS, "", "2 of 2"),
    (
        "NvmlComplete",
        {"probe": probed(gpus=GPUS[:1])},
        {"expected_gpus": UUIDS},
        FAILS,
        "GpuMissing",
        UUIDS[1],
    ),
    (
        "NvmlComplete",
        {"probe": probed(gpus=GPUS[:1])},
        {"expected_gpus": ("1",)},
        HOLDS,
        "",
        "1 of 1",
    ),
    (
        "NvmlComplete",
        {"probe": failing(15, "nvmlDeviceGetHandleByIndex", 1)},
        {"expected_gpus": ("1",)},
        HOLDS,
        "",
        "1 of 1",
    ),  # the owner knows of the dead GPU
    (
        "NvmlComplete",
        {"pci": seen((function(BUSES[0]), function(BUSES[1], "vfio-pci")))},
        {},
        HOLDS,
        "",
        "1 of 1",
    ),
    (
        "GpuSetUnchanged",
        {"learned": seen((*BUSES, "0000:ff:00.0"))},
        {},
        FAILS,
        "FewerThanBefore",
        "0000:ff:00.0 as well",
    ),
    # 7 kubelet, 9 sockets
    ("KubeletActive", {}, {}, HOLDS, "", "kubelet.service is active"),
    (
        "KubeletActive",
        {"units": TIMED_OUT},
        {},
        UNKNOWN,
        "SystemdUnreadable",
        "systemd was not read",
    ),
    ("KubeletActive", {"units": seen(())}, {}, FAILS, "NoKubelet", "no kubelet unit is installed"),
    (
        "KubeletActive",
        {"units": seen((unit("kubelet.service", load="masked"),))},
        {},
        FAILS,
        "NoKubelet",
        "installed",
    ),
    (
        "KubeletActive",
        {"units": seen((unit("kubelet.service", "inactive"),))},
        {},
        FAILS,
        "KubeletInactive",
        "kubelet.service is inactive",
    ),
    (
        "KubeletActive",
        {"units": seen((unit("my-kubelet.service"),))},
        {"kubelet_unit": "my-kubelet.service"},
        HOLDS,
        "",
        "my-kubelet.service is active",
    ),
    (
        "PluginSocket",
        {
            "plugin_sockets": seen(
                (
                    Entry("nvidia-gpu.sock", "socket"),
                    Entry("kubelet.sock", "socket"),
                    Entry("DEPRECATION", "file"),
                )
            )
        },
        {},
        HOLDS,
        "",
        ": nvidia-gpu.sock",
    ),
    (
        "PluginSocket",
        {"plugin_sockets": seen((Entry("kubelet.sock", "socket"),))},
        {},
        FAILS,
        "NoPluginSocket",
        "none",
    ),
    # 10 registration
    ("PluginRegistered", {}, {}, HOLDS, "", "the kubelet lists 2 of 2 GPUs"),
    (
        "PluginRegistered",
        {"allocatable": MISSING},
        {},
        UNKNOWN,
        "KubeletSilent",
        "gave no answer (missing",
    ),
    (
        "PluginRegistered",
        {"allocatable": seen((), NOW)},
        {},
        FAILS,
        "NotRegistered",
        "lists no nvidia.com/*",
    ),
    (
        "PluginRegistered",
        {"allocatable": listed(UUIDS, at=40.0)},
        {},
        UNKNOWN,
        "KubeletRestarted",
        "older than the kubelet",
    ),
    (
        "PluginRegistered",
        {"allocatable": listed(UUIDS[:1])},
        {},
        FAILS,
        "PartlyRegistered",
        f"1 of 2 GPUs, not {UUIDS[1]}",
    ),
    ("PluginRegistered", {"allocatable": listed(("0", "1"))}, {}, HOLDS, "", "2 of 2"),
    ("PluginRegistered", {"allocatable": listed(("0",))}, {}, FAILS, "PartlyRegistered", "1 of 2"),
    (
        "PluginRegistered",
        {"allocatable": listed(("a", "b"), "amd.com/gpu")},
        {},
        FAILS,
        "NotRegistered",
        "no",
    ),
    (
        "PluginRegistered",
        {"allocatable": listed(UUIDS, "x.io/gpu")},
        {"resources": ("x.io/*",)},
        HOLDS,
        "",
        "2 of 2",
    ),
    (
        "PluginRegistered",
        {
            "allocatable": listed(
                [f"{u}::{n}" for u in UUIDS for n in range(4)], "nvidia.com/gpu.shared"
            )
        },
        {},
        HOLDS,
        "",
        "2 of 2",
    ),
]


@pytest.mark.parametrize(
    ("condition", "changes", "settings", "verdict", "reason", "says"),
    CASES,
    ids=[f"{c[0]}-{c[4] or c[3].value}-{n}" for n, c in enumerate(CASES)],
)
def test_condition(
    condition: str,
    changes: dict[str, Any],
    settings: dict[str, Any],
    verdict: Verdict,
    reason: str,
    says: str,
) -> None:
    found = finding(diagnosed(Settings(**settings), **changes), condition)
    assert (found.verdict, found.reason) == (verdict, reason)
    assert says in found.because
    assert " ago" not in found.because, (
        "an age that is kept in a sentence grows old: it has a field of its own"
    )
    if verdict is UNKNOWN:
        assert found.missing, "what is unknown says what would have to be read"
    if verdict is not HOLDS and found.blocks:
        assert found.next_step or verdict is UNKNOWN


# scope, what is changed, settings
SCOPES: list[tuple[Scope, dict[str, Any], dict[str, Any]]] = [
    (Scope.GPUS, {}, {}),
    (Scope.NONE, {"pci": seen(())}, {}),
    (Scope.NONE, {"pci": MISSING}, {}),
    (Scope.UNKNOWN, {"pci": DENIED}, {}),
    (Scope.UNKNOWN, {"pci": TIMED_OUT}, {}),
    (Scope.NONE, {}, {"expected_gpus": ("0",)}),
    (Scope.GPUS, {"pci": seen(())}, {"expected_gpus": ("8",)}),
    (Scope.LATE_DRIVER, NO_DRIVER, {}),
    (Scope.GPUS, {**NO_DRIVER, "module_installed": seen("nvidia.ko")}, {}),
    (Scope.GPUS, {**NO_DRIVER, "driver_building": seen("nvidia 550")}, {}),
    (Scope.GPUS, {**NO_DRIVER, "module_state": seen("coming")}, {}),
    (Scope.UNKNOWN, {**NO_DRIVER, "module_installed": DENIED}, {}),
    (Scope.UNKNOWN, {**NO_DRIVER, "driver_version": DENIED}, {}),
    # a container node (kind): the whole bus is seen, only some of it was given
    (Scope.GPUS, {"is_container": True}, {}),
    (Scope.NONE, {"is_container": True, "proc_gpus": seen(())}, {}),
    (Scope.NONE, {"is_container": True, "nodes": seen(NODES[2:])}, {}),
    (Scope.GPUS, {"is_container": True, "proc_gpus": DENIED}, {}),
]


@pytest.mark.parametrize(("scope", "changes", "settings"), SCOPES)
def test_scope(scope: Scope, changes: dict[str, Any], settings: dict[str, Any]) -> None:
    diagnosis = diagnosed(Settings(**settings), **changes)
    assert diagnosis.scope is scope
    assert diagnosis.scope_because


def test_a_container_node_expects_only_its_own_gpus() -> None:
    assert (
        diagnosed(is_container=True, proc_gpus=seen(BUSES[1:]), probe=seen(ProbeState())).expected
        == BUSES[1:]
    )


def test_gpus_excluded_by_the_driver_are_not_expected() -> None:
    diagnosis = diagnosed(probe=probed(gpus=GPUS[:1], excluded=BUSES[1:]))
    assert diagnosis.expected == BUSES[:1]
    assert finding(diagnosis, "NvmlComplete").verdict is HOLDS


@pytest.mark.parametrize(
    ("code", "heals"),
    [
        (999, Heals.SOON),
        (15, Heals.NEVER),
        (18, Heals.NEVER),
        (12, Heals.CONFIGURATION),
        (12345, Heals.SOON),
    ],
)
def test_the_nvml_finding_shows_whether_waiting_helps(code: int, heals: Heals) -> None:
    assert finding(diagnosed(probe=failing(code)), "NvmlComplete").heals is heals


def test_of_several_errors_the_one_that_cannot_heal_decides() -> None:
    errors = (
        NvmlError(27, "nvmlDeviceGetUUID", 0, BUSES[0]),
        NvmlError(15, "nvmlDeviceGetUUID", 1, BUSES[1]),
    )
    found = finding(diagnosed(probe=probed(gpus=(), errors=errors)), "NvmlComplete")
    assert found.reason == "NvmlGpuIsLost"


@pytest.mark.parametrize(
    "changes",
    [
        {"probe": failing(999)},
        {"probe": probed(gpus=GPUS[:1])},
        {"probe": probed(gpus=())},
        {"probe": failing(15, "nvmlDeviceGetHandleByIndex", 1)},
        {"probe": probed(end=ProbeEnd.BROKEN)},
        {"probe": seen(ProbeState())},
        {"probe": DENIED},
        {"nodes": seen(NODES[1:])},
        {"nodes": DENIED},
    ],
)
def test_no_fingerprint_without_a_complete_clean_probe(changes: dict[str, Any]) -> None:
    assert diagnosed(**changes).fingerprint == ""


@pytest.mark.parametrize(
    "changes",
    [
        {"probe": probed(driver_version="560.1")},
        {"probe": probed(gpus=(replace(GPUS[0], uuid="GPU-other"), GPUS[1]))},
        {
            "nodes": seen(
                (DeviceNode("/dev/nvidia0", 195, 1), DeviceNode("/dev/nvidia1", 195, 0), *NODES[2:])
            )
        },
    ],
)
def test_relevant_changes_change_the_fingerprint(changes: dict[str, Any]) -> None:
    assert diagnosed(**changes).fingerprint not in ("", diagnosed().fingerprint)


@pytest.mark.parametrize(
    "changes",
    [
        {"probe": probed(gpus=GPUS[::-1])},  # identity is never the index
        {"probe": probed(number=9, started_at=NOW - 500)},
        {"probe": probed(gpus=(replace(GPUS[0], name="renamed"), GPUS[1]))},
        {"trouble": ("udev is lost",)},
        {"char_links": seen({})},
        {"nodes": seen((*NODES, DeviceNode("/dev/nvidia-modeset", 195, 254)))},
    ],
)
def test_irrelevant_changes_keep_the_fingerprint(changes: dict[str, Any]) -> None:
    assert diagnosed(**changes).fingerprint == diagnosed().fingerprint != ""


def test_a_gpu_without_a_minor_wants_no_device_node() -> None:
    tegra = (Gpu(UUIDS[0], BUSES[0], -1), Gpu(UUIDS[1], BUSES[1], -1))
    assert diagnosed(probe=probed(gpus=tegra), nodes=seen(NODES[2:])).fingerprint


# what is changed, settings, actions
ADDITIVE: list[tuple[dict[str, Any], dict[str, Any], tuple[Any, ...]]] = [
    ({}, {}, ()),
    ({"nodes": seen(NODES[:2])}, {}, (MakeNodes((255,), uvm=True),)),
    ({"nodes": seen(NODES[1:])}, {}, (MakeNodes((0,), uvm=False),)),
    ({"nodes": seen(NODES[1:])}, {"additive": False}, ()),
    ({"nodes": DENIED}, {}, ()),
    ({**NO_DRIVER}, {}, ()),
    ({"module_state": seen("coming"), "nodes": seen(())}, {}, ()),
    (
        {"char_links": seen({})},
        {},
        (
            LinkDevChar(
                (
                    ("195:0", "../nvidia0"),
                    ("195:1", "../nvidia1"),
                    ("195:255", "../nvidiactl"),
                    ("511:0", "../nvidia-uvm"),
                    ("511:1", "../nvidia-uvm-tools"),
                )
            ),
        ),
    ),
    ({"char_links": DENIED}, {}, ()),
    ({"char_links": seen({}), "majors": DENIED}, {}, ()),
    (
        {
            "nodes": seen((*NODES, DeviceNode("/dev/nvidia-caps/nvidia-cap1", 509, 1))),
            "majors": seen({**MAJORS, "nvidia-caps": 509}),
        },
        {},
        (LinkDevChar((("509:1", "../nvidia-caps/nvidia-cap1"),)),),
    ),
    (
        {**NO_DRIVER, "module_installed": seen("nvidia.ko")},
        {"load_driver": "auto"},
        (LoadModule(),),
    ),
    ({**NO_DRIVER, "module_installed": seen("nvidia.ko")}, {"load_driver": "no"}, ()),
    ({**NO_DRIVER}, {"load_driver": "auto"}, ()),
    ({}, {"load_driver": "auto"}, ()),
]


@pytest.mark.parametrize(("changes", "settings", "actions"), ADDITIVE)
def test_devices_that_may_be_added(
    changes: dict[str, Any], settings: dict[str, Any], actions: tuple[Any, ...]
) -> None:
    assert diagnosed(Settings(**settings), **changes).additive == actions


def test_a_running_kubelet_is_found_before_an_enabled_one_before_an_installed_one() -> None:
    inactive = unit("kubelet.service", "inactive", file_state="disabled")
    enabled = unit("rke2-agent.service", "inactive", file_state="enabled-runtime")
    running = unit("k3s.service", "active", file_state="disabled")
    starting = unit("k0sworker.service", "activating", file_state="disabled")
    for units, carrier in (
        ((inactive, enabled, starting, running), "k3s.service is active"),
        ((inactive, enabled, starting), "k0sworker.service is activating"),
        ((inactive, enabled), "rke2-agent.service is inactive"),
        ((inactive, unit("containerd.service")), "kubelet.service is inactive"),
    ):
        assert finding(diagnosed(units=seen(units)), "KubeletActive").because == carrier


@pytest.mark.parametrize(
    ("units", "active"),
    [
        (TIMED_OUT, None),
        (seen(()), False),
        (seen((unit("kubelet.service", "activating"),)), False),
        (seen((unit("kubelet.service", "reloading"),)), True),
    ],
)
def test_is_the_kubelet_active(units: Any, active: bool | None) -> None:
    assert diagnosed(units=units).kubelet_active is active


def test_a_host_without_a_kubelet_needs_no_registration() -> None:
    assert diagnosed(units=seen(()), allocatable=MISSING).registered is None
    assert diagnosed(Settings(kubelet_unit="none"), units=seen((KUBELET,))).registered is None


def test_a_kubelet_outside_a_unit_is_trusted_and_causes_no_action() -> None:
    """rke1 runs it in a container of Docker's."""
    assert diagnosed(units=seen(())).registered.verdict is Verdict.HOLDS
    found = diagnosed(units=seen(()), allocatable=seen(()))
    assert found.registered.reason == "NotRegistered" and not found.repair_facts.may_act
    assert "a kubelet answers" in finding(found, "KubeletActive").because
    assert not [f for f in diagnosed(Settings(kubelet_unit="none")).findings if f.link >= 7]


@pytest.mark.parametrize(
    ("changes", "at"),
    [
        ({}, 20.0),  # the kubelet's own start, at 50, asks for no validation of NVML
        ({"manager": seen(Manager("252", 900.0))}, 900.0),
        ({"manager": seen(Manager("252", None))}, 10.0),
        ({"manager": TIMED_OUT, "units": TIMED_OUT}, 0.0),
        ({"units": seen((unit("nvidia-persistenced.service", since=700.0),))}, 700.0),
        ({"units": seen((unit("nvidia-persistenced.service", "inactive", since=700.0),))}, 20.0),
        ({"units": seen((unit("containerd.service", since=700.0),))}, 20.0),
        ({"units": seen((unit("ssh.service", since=700.0),))}, 20.0),
    ],
)
def test_the_newest_reload_or_restart(changes: dict[str, Any], at: float) -> None:
    assert diagnosed(**changes).disturbed_at == at


def test_marks_and_the_record_of_gpus_reach_the_gate() -> None:
    diagnosis = diagnosed(
        released=seen(Mark("open", 5.0)),
        paused=seen(Mark("", 0.0)),
        waiting=seen(Mark("", 7.0)),
        learned=seen(BUSES),
        control_plane=True,
    )
    assert (diagnosis.released_before, bool(diagnosis.paused), diagnosis.waiting_since) == (
        "open",
        True,
        7.0,
    )
    assert (diagnosis.learned, diagnosis.control_plane) == (BUSES, True)
    assert "GpuSetUnchanged" not in {f.condition for f in diagnosis.findings}


@pytest.mark.parametrize(
    ("state", "busy"),
    [
        (ProbeState(), False),
        (ProbeState(report()), False),
        (ProbeState(running_since=1.0), True),
        (ProbeState(report(), None, Remains(7, "D", "", 1.0)), True),
    ],
)
def test_one_probe_at_a_time(state: ProbeState, busy: bool) -> None:
    assert diagnosed(probe=seen(state)).probe_busy is busy


SILENT = (
    "pci",
    "driver_version",
    "nodes",
    "majors",
    "char_links",
    "probe",
    "manager",
    "units",
    "plugin_sockets",
    "allocatable",
    "learned",
    "module_state",
)


@pytest.mark.parametrize("part", SILENT)
@pytest.mark.parametrize("refusal", [DENIED, FAILED, TIMED_OUT], ids=lambda r: r.why.value)
def test_a_refusal_never_adds_a_condition_that_holds(part: str, refusal: Refusal) -> None:
    """ "Could not check" can never become "nothing wrong"."""
    before = {f.condition for f in diagnosed(learned=seen(BUSES)).findings if f.verdict is HOLDS}
    after = {
        f.condition
        for f in diagnosed(**{"learned": seen(BUSES), part: refusal}).findings
        if f.verdict is HOLDS
    }
    assert after <= before


def test_the_age_of_a_probe_is_distinguished() -> None:
    assert finding(diagnosed(probe=probed(started_at=NOW - 8)), "NvmlComplete").age_s == 7.0
    assert finding(diagnosed(probe=probed(started_at=NOW + 8)), "NvmlComplete").age_s == 0.0


def test_diagnose_is_pure_and_deterministic() -> None:
    one = snapshot(probe=probed(gpus=GPUS[:1]))
    assert diagnose(one, DEFAULTS) == diagnose(replace(one), DEFAULTS)


@pytest.mark.parametrize(
    "changes",
    [{"pci": seen(())}, {"pci": MISSING}, {"pci": seen((function(BUSES[0], "vfio-pci"),))}],
)
def test_a_host_without_a_gpu_needs_no_registration(changes: dict[str, Any]) -> None:
    """A CPU node's kubelet lists no GPU, and nothing about that is broken."""
    diagnosis = diagnosed(**changes, probe=seen(ProbeState()), allocatable=seen(()))
    assert diagnosis.first_broken() is None


def test_expected_gpus_holds_on_a_host_without_a_pci_bus() -> None:
    diagnosis = diagnosed(Settings(expected_gpus=("8",)), pci=MISSING)
    assert diagnosis.scope is not Scope.NONE


@pytest.mark.parametrize(("number", "gpus", "says"), [("8", GPUS, "2 of 8"), ("1", (), "0 of 1")])
def test_counts_refer_to_the_expected_number(number: str, gpus: Any, says: str) -> None:
    found = finding(
        diagnosed(Settings(expected_gpus=(number,)), probe=probed(gpus=gpus)), "NvmlComplete"
    )
    assert found.because.startswith(says)


def test_expected_gpus_overrides_a_dead_gpu_at_any_failing_call() -> None:
    """NVML may lose a GPU before or after it reports its bus id."""
    for call, bus in (("nvmlDeviceGetHandleByIndex", ""), ("nvmlDeviceGetUUID", BUSES[1])):
        diagnosis = diagnosed(Settings(expected_gpus=("1",)), probe=failing(15, call, 1, bus))
        assert finding(diagnosis, "NvmlComplete").verdict is HOLDS, call


def test_a_code_without_a_name_has_a_readable_reason() -> None:
    found = finding(diagnosed(probe=failing(77)), "NvmlComplete")
    assert found.reason is Reason.NVML_OTHER and "77" in found.because
