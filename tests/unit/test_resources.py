"""What the kubelet should list, by kind of plugin: physical sets, compared with NVML and the
plugin's visible devices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agent.core.common.pod_resources import physical
from agent.core.plugin.resources import listing
from agent.core.plugin.visible_devices import VISIBLE, select
from agent.model.fault import Cure
from agent.model.finding import Diagnosis, Finding, Verdict
from agent.model.gpu import GpuState, MigDevice
from agent.model.settings import Settings
from agent.model.snapshot import Devices, Entry, Gpu, NvmlError, Snapshot

from .snapshots import (
    DEFAULTS,
    NOW,
    OFFSET,
    diagnosed,
    finding,
    probed,
    report,
    sandbox,
    seen,
    sight,
    snapshot,
    unit,
)

HOLDS, FAILS, UNKNOWN = Verdict.HOLDS, Verdict.FAILS, Verdict.UNKNOWN
BUSES = tuple(f"0000:{0x07 + 8 * n:02x}:00.0" for n in range(8))
U = tuple(f"GPU-{n:08x}-aaaa-4aaa-8aaa-aaaaaaaaaaaa" for n in range(8))
GPUS = tuple(Gpu(u, b, n, "NVIDIA H100") for n, (u, b) in enumerate(zip(U, BUSES, strict=True)))


def mig_uuid(gpu: int, instance: int) -> str:
    return f"MIG-{gpu:04x}{instance:04x}-bbbb-5bbb-9bbb-bbbbbbbbbbbb"


def in_mig(gpu: Gpu, *profiles: str, **state: Any) -> Gpu:
    """The GPU in MIG mode, with one device of each profile."""
    devices = tuple(MigDevice(mig_uuid(gpu.minor, n), p, n, 0) for n, p in enumerate(profiles))
    return replace(
        gpu, state=GpuState(**{"mig": True, "mig_pending": True, "mig_devices": devices, **state})
    )


def migs(gpu: Gpu) -> tuple[str, ...]:
    return tuple(m.uuid for m in gpu.state.mig_devices or ())


def replicas(ids: tuple[str, ...], number: int, form: str = "{}::{}") -> tuple[str, ...]:
    return tuple(form.format(i, n) for i in ids for n in range(number))


def plugin(
    env: dict[str, str] | None = None, args: tuple[str, ...] = (), **pod: Any
) -> dict[str, Any]:
    return {"plugins": (sight(env=env or {}, args=args, pod=sandbox(**pod)),)}


def node(
    gpus: tuple[Gpu, ...], listed: dict[str, tuple[str, ...]], **changes: Any
) -> dict[str, Any]:
    return {
        "probe": probed(gpus=gpus),
        "pci": snapshot().hardware.pci,
        **changes,
        "allocatable": seen(tuple(Devices(r, ids) for r, ids in listed.items())),
    }


def assessment(
    gpus: tuple[Gpu, ...],
    listed: dict[str, tuple[str, ...]],
    settings: Settings = DEFAULTS,
    **changes: Any,
) -> Diagnosis:
    """On a node whose GPUs are these: as many on PCI and in /dev as NVML shows."""
    wanted = replace(settings, expected_gpus=settings.expected_gpus or (str(len(gpus)),))
    return diagnosed(wanted, **node(gpus, listed, **changes))


def registered(diagnosis: Diagnosis) -> Finding:
    assert diagnosis.registered is not None
    return diagnosis.registered


EIGHT, TWO = GPUS, GPUS[:2]
MIXED = (in_mig(GPUS[0], "1g.10gb", "1g.10gb", "3g.40gb"), GPUS[1])
SINGLE = (in_mig(GPUS[0], "1g.10gb", "1g.10gb"), in_mig(GPUS[1], "1g.10gb", "1g.10gb"))
ONE_G = migs(MIXED[0])[:2]
THREE_G = migs(MIXED[0])[2:]
MANY = {"MIG_STRATEGY": "mixed"}

GPU, SHARED, MIG_1G, MIG_3G = (
    "nvidia.com/gpu",
    "nvidia.com/gpu.shared",
    "nvidia.com/mig-1g.10gb",
    "nvidia.com/mig-3g.40gb",
)
ONE, PARTLY = {"MIG_STRATEGY": "single"}, "PartlyRegistered"
# name, GPUs of NVML, what is listed, the plugin, settings, verdict, reason, sentence
Row = tuple[
    str,
    tuple[Gpu, ...],
    dict[str, tuple[str, ...]],
    dict[str, Any],
    dict[str, Any],
    Verdict,
    str,
    str,
]
KINDS: list[Row] = [
    ("whole GPUs", EIGHT, {GPU: U}, {}, {}, HOLDS, "", "the kubelet lists 8 of 8 GPUs"),
    (
        "A4 seven of eight",
        EIGHT,
        {GPU: U[:7]},
        {},
        {},
        FAILS,
        PARTLY,
        f"the kubelet lists 7 of 8 GPUs, not {U[7]}",
    ),
    (
        "A18 nothing, whatever the checkpoint says",
        EIGHT,
        {},
        {},
        {},
        FAILS,
        "NotRegistered",
        "the kubelet lists no ",
    ),
    (
        "A19 a key without devices",
        EIGHT,
        {GPU: ()},
        {},
        {},
        FAILS,
        "NotRegistered",
        "the kubelet lists no ",
    ),
    (
        "an old key without devices beside the real one",
        EIGHT,
        {GPU: U, MIG_1G: ()},
        {},
        {},
        HOLDS,
        "",
        "the kubelet lists 8 of 8 GPUs",
    ),
    (
        "others' devices",
        TWO,
        {"nvidia.com/hostdev": ("0000:3b:00.2",), "nvidia.com/rdma_ib": ("0",)},
        {},
        {},
        FAILS,
        "NotRegistered",
        "the kubelet lists no ",
    ),
    (
        "GPUs that virtual machines have",
        TWO,
        {
            GPU: U[:2],
            "nvidia.com/GA106_GEFORCE_RTX_3060": ("45", "1"),
            "nvidia.com/GRID_T4-1Q": ("83b8f4f2-509f-382f-3c1e-e6bfe0fa1001",),
        },
        {},
        {},
        HOLDS,
        "",
        "the kubelet lists 2 of 2 GPUs",
    ),
    (
        "they alone",
        TWO,
        {"nvidia.com/GA106_GEFORCE_RTX_3060": ("45", "1")},
        {},
        {},
        FAILS,
        "NotRegistered",
        "the kubelet lists no ",
    ),
    (
        "a renamed resource with a model's name",
        TWO,
        {"nvidia.com/A100": U[:2]},
        {},
        {},
        HOLDS,
        "",
        "the kubelet lists 2 of 2 GPUs as nvidia.com/A100",
    ),
    (
        "ids that are nothing",
        TWO,
        {GPU: ("", " ")},
        {},
        {},
        FAILS,
        "NotRegistered",
        "the kubelet lists no ",
    ),
    # index ids
    ("index", EIGHT, {GPU: tuple("01234567")}, {}, {}, HOLDS, "", "the kubelet lists 8 of 8 GPUs"),
    (
        "index, one missing",
        EIGHT,
        {GPU: tuple("0124567")},
        {},
        {},
        FAILS,
        PARTLY,
        f"the kubelet lists 7 of 8 GPUs, not {U[3]}",
    ),
    (
        "index of MIG devices",
        SINGLE,
        {GPU: ("0:0", "0:1", "1:0", "1:1")},
        plugin(ONE),
        {},
        HOLDS,
        "",
        "the kubelet lists 4 of 4 MIG devices",
    ),
    (
        "Tegra's one id",
        GPUS[:1],
        {GPU: ("tegra",)},
        {},
        {},
        HOLDS,
        "",
        "the kubelet lists 1 of 1 GPUs",
    ),
    # time-slicing, MPS, renamed
    (
        "C56 time-slicing",
        TWO,
        {GPU: replicas(U[:2], 4)},
        {},
        {},
        HOLDS,
        "",
        "the kubelet lists 2 of 2 GPUs, 4 times each",
    ),
    (
        "C56 renamed",
        TWO,
        {SHARED: replicas(U[:2], 10)},
        {},
        {},
        HOLDS,
        "",
        "the kubelet lists 2 of 2 GPUs as nvidia.com/gpu.shared, 10 times each",
    ),
    (
        "C56 16384 replicas",
        GPUS[:1],
        {GPU: replicas(U[:1], 16384)},
        {},
        {},
        HOLDS,
        "",
        "the kubelet lists 1 of 1 GPUs, 16384 times each",
    ),
    (
        "C56 one replica short",
        TWO,
        {GPU: replicas(U[:2], 4)[:-1]},
        {},
        {},
        FAILS,
        PARTLY,
        f"the kubelet lists 2 of 2 GPUs, 4 times each, fewer of {U[1]}",
    ),
    (
        "C56 one GPU's replicas gone",
        TWO,
        {GPU: replicas(U[:1], 4)},
        {},
        {},
        FAILS,
        PARTLY,
        f"the kubelet lists 1 of 2 GPUs, 4 times each, not {U[1]}",
    ),
    (
        "replicas of index ids",
        TWO,
        {GPU: replicas(("0", "1"), 3)},
        {},
        {},
        HOLDS,
        "",
        "the kubelet lists 2 of 2 GPUs, 3 times each",
    ),
    (
        "one GPU shared, one not",
        TWO,
        {GPU: U[:1], SHARED: replicas(U[1:2], 4)},
        {},
        {},
        HOLDS,
        "",
        "the kubelet lists 1 of 1 GPUs as nvidia.com/gpu; 1 of 1 GPUs as "
        "nvidia.com/gpu.shared, 4 times each",
    ),
    (
        "C56 a name of the owner's",
        TWO,
        {"example.com/h100": U[:2]},
        {},
        {"resources": ("example.com/*",)},
        HOLDS,
        "",
        "the kubelet lists 2 of 2 GPUs as example.com/h100",
    ),
    # MIG
    (
        "MIG none",
        MIXED,
        {GPU: U[:2]},
        plugin({"MIG_STRATEGY": "none"}),
        {},
        HOLDS,
        "",
        "the kubelet lists 2 of 2 GPUs",
    ),
    (
        "MIG single",
        SINGLE,
        {GPU: migs(SINGLE[0]) + migs(SINGLE[1])},
        plugin(ONE),
        {},
        HOLDS,
        "",
        "the kubelet lists 4 of 4 MIG devices",
    ),
    (
        "MIG single, one missing",
        SINGLE,
        {GPU: migs(SINGLE[0]) + migs(SINGLE[1])[:1]},
        plugin(args=("--mig-strategy=single",)),
        {},
        FAILS,
        PARTLY,
        f"the kubelet lists 3 of 4 MIG devices, not {mig_uuid(1, 1)}",
    ),
    (
        "MIG single without MIG",
        TWO,
        {GPU: U[:2]},
        plugin(ONE),
        {},
        HOLDS,
        "",
        "the kubelet lists 2 of 2 GPUs",
    ),
    (
        "MIG mixed",
        MIXED,
        {GPU: U[1:2], MIG_1G: ONE_G, MIG_3G: THREE_G},
        plugin(MANY),
        {},
        HOLDS,
        "",
        "1 of 1 GPUs as nvidia.com/gpu; 2 of 2 MIG devices as nvidia.com/mig-1g.10gb; "
        "1 of 1 MIG devices as nvidia.com/mig-3g.40gb",
    ),
    (
        "MIG mixed, one profile not there",
        MIXED,
        {GPU: U[1:2], MIG_1G: ONE_G},
        plugin(MANY),
        {},
        FAILS,
        PARTLY,
        f"0 of 1 MIG devices as nvidia.com/mig-3g.40gb, not {THREE_G[0]}",
    ),
    (
        "MIG mixed, told by the ids alone",
        MIXED,
        {MIG_1G: ONE_G, MIG_3G: THREE_G},
        {},
        {},
        FAILS,
        PARTLY,
        f"0 of 1 GPUs as nvidia.com/gpu, not {U[1]}",
    ),
    (
        "MIG mixed with replicas",
        MIXED[:1],
        {"nvidia.com/mig-1g.10gb.shared": replicas(ONE_G, 2), MIG_3G: THREE_G},
        plugin(MANY),
        {},
        HOLDS,
        "",
        "2 of 2 MIG devices as nvidia.com/mig-1g.10gb.shared, 2 times each",
    ),
    (
        "MIG with media engines",
        (in_mig(GPUS[0], "1g.10gb+me"),),
        {"nvidia.com/mig-1g.10gb.me": (mig_uuid(0, 0),)},
        plugin(MANY),
        {},
        HOLDS,
        "",
        "1 of 1 MIG devices as nvidia.com/mig-1g.10gb.me",
    ),
    ("MIG, half of the GPUs listed whole", MIXED, {GPU: U[:2]}, {}, {}, HOLDS, "", "2 of 2 GPUs"),
    (
        "MIG without instances",
        (in_mig(GPUS[0]), GPUS[1]),
        {},
        plugin(MANY),
        {},
        FAILS,
        "NotRegistered",
        "lists no ",
    ),
    # others' plugins
    ("GKE", TWO, {GPU: ("nvidia0", "nvidia1")}, {}, {}, HOLDS, "", "2 of 2 GPUs"),
    (
        "GKE shares",
        TWO,
        {GPU: replicas(("nvidia0", "nvidia1"), 2, "{}/vgpu{}")},
        {},
        {},
        HOLDS,
        "",
        "2 of 2 GPUs",
    ),
    (
        "GKE shares, one GPU short",
        TWO,
        {GPU: ("nvidia0/vgpu1", "nvidia0/vgpu2")},
        {},
        {},
        FAILS,
        PARTLY,
        f"1 of 2 GPUs, not {U[1]}",
    ),
    (
        "GKE partitions",
        SINGLE,
        {GPU: ("nvidia0/gi0", "nvidia0/gi1", "nvidia1/gi0", "nvidia1/gi1")},
        {},
        {},
        HOLDS,
        "",
        "4 of 4 MIG devices",
    ),
    ("HAMi", TWO, {GPU: replicas(U[:2], 10, "{}-{}")}, {}, {}, HOLDS, "", "2 of 2 GPUs"),
    (
        "HAMi, one GPU short",
        TWO,
        {GPU: replicas(U[:1], 10, "{}-{}")},
        {},
        {},
        FAILS,
        PARTLY,
        f"1 of 2 GPUs, not {U[1]}",
    ),
    (
        "Alibaba's memory",
        TWO,
        {"aliyun.com/gpu-mem": replicas(U[:1], 30, "{}-_-{}") + replicas(U[1:2], 15, "{}-_-{}")},
        {},
        {"resources": ("aliyun.com/*",)},
        HOLDS,
        "",
        "2 of 2 GPUs as aliyun.com/gpu-mem",
    ),
    (
        "Volcano's number and memory",
        TWO,
        {
            "volcano.sh/vgpu-number": replicas(U[:2], 10, "{}-{}"),
            "volcano.sh/vgpu-memory": tuple(f"mem{n}" for n in range(99)),
        },
        {},
        {"resources": ("volcano.sh/*",)},
        HOLDS,
        "",
        "2 of 2 GPUs as volcano.sh/vgpu-number",
    ),
    (
        "units that tell nothing",
        TWO,
        {"volcano.sh/vgpu-memory": tuple(f"mem{n}" for n in range(99))},
        {},
        {"resources": ("volcano.sh/*",)},
        HOLDS,
        "",
        "the kubelet lists 99 ids",
    ),
    # what the plugin was given
    (
        "limited on purpose",
        EIGHT,
        {GPU: U[2:3]},
        plugin({VISIBLE: U[2]}),
        {},
        HOLDS,
        "",
        f"the kubelet lists 1 of 1 GPUs (the plugin was given 1 of 8 GPUs: {U[2]})",
    ),
    (
        "limited, and it lists another",
        EIGHT,
        {GPU: U[3:4]},
        plugin({VISIBLE: U[2]}),
        {},
        FAILS,
        PARTLY,
        f"not {U[2]}",
    ),
    (
        "limited, its ids are its own indices",
        EIGHT,
        {GPU: ("0", "1")},
        plugin({VISIBLE: "6,7"}),
        {},
        HOLDS,
        "",
        "2 of 2 GPUs (the plugin was given 2 of 8 GPUs: 6, 7)",
    ),
    (
        "limited to a GPU that is not there",
        EIGHT,
        {},
        plugin({VISIBLE: "GPU-77777777"}),
        {},
        FAILS,
        "NotRegistered",
        "(the plugin was given 0 of 8 GPUs: GPU-77777777)",
    ),
    (
        "limited, one of two is not there",
        EIGHT,
        {GPU: U[:1]},
        plugin({VISIBLE: f"{U[0]},GPU-77777777"}),
        {},
        FAILS,
        PARTLY,
        "not GPU-77777777",
    ),
    (
        "limited to MIG devices",
        SINGLE,
        {GPU: (mig_uuid(1, 0),)},
        plugin({VISIBLE: "1:0", "MIG_STRATEGY": "single"}),
        {},
        HOLDS,
        "",
        "1 of 1 MIG devices",
    ),
    ("all", EIGHT, {GPU: U[:7]}, plugin({VISIBLE: "all"}), {}, FAILS, PARTLY, "7 of 8"),
    ("void", EIGHT, {GPU: U}, plugin({VISIBLE: "void"}), {}, HOLDS, "", "8 of 8"),
    ("none", EIGHT, {}, plugin({VISIBLE: "none"}), {}, FAILS, "NothingGiven", "was given no GPU"),
    (
        "volumes",
        EIGHT,
        {GPU: U},
        plugin({VISIBLE: "/var/run/nvidia-container-devices"}),
        {},
        HOLDS,
        "",
        "8 of 8",
    ),
    (
        "CDI annotations",
        EIGHT,
        {GPU: U[:1]},
        plugin({VISIBLE: "void"}, annotations={"cdi.k8s.io/gpu": f"nvidia.com/gpu={U[0]}"}),
        {},
        HOLDS,
        "",
        "1 of 1 GPUs",
    ),
    (
        "vGPU in the guest",
        (replace(GPUS[0], state=GpuState(virtualization="vgpu")),),
        {GPU: U[:1]},
        {},
        {},
        HOLDS,
        "",
        "1 of 1 GPUs",
    ),
    (
        "a GPU for a display",
        TWO,
        {GPU: U[:2]},
        {},
        {"exclude_gpus": BUSES[1:2], "expected_gpus": ("1",)},
        HOLDS,
        "",
        "the kubelet lists 1 of 1 GPUs",
    ),
    (
        "a host of vGPUs keeps those out",
        (GPUS[0], replace(GPUS[1], state=GpuState(virtualization="host vgpu"))),
        {GPU: U[:1]},
        {},
        {},
        HOLDS,
        "",
        "1 of 1 GPUs",
    ),
]


@pytest.mark.parametrize(
    ("name", "gpus", "listed", "changes", "settings", "verdict", "reason", "says"),
    KINDS,
    ids=[row[0] for row in KINDS],
)
def test_devices_that_the_kubelet_lists(
    name: str,
    gpus: tuple[Gpu, ...],
    listed: dict[str, tuple[str, ...]],
    changes: dict[str, Any],
    settings: dict[str, Any],
    verdict: Verdict,
    reason: str,
    says: str,
) -> None:
    found = registered(assessment(gpus, listed, Settings(**settings), **changes))
    assert (found.verdict, found.reason) == (verdict, reason), found
    assert says in found.because and "\n" not in found.because
    assert bool(found.missing) is (verdict is not HOLDS)


@pytest.mark.parametrize(
    ("device_id", "part"),
    [
        (U[0], U[0]),
        (f"{U[0]}::3", U[0]),
        (f"{U[0]}-7", U[0]),
        (f"{U[0]}-_-7", U[0]),
        ("nvidia0/vgpu1", "nvidia0"),
        ("nvidia0/gi1/vgpu2", "nvidia0/gi1"),
        ("nvidia0/gi0", "nvidia0/gi0"),
        ("0", "0"),
        ("0::1", "0"),
        ("0:1", "0:1"),
        ("0:1::3", "0:1"),
        ("tegra", "tegra"),
        ("MIG-GPU-aaaaaaaa-1111/7/0", "MIG-GPU-aaaaaaaa-1111/7/0"),
        (f"{mig_uuid(0, 1)}::9", mig_uuid(0, 1)),
        ("", ""),
        ("::1", ""),
    ],
)
def test_the_part_behind_an_id(device_id: str, part: str) -> None:
    assert physical(device_id) == part


def test_a_plugin_that_was_not_read_may_have_been_limited() -> None:
    unread = replace(sight(), detail=snapshot().boot.learned)
    found = registered(assessment(EIGHT, {"nvidia.com/gpu": U[:1]}, plugins=(unread,)))
    assert (found.verdict, found.reason) == (UNKNOWN, "PluginUnread")
    silent = registered(
        assessment(EIGHT, {"nvidia.com/gpu": U[:1]}, runtime=snapshot().boot.learned)
    )
    assert silent.verdict is UNKNOWN
    assert registered(assessment(EIGHT, {"nvidia.com/gpu": U}, plugins=(unread,))).verdict is HOLDS


def test_two_plugins_may_use_the_union_of_their_devices() -> None:
    two = tuple(sight(env={"NVIDIA_VISIBLE_DEVICES": u}) for u in U[:2])
    assert registered(assessment(EIGHT, {"nvidia.com/gpu": U[:2]}, plugins=two)).verdict is HOLDS
    assert (
        registered(assessment(EIGHT, {"nvidia.com/gpu": U[:1]}, plugins=two)).reason
        == "PartlyRegistered"
    )


@pytest.mark.parametrize(
    ("names", "gpus", "strangers"),
    [
        (None, (0, 2, 3), ()),
        ((), (), ()),
        (("0", "2"), (0, 2), ()),
        (("1", "42"), (), ("1", "42")),
        ((U[0].upper(),), (0,), ()),
        ((U[3][:12],), (3,), ()),
        (("GPU",), (), ("GPU",)),
        ((BUSES[2],), (2,), ()),
        (("00000000:07:00.0",), (0,), ()),
        (("MIG-none", "0:9"), (), ("MIG-none", "0:9")),
    ],
)
def test_the_meaning_of_names(
    names: tuple[str, ...] | None, gpus: tuple[int, ...], strangers: tuple[str, ...]
) -> None:
    """Four GPUs, of which index 1 answered with an error: those after it keep their index."""
    known = (GPUS[0], *GPUS[2:4])
    errors = (NvmlError(15, "nvmlDeviceGetHandleByIndex", 1),)
    found, unmatched = select(report(gpus=known, errors=errors), known, names)
    assert (tuple(s.gpu.minor for s in found), unmatched) == (gpus, strangers)


# --- allocatable, but allocation will fail


def allocation(diagnosis: Diagnosis) -> list[Finding]:
    return [f for f in diagnosis.findings if f.condition == "AllocationWorks"]


LOST = (NvmlError(15, "nvmlDeviceGetHandleByIndex", 7, BUSES[7]),)


@pytest.mark.parametrize(
    "changes",
    [
        {"gpus": GPUS[:7], "errors": LOST},
        {"gpus": (*GPUS[:7], replace(GPUS[7], state=GpuState(trouble=15)))},
    ],
    ids=["its handle", "a later question"],
)
@pytest.mark.parametrize("listed", [U, U[:7]], ids=["the lost one too", "the others"])
def test_a_lost_gpu_makes_every_allocation_fail(
    changes: dict[str, Any], listed: tuple[str, ...]
) -> None:
    """A10: seven of eight are listed, and each pod is rejected."""
    diagnosis = assessment(EIGHT, {"nvidia.com/gpu": listed}, probe=probed(**changes))
    diagnosis = diagnosed(
        Settings(expected_gpus=("8",)),
        probe=probed(**changes),
        allocatable=seen((Devices("nvidia.com/gpu", listed),)),
    )
    (found,) = allocation(diagnosis)
    assert (found.verdict, found.reason, found.blocks) == (FAILS, "AllocationWillFail", True)
    assert "allocatable, but allocation will fail" in found.because and "reboot" in found.next_step
    assert finding(diagnosis, "NvmlComplete").reason == "NvmlGpuIsLost"
    assert diagnosis.fingerprint == ""


def test_a_plugin_without_the_lost_gpu_does_not_query_it() -> None:
    diagnosis = diagnosed(
        Settings(expected_gpus=("8",)),
        probe=probed(gpus=GPUS[:7], errors=LOST),
        allocatable=seen((Devices("nvidia.com/gpu", U[:1]),)),
        **plugin({"NVIDIA_VISIBLE_DEVICES": U[0]}),
    )
    assert allocation(diagnosis) == [] and registered(diagnosis).verdict is HOLDS


def test_a_gpu_that_is_not_expected_may_be_lost() -> None:
    diagnosis = diagnosed(
        Settings(expected_gpus=("7",)),
        probe=probed(gpus=GPUS[:7], errors=LOST),
        allocatable=seen((Devices("nvidia.com/gpu", U[:7]),)),
    )
    assert allocation(diagnosis) == []


def checkpoint(ago_s: float) -> Any:
    return seen(
        (
            Entry("kubelet.sock", "socket"),
            Entry("kubelet_internal_checkpoint", "file", mtime=OFFSET + NOW - ago_s),
        )
    )


@pytest.mark.parametrize(
    ("ago_s", "verdict", "disturbed_at"), [(1.0, UNKNOWN, NOW - 1), (60.0, FAILS, NOW - 60)]
)
def test_a_list_newer_than_the_probe_causes_a_new_probe(
    ago_s: float, verdict: Verdict, disturbed_at: float
) -> None:
    """MIG devices were recreated after the last probe, or the plugin still lists old ones."""
    diagnosis = assessment(
        SINGLE, {"nvidia.com/gpu": (mig_uuid(7, 7),)}, plugin_sockets=checkpoint(ago_s)
    )
    (found,) = allocation(diagnosis)
    assert found.verdict is verdict and mig_uuid(7, 7) in found.because
    assert diagnosis.disturbed_at == disturbed_at


def test_without_a_probe_nothing_is_compared() -> None:
    found = diagnosed(
        probe=snapshot().boot.learned, allocatable=seen((Devices("nvidia.com/gpu", U[:3]),))
    )
    assert registered(found).verdict is HOLDS and allocation(found) == []


# --- MIG devices that were made anew under the plugin

OLD_ONES, OLDER = (mig_uuid(7, 7), mig_uuid(7, 8)), 60.0
NEW_IMAGE = "nvcr.io/nvidia/k8s-device-plugin:v0.17.0"


@pytest.mark.parametrize(
    ("listed", "env", "reason", "cure", "counted"),
    [
        (OLD_ONES, ONE, "StaleDevices", Cure.FRESH_START, 0),
        (OLD_ONES + migs(SINGLE[0])[:1], ONE, PARTLY, Cure.TIME, 3),
        (
            OLD_ONES,
            {"NVIDIA_VISIBLE_DEVICES": OLD_ONES[0], **ONE},
            PARTLY,
            Cure.TIME,
            2,
        ),  # given what is gone
    ],
)
def test_ids_of_devices_that_no_longer_exist(
    listed: tuple[str, ...], env: dict[str, str], reason: str, cure: Cure, counted: int
) -> None:
    """Every allocation of them fails: a restart loses nothing if none exists; else an operator must
    act."""
    plugins = (sight(env=env, access=True, image=NEW_IMAGE),)
    diagnosis = assessment(SINGLE, {GPU: listed}, plugins=plugins, plugin_sockets=checkpoint(OLDER))
    assert registered(diagnosis).reason == reason and diagnosis.repair_facts is not None
    fault = diagnosis.repair_facts.fault
    assert fault is not None and (fault.reason, fault.cure, fault.hup_answers) == (
        "PluginListsGone",
        cure,
        True,
    )
    assert "that the kubelet lists are gone from NVML" in fault.because
    assert (diagnosis.repair_facts.listed, diagnosis.repair_facts.may_act) == (counted, True)


def test_a_list_that_may_be_newer_than_the_probe_is_not_acted_on() -> None:
    diagnosis = assessment(SINGLE, {GPU: OLD_ONES}, plugin_sockets=checkpoint(1.0))
    assert diagnosis.repair_facts is not None and not diagnosis.repair_facts.may_act


def test_a_unit_that_lists_missing_devices_is_restarted() -> None:
    named = replace(DEFAULTS, plugin_unit="p.service")
    units = seen((unit("kubelet.service"), unit("p.service")))
    for listed, cure in ((OLD_ONES, Cure.FRESH_START), (OLD_ONES + migs(SINGLE[0])[:1], Cure.TIME)):
        diagnosis = assessment(
            SINGLE, {GPU: listed}, named, plugins=(), units=units, plugin_sockets=checkpoint(OLDER)
        )
        fault = diagnosis.repair_facts.fault if diagnosis.repair_facts else None
        assert fault is not None and (fault.reason, fault.cure) == ("PluginListsGone", cure)


# --- MIG that stops a plugin


@pytest.mark.parametrize(
    ("gpus", "env", "reason", "says"),
    [
        (
            (in_mig(GPUS[0]), GPUS[1]),
            MANY,
            "MigWithoutInstances",
            f"made on {BUSES[0]}; the plugin does not",
        ),
        (
            (in_mig(GPUS[0]), GPUS[1]),
            {},
            "MigWithoutInstances",
            f"no instance was made on {BUSES[0]}",
        ),
        (
            (in_mig(GPUS[0], "1g.10gb"), GPUS[1]),
            {"MIG_STRATEGY": "single"},
            "MigNotUniform",
            "of 2 GPUs differ",
        ),
        (
            (in_mig(GPUS[0], "1g.10gb", "3g.40gb"),),
            {"MIG_STRATEGY": "single"},
            "MigNotUniform",
            "of 1 GPUs differ",
        ),
        (
            (replace(GPUS[0], state=GpuState(mig=False, mig_pending=True)),),
            {},
            "MigPending",
            f"a reset of {BUSES[0]}",
        ),
        ((in_mig(GPUS[0], "1g.10gb", mig_pending=False),), MANY, "MigPending", "is to be off"),
        (SINGLE, {"MIG_STRATEGY": "single"}, "", ""),
        (MIXED, MANY, "", ""),
        (TWO, {}, "", ""),
        ((in_mig(GPUS[0], mig_devices=None),), MANY, "", ""),
    ],
)
def test_mig_that_stops_a_plugin(
    gpus: tuple[Gpu, ...], env: dict[str, str], reason: str, says: str
) -> None:
    found = [
        f for f in assessment(gpus, {}, **plugin(env)).findings if f.condition == "MigConfigured"
    ]
    assert [f.reason for f in found] == ([reason] if reason else [])
    assert all(says in f.because and not f.blocks and f.next_step for f in found)


def test_the_collector_and_the_rule_agree() -> None:
    """The plugin's own access is checked exactly when the kubelet's list is not complete."""

    def look_says(**changes: Any) -> bool:
        found: Snapshot = snapshot(**node(EIGHT, **changes))
        return listing(found, DEFAULTS).is_complete

    assert look_says(listed={"nvidia.com/gpu": U})
    assert look_says(listed={"nvidia.com/gpu": U[:1]}, **plugin({"NVIDIA_VISIBLE_DEVICES": "0"}))
    assert not look_says(listed={"nvidia.com/gpu": U[:7]})
    assert not look_says(listed={"nvidia.com/gpu": ()})


def test_dra_offers_the_gpus_and_no_resource_is_expected() -> None:
    """C71."""
    driver = {"plugins": (), "dra_driver": seen("gpus")}
    assert registered(assessment(EIGHT, {}, **driver)).verdict is HOLDS
    assert "offered by DRA" in registered(assessment(EIGHT, {}, **driver)).because
    assert not [f for f in assessment(EIGHT, {}, **driver).findings if f.reason == "NoPlugin"]
    assert registered(assessment(EIGHT, {}, plugins=())).reason == "NotRegistered"
    assert (
        registered(assessment(EIGHT, {}, dra_driver=seen("gpus"))).reason == "NotRegistered"
    )  # a plugin is there, too
