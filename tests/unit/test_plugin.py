"""Which container is the device plugin, its version, the GPUs of its ids, and its faults."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from agent.core.diagnose import diagnose
from agent.core.doctor.suspects import suspects
from agent.core.plugin import candidates as plugin
from agent.core.plugin.findings import fault
from agent.core.plugin.resources import Listing
from agent.model.fault import Cure
from agent.model.finding import Heals, Verdict
from agent.model.gpu import GpuState
from agent.model.reading import Refusal, Why
from agent.model.runtime import Container, ContainerState, PluginSight, Runtime, SocketOwner
from agent.model.settings import Settings

from .snapshots import (
    DEFAULTS,
    DENIED,
    FAILED_LOG,
    GPUS,
    MISSING,
    OFFSET,
    TIMED_OUT,
    WELL_LOG,
    container,
    detail,
    diagnosed,
    finding,
    probed,
    sandbox,
    seen,
    sight,
    snapshot,
    unit,
)

RUNNING, EXITED, CREATED = ContainerState.RUNNING, ContainerState.EXITED, ContainerState.CREATED
NVIDIA = "nvcr.io/nvidia/k8s-device-plugin:v0.17.1"


def pod(uid: str, labels: dict[str, str], *containers: Container, **changes: Any) -> Runtime:
    """One pod: its sandbox carries its labels, its containers only the kubelet's."""
    box = sandbox(f"box-{uid}", uid=uid, labels=labels, **changes)
    mine = tuple(
        replace(c, sandbox_id=box.id, labels={"io.kubernetes.pod.uid": uid}) for c in containers
    )
    return Runtime((box,), mine)


def both(*pods: Runtime) -> Runtime:
    return Runtime(
        tuple(s for p in pods for s in p.sandboxes), tuple(c for p in pods for c in p.containers)
    )


def named(
    name: str, container_id: str = "", image: str = "example/other:1", **changes: Any
) -> Container:
    return container(container_id or name, name=name, image=image, **changes)


WORKLOAD = pod("work", {"app": "training"}, named("main", image="example/cuda:12"))
STATIC = pod(
    "static", {"name": "nvidia-device-plugin-ds"}, named("nvidia-device-plugin-ctr", image=NVIDIA)
)
HELM = pod(
    "helm",
    {"app.kubernetes.io/name": "nvidia-device-plugin", "app.kubernetes.io/instance": "nvdp"},
    named("nvidia-device-plugin-init", image=NVIDIA, state=EXITED),
    named("nvidia-device-plugin-sidecar", image=NVIDIA),
    named("nvidia-device-plugin-ctr", image=NVIDIA),
)
HELM_GFD = pod(  # the same labels and the same image
    "gfd",
    {"app.kubernetes.io/name": "nvidia-device-plugin", "app.kubernetes.io/instance": "nvdp"},
    named("gpu-feature-discovery-init", image=NVIDIA, state=EXITED),
    named("gpu-feature-discovery-sidecar", image=NVIDIA),
    named("gpu-feature-discovery-ctr", image=NVIDIA),
)
HELM_MPS = pod(
    "mps",
    {"app.kubernetes.io/name": "nvidia-device-plugin"},
    named("mps-control-daemon-mounts", image=NVIDIA, state=EXITED),
    named("mps-control-daemon-init", image=NVIDIA),
    named("mps-control-daemon-sidecar", image=NVIDIA),
    named("mps-control-daemon-ctr", image=NVIDIA),
)
OPERATOR = pod(
    "operator",
    {"app": "nvidia-device-plugin-daemonset"},
    named(
        "toolkit-validation",
        image="nvcr.io/nvidia/cloud-native/gpu-operator-validator:v24",
        state=EXITED,
    ),
    named("config-manager-init", image=NVIDIA, state=EXITED),
    named("config-manager", image=NVIDIA),
    named("nvidia-device-plugin", image=NVIDIA),
)
OPERATOR_GFD = pod(
    "operator-gfd", {"app": "gpu-feature-discovery"}, named("gpu-feature-discovery", image=NVIDIA)
)

GKE = pod(
    "gke",
    {"k8s-app": "nvidia-gpu-device-plugin"},
    named("nvidia-driver-installer", state=EXITED),
    named("nvidia-gpu-device-plugin", image="gke.gcr.io/nvidia-gpu-device-plugin@sha256:1"),
    named("fluentbit"),
)
HAMI = pod(
    "hami",
    {"app.kubernetes.io/component": "hami-device-plugin", "app.kubernetes.io/name": "hami"},
    named("toolkit-validation", state=EXITED, image="projecthami/hami:v2.7"),
    named("device-plugin", "hami-dp", image="projecthami/hami:v2.7"),
    named("vgpu-monitor", image="projecthami/hami:v2.7"),
)
HAMI_SCHEDULER = pod(
    "hami-s",
    {"app.kubernetes.io/component": "hami-scheduler"},
    named("vgpu-scheduler-extender", image="projecthami/hami:v2.7"),
)
VGPU = "projecthami/volcano-vgpu-device-plugin:v1.12.0"
VOLCANO = pod(
    "volcano",
    {"name": "volcano-device-plugin"},
    named("volcano-device-plugin", image=VGPU),
    named("monitor", image=VGPU),
)
GPUSHARE = pod(
    "gpushare", {"component": "gpushare-device-plugin", "app": "gpushare"}, named("gpushare")
)
TKE = pod(
    "tke", {"name": "gpu-manager-ds"}, named("gpu-manager", image="tkestack/gpu-manager:1.0.3")
)
QGPU = pod("qgpu", {"app": "qgpu-manager"}, named("qgpu-manager"))
OLD_NVIDIA = pod(
    "old",
    {"name": "nvidia-device-plugin-ds"},
    named("nvidia-device-plugin-ctr", image="nvidia/k8s-device-plugin:1.11"),
)
# more than one READY sandbox may carry one uid (rke2 #4775)
TWICE = both(
    pod(
        "dup",
        {"name": "nvidia-device-plugin-ds"},
        named("nvidia-device-plugin-ctr", "older", created_at=OFFSET + 10),
    ),
    Runtime(
        (sandbox("box-2", uid="dup"),),
        (
            named(
                "nvidia-device-plugin-ctr",
                "newer",
                sandbox_id="box-2",
                labels={"io.kubernetes.pod.uid": "dup"},
            ),
        ),
    ),
)

# what it is, what the runtime lists, the containers that are found
FOUND: list[tuple[str, Runtime, set[str]]] = [
    ("nothing at all", Runtime((), ()), set()),
    ("only workloads", WORKLOAD, set()),
    ("static pod", both(WORKLOAD, STATIC), {"nvidia-device-plugin-ctr"}),
    ("Helm: init and sidecar in the same pod", both(HELM, WORKLOAD), {"nvidia-device-plugin-ctr"}),
    (
        "Helm with GPU feature discovery and MPS",
        both(HELM, HELM_GFD, HELM_MPS),
        {"nvidia-device-plugin-ctr"},
    ),
    ("GPU Operator", both(OPERATOR, OPERATOR_GFD), {"nvidia-device-plugin"}),
    (
        "ACK: by label",
        pod("a", {"component": "nvidia-device-plugin"}, named("ack-plugin")),
        {"ack-plugin"},
    ),
    (
        "GKE: by label",
        pod("g", {"k8s-app": "nvidia-gpu-device-plugin"}, named("gke-plugin")),
        {"gke-plugin"},
    ),
    (
        "a label, and other containers of the pod",
        pod(
            "c",
            {"component": "nvidia-device-plugin"},
            named("nvidia-device-plugin-ctr"),
            named("istio-proxy"),
        ),
        {"nvidia-device-plugin-ctr"},
    ),
    (
        "a label, and init containers that have ended",
        pod(
            "g",
            {"k8s-app": "nvidia-gpu-device-plugin"},
            named("driver-installer", state=EXITED),
            named("gke-plugin"),
        ),
        {"gke-plugin"},
    ),
    (
        "a label, and two that run",
        pod("g", {"k8s-app": "nvidia-gpu-device-plugin"}, named("a"), named("b")),
        {"a", "b"},
    ),
    (
        "a label, and all have ended",
        pod(
            "g",
            {"component": "nvidia-device-plugin"},
            named("a", state=EXITED),
            named("b", state=EXITED),
        ),
        {"a", "b"},
    ),
    ("a label of another value", pod("x", {"app": "nvidia"}, named("x")), set()),
    (
        "a label on the container is none on its pod",
        Runtime(
            (sandbox("s", labels={}),),
            (named("x", sandbox_id="s", labels={"app": "nvidia-device-plugin"}),),
        ),
        set(),
    ),
    (
        "by image only",
        pod("i", {}, named("dp", image="registry:5000/mirror/k8s-device-plugin:v0.9.1-6f7f")),
        {"dp"},
    ),
    (
        "by an image without a tag",
        pod("i", {}, named("dp", image="example/nvidia-device-plugin")),
        {"dp"},
    ),
    (
        "GKE: driver installer and a logger in its pod",
        both(GKE, WORKLOAD),
        {"nvidia-gpu-device-plugin"},
    ),
    (
        "HAMi: its monitor has the same image, its scheduler too",
        both(HAMI, HAMI_SCHEDULER),
        {"hami-dp"},
    ),
    ("Volcano's vGPU: its monitor has the same image", VOLCANO, {"volcano-device-plugin"}),
    ("Alibaba's gpushare", both(GPUSHARE, WORKLOAD), {"gpushare"}),
    ("TKE's GPU manager", TKE, {"gpu-manager"}),
    ("TKE's qGPU", QGPU, {"qgpu-manager"}),
    ("NVIDIA's of 2018", OLD_NVIDIA, {"nvidia-device-plugin-ctr"}),
    (
        "NVIDIA's beside one of other resources",
        both(OLD_NVIDIA, GPUSHARE, VOLCANO),
        {"nvidia-device-plugin-ctr"},
    ),
    (
        "two vendors' own resources: the first of the table",
        both(GPUSHARE, VOLCANO),
        {"volcano-device-plugin"},
    ),
    (
        "two for nvidia.com/gpu: HAMi's and NVIDIA's",
        both(HAMI, OLD_NVIDIA),
        {"hami-dp", "nvidia-device-plugin-ctr"},
    ),
    (
        "two for nvidia.com/gpu: static pod and DaemonSet of ACK",
        both(
            pod(
                "s", {"component": "nvidia-device-plugin"}, named("nvidia-device-plugin", "static")
            ),
            pod(
                "d", {"component": "nvidia-device-plugin"}, named("nvidia-device-plugin", "daemon")
            ),
        ),
        {"static", "daemon"},
    ),
    ("two READY sandboxes of one pod", TWICE, {"newer"}),
    ("two plugins", both(STATIC, OPERATOR), {"nvidia-device-plugin-ctr", "nvidia-device-plugin"}),
    (
        "its pod is gone: sandbox not ready",
        pod("old", {}, named("nvidia-device-plugin-ctr", "old"), is_ready=False),
        set(),
    ),
    (
        "rolling update: the old pod's sandbox is not ready",
        both(
            pod("old", {}, named("nvidia-device-plugin-ctr", "old", state=EXITED), is_ready=False),
            pod("new", {}, named("nvidia-device-plugin-ctr", "new")),
        ),
        {"new"},
    ),
    (
        "a sandbox that is not on the list",
        Runtime((), (named("nvidia-device-plugin-ctr", "lone"),)),
        {"lone"},
    ),
    (
        "no labels, no sandbox",
        Runtime((), (named("nvidia-device-plugin-ctr", "lone", labels={}),)),
        {"lone"},
    ),
]


@pytest.mark.parametrize(
    ("runtime", "ids"), [row[1:] for row in FOUND], ids=[row[0] for row in FOUND]
)
@pytest.mark.parametrize("reverse", [False, True])
def test_which_container_is_the_plugin(runtime: Runtime, ids: set[str], reverse: bool) -> None:
    if reverse:
        runtime = Runtime(runtime.sandboxes[::-1], runtime.containers[::-1])
    assert {c.id for c, _ in plugin.candidates(runtime, DEFAULTS)} == ids


def test_a_candidate_comes_with_its_sandbox() -> None:
    (pair,) = plugin.candidates(HELM, DEFAULTS)
    assert pair == (HELM.containers[2], HELM.sandboxes[0])


def attempt(container_id: str, number: int, state: ContainerState, age: float) -> Container:
    return named(
        "nvidia-device-plugin-ctr",
        container_id,
        attempt=number,
        state=state,
        created_at=OFFSET + 100 - age,
    )


@pytest.mark.parametrize(
    ("attempts", "newest"),
    [
        (
            [attempt("0", 0, EXITED, 9), attempt("1", 1, EXITED, 5), attempt("2", 2, RUNNING, 1)],
            "2",
        ),
        ([attempt("0", 0, EXITED, 9), attempt("1", 1, EXITED, 5)], "1"),
        (
            [attempt("0", 0, RUNNING, 9), attempt("1", 1, CREATED, 5)],
            "0",
        ),  # what runs is what serves
        ([attempt("0", 0, EXITED, 9), attempt("1", 1, CREATED, 5)], "1"),
        (
            [attempt("5", 5, EXITED, 9), attempt("0", 0, RUNNING, 1)],
            "0",
        ),  # rebuilt: its attempts begin again
        (
            [attempt("0", 0, EXITED, 1), attempt("1", 1, EXITED, 1)],
            "1",
        ),  # within one tick of the clock
    ],
)
def test_of_several_attempts_the_newest(attempts: list[Container], newest: str) -> None:
    for order in itertools.permutations(attempts):
        (pair,) = plugin.candidates(pod("p", {}, *order), DEFAULTS)
        assert pair[0].id == newest


@pytest.mark.parametrize(
    ("settings", "ids"),
    [
        (Settings(plugin_containers=("main",)), {"main"}),
        (Settings(plugin_containers=(), plugin_images=()), set()),
        (Settings(plugin_containers=("m*",), plugin_images=("example/cuda:*",)), {"main"}),
        (Settings(plugin_images=("EXAMPLE/*",)), set()),
        (Settings(plugin_containers=("gone",)), set()),
    ],
)
def test_settings_select_the_plugin(settings: Settings, ids: set[str]) -> None:
    assert {c.id for c, _ in plugin.candidates(WORKLOAD, settings)} == ids


@pytest.mark.parametrize(
    ("runtime", "settings", "ids"),
    [
        (
            both(STATIC, OPERATOR),
            Settings(plugin_containers=("nvidia-device-plugin",)),
            {"nvidia-device-plugin"},
        ),
        (both(STATIC, WORKLOAD), Settings(plugin_containers=("main",)), {"main"}),
        (both(STATIC, WORKLOAD), Settings(plugin_images=("example/cuda:*",)), {"main"}),
        (
            HELM,
            Settings(plugin_images=(NVIDIA,)),
            {"nvidia-device-plugin-ctr"},
        ),  # its company has the same image
        (
            HELM,
            Settings(plugin_containers=("nvidia-device-plugin-sidecar",)),
            {"nvidia-device-plugin-sidecar"},
        ),
        (both(STATIC, GPUSHARE), Settings(resources=("aliyun.com/gpu-mem",)), {"gpushare"}),
        (
            both(STATIC, GPUSHARE),
            Settings(resources=("nvidia.com/gpu",)),
            {"nvidia-device-plugin-ctr"},
        ),
        (
            STATIC,
            Settings(resources=("example.com/gpu",)),
            {"nvidia-device-plugin-ctr"},
        ),  # it can rename its own
    ],
)
def test_a_candidate_that_the_owner_chose_is_the_only_one(
    runtime: Runtime, settings: Settings, ids: set[str]
) -> None:
    assert {c.id for c, _ in plugin.candidates(runtime, settings)} == ids


@pytest.mark.parametrize(
    "container_id", ["0123456789abcdef", "; reboot #", "$(reboot)", "-rf", "`id`", "a b"]
)
def test_a_command_to_paste_contains_no_foreign_shell_code(container_id: str) -> None:
    of = named("nvidia-device-plugin-ctr", container_id)
    found = diagnosed(allocatable=seen(()), plugins=(sight(FAILED_LOG, of=of),))
    broken = snapshot(allocatable=seen(()), plugins=(sight(FAILED_LOG, of=of),))
    (early,) = [s for s in suspects(broken, found) if s.id == "EarlyNvml"]
    name = "0123456789ab" if container_id.startswith("0") else "CONTAINER"
    assert early.do == f"crictl stop {name} && crictl rm {name}"
    assert early.capture.endswith(f"crictl logs {name}")


FOLDER = "/var/lib/kubelet/device-plugins"


@pytest.mark.parametrize(
    ("mounts", "can"),
    [
        ((), True),  # not told
        (("/var/lib/kubelet/pods/7f/etc-hosts", FOLDER), True),
        ((f"{FOLDER}/",), True),
        (("/var/lib/kubelet",), True),
        (("/",), True),
        (("/data//kubelet/device-plugins",), True),  # /var/lib/kubelet may be a link
        (("/var/lib/kubelet/device-plugins-of-mine",), False),
        (("/var/lib/kubelet/pods/7f/etc-hosts", "/dev", "/sys"), False),
        (("/var/lib/kubelet/pods/7f/volumes/kubernetes.io~empty-dir/device-plugins",), False),
        (("/var/lib/kubelet/pods/7f/volume-subpaths/device-plugins/main/0",), False),
    ],
)
def test_mounts_that_a_plugin_needs(mounts: tuple[str, ...], can: bool) -> None:
    assert plugin.can_register(detail(container(), mounts=mounts), FOLDER) is can


def test_a_candidate_of_another_plugin_does_not_replace_this_nodes() -> None:
    """Anybody's pod with NVIDIA's label on a node whose plugin offers resources of its own."""
    found = both(GPUSHARE, STATIC)
    assert {c.name for c, _ in plugin.candidates(found, DEFAULTS)} == {"nvidia-device-plugin-ctr"}
    unable = {c.id for c in STATIC.containers}
    assert {c.name for c, _ in plugin.candidates(found, DEFAULTS, unable)} == {"gpushare"}


def of_command(container_id: str, *args: str) -> PluginSight:
    of = named(container_id)
    return replace(
        sight(of=of, args=args), sandbox=sandbox(labels={"k8s-app": "nvidia-gpu-device-plugin"})
    )


@pytest.mark.parametrize(
    ("commands", "ids"),
    [
        ({"a": ("/usr/bin/nvidia-gpu-device-plugin", "-v"), "b": ("/bin/sh",)}, {"a"}),
        ({"a": ("nvidia-gpu-device-plugin",), "b": ("nvidia-gpu-device-plugin",)}, {"a", "b"}),
        ({"a": ("x",), "b": ()}, {"a", "b"}),  # none is seen to be it: a person's
    ],
)
def test_of_several_in_one_pod_the_one_that_executes_a_plugin(
    commands: dict[str, Any], ids: set[str]
) -> None:
    sights = tuple(of_command(name, *args) for name, args in commands.items())
    assert {s.container.id for s in plugin.by_command(sights)} == ids


def pod_sight(runtime: Runtime, name: str) -> PluginSight:
    return next(
        replace(sight(of=c), sandbox=s)
        for c, s in plugin.candidates(runtime, DEFAULTS)
        if c.name == name
    )


@pytest.mark.parametrize(
    ("found", "settings", "resources"),
    [
        ((), DEFAULTS, ("nvidia.com/*",)),
        ((sight(),), DEFAULTS, ("nvidia.com/*",)),
        ((pod_sight(HAMI, "device-plugin"),), DEFAULTS, ("nvidia.com/*",)),
        ((pod_sight(GKE, "nvidia-gpu-device-plugin"),), DEFAULTS, ("nvidia.com/*",)),
        ((pod_sight(GPUSHARE, "gpushare"),), DEFAULTS, ("aliyun.com/*",)),
        ((pod_sight(VOLCANO, "volcano-device-plugin"),), DEFAULTS, ("volcano.sh/*",)),
        ((pod_sight(TKE, "gpu-manager"),), DEFAULTS, ("tencent.com/*", "tke.cloud.tencent.com/*")),
        ((pod_sight(GPUSHARE, "gpushare"),), Settings(resources=("x/*",)), ("x/*",)),
        ((sight(of=named("main")),), DEFAULTS, ("nvidia.com/*",)),  # the owner's own choice
    ],
)
def test_a_vendors_resources_are_theirs(
    found: Any, settings: Settings, resources: tuple[str, ...]
) -> None:
    assert plugin.effective(settings, found).resources == resources


# image, what its log prints, version
VERSIONS: list[tuple[str, str, tuple[int, int] | None]] = [
    ("nvcr.io/nvidia/k8s-device-plugin:v0.9.0", "", (0, 9)),
    ("nvcr.io/nvidia/k8s-device-plugin:v0.14.0-ubi8", "", (0, 14)),
    ("nvcr.io/nvidia/k8s-device-plugin:0.17.1", "", (0, 17)),
    ("registry-vpc.cn.example.com/acs/k8s-device-plugin:v0.9.1-6f7f23a-aliyun", "", (0, 9)),
    ("nvcr.io/nvidia/k8s-device-plugin:v0.9.0", "v0.20.0", (0, 20)),  # its own word first
    ("nvcr.io/nvidia/k8s-device-plugin:v0.9.0", "unknown", (0, 9)),
    ("nvcr.io/nvidia/k8s-device-plugin:v0.16.0", "devel", (0, 16)),
    ("nvcr.io/nvidia/k8s-device-plugin:latest", "", None),
    ("nvcr.io/nvidia/k8s-device-plugin", "", None),
    ("localhost:5000/k8s-device-plugin", "", None),
    ("10.0.0.1:5000/k8s-device-plugin", "", None),
    ("nvcr.io/nvidia/k8s-device-plugin@sha256:1f0e", "", None),
    ("", "", None),
]


@pytest.mark.parametrize(("image", "said", "version"), VERSIONS)
def test_the_plugins_version_is_read(
    image: str, said: str, version: tuple[int, int] | None
) -> None:
    log = (
        'I0627 10:12:47.588061       1 main.go:269] "Starting NVIDIA Device Plugin" '
        f'version="{said}"\n'
    ).encode()
    assert plugin.version(sight(log if said else b"", image=image)) == version


def test_without_a_status_the_list_shows_the_image() -> None:
    known = replace(sight(MISSING, of=container(image="x:v0.14.1")), detail=TIMED_OUT)
    assert plugin.version(known) == (0, 14)


@pytest.mark.parametrize(
    ("changes", "started"), [({"started_at": 5.0}, 5.0), ({"started_at": 0.0}, OFFSET + 100)]
)
def test_when_it_started(changes: dict[str, Any], started: float) -> None:
    assert plugin.started_at(sight(**changes)) == started


def test_a_pod_whose_sandbox_was_not_listed_is_named_by_the_containers_labels() -> None:
    labels = {"io.kubernetes.pod.namespace": "gpu", "io.kubernetes.pod.name": "p-1"}
    assert plugin.pod_name(replace(sight(of=container(labels=labels)), sandbox=None)) == "gpu/p-1"
    assert plugin.pod_name(replace(sight(of=container(labels={})), sandbox=None)) == "?/?"
    assert plugin.pod_name(sight()) == "kube-system/nvidia-device-plugin-node"


# --- what is wrong with it

OLD, NEW, OTHERS = "plugin:v0.12.3", "plugin:v0.13.0", "gke.gcr.io/nvidia-gpu-device-plugin:1.0.25"


def log(*lines: str) -> bytes:
    return "".join(f"2021/06/27 10:12:47 {line}\n" for line in lines).encode()


UNKNOWN_ERROR = "Failed to initialize NVML: Unknown Error."
NONE_FOUND = log("Loading NVML", "No devices found. Waiting indefinitely.")
ASKING = log("Loading NVML", "Retreiving plugins.")
NO_LIBRARY = log("Failed to initialize NVML: could not load NVML library.")
UNHEALTHY = log(
    "Registered device plugin with Kubelet",
    "XidCriticalError: Xid=79 on Device=GPU-x; marking device as unhealthy.",
)
NOT_READ = Refusal(Why.NOT_ASKED)
SERVING = log("Starting to serve 'nvidia.com/gpu' on /x.sock")
# what it is, the sight, reason, cure, does SIGHUP answer
FAULTS: list[tuple[str, PluginSight, str, Cure, bool]] = [
    ("init failed", sight(FAILED_LOG), "PluginInitFailed", Cure.FRESH_START, False),
    (
        "init failed, access verified, old",
        sight(FAILED_LOG, True, image=OLD),
        "PluginInitFailed",
        Cure.FRESH_START,
        False,
    ),
    (
        "init failed, access verified, new",
        sight(FAILED_LOG, True, image=NEW),
        "PluginInitFailed",
        Cure.FRESH_START,
        True,
    ),
    (
        "init failed, new, nobody asked for its access",
        sight(FAILED_LOG, None, image=NEW),
        "PluginInitFailed",
        Cure.FRESH_START,
        False,
    ),
    (
        "init failed, access verified, version unknown",
        sight(FAILED_LOG, True, image="plugin:latest"),
        "PluginInitFailed",
        Cure.FRESH_START,
        False,
    ),
    (
        "no devices, access verified, new",
        sight(NONE_FOUND, True, image=NEW),
        "PluginSawNoGpu",
        Cure.FRESH_START,
        True,
    ),
    ("no devices", sight(NONE_FOUND), "PluginSawNoGpu", Cure.FRESH_START, False),
    (
        "another vendor's numbers",
        sight(NONE_FOUND, True, image=OTHERS),
        "PluginSawNoGpu",
        Cure.FRESH_START,
        False,
    ),
    (
        "before there was 0.x",
        sight(NONE_FOUND, True, image="nvidia/k8s-device-plugin:1.0.0-beta4"),
        "PluginSawNoGpu",
        Cure.FRESH_START,
        False,
    ),
    (
        "access denied",
        sight(WELL_LOG, False, image=NEW),
        "PluginAccessDenied",
        Cure.FRESH_START,
        False,
    ),
    (
        "access denied and init failed",
        sight(FAILED_LOG, False, image=NEW),
        "PluginAccessDenied",
        Cure.FRESH_START,
        False,
    ),
    ("no library", sight(NO_LIBRARY, True, image=NEW), "PluginLacksLibrary", Cure.PERSON, False),
    ("asking", sight(ASKING), "PluginAsking", Cure.TIME, False),
    (
        "asking, access verified, new: one that hangs in NVML hears no signal",
        sight(ASKING, True, image=NEW),
        "PluginAsking",
        Cure.TIME,
        False,
    ),
    ("took a GPU out", sight(UNHEALTHY, True, image=NEW), "PluginSawUnhealthy", Cure.PERSON, False),
    (
        "took a GPU out, and lost its access since",
        sight(UNHEALTHY, False),
        "PluginSawUnhealthy",
        Cure.PERSON,
        False,
    ),
    (
        "its log cannot be read",
        sight(TIMED_OUT, True, image=NEW),
        "PluginLogUnread",
        Cure.TIME,
        False,
    ),
    (
        "its log cannot be read, its access is denied",
        sight(TIMED_OUT, False),
        "PluginAccessDenied",
        Cure.FRESH_START,
        False,
    ),
    (
        "an older driver's library: SIGHUP would keep it",
        sight(log("Failed to initialize NVML: Driver/library version mismatch."), True, image=NEW),
        "PluginInitFailed",
        Cure.FRESH_START,
        False,
    ),
    (
        "its status cannot be read",
        replace(sight(FAILED_LOG), detail=TIMED_OUT, log=NOT_READ, access=NOT_READ),
        "PluginUnread",
        Cure.WAIT,
        False,
    ),
    ("registered, and forgotten", sight(WELL_LOG), "PluginForgotten", Cure.TIME, False),
    (
        "forgotten, access verified, new",
        sight(WELL_LOG, True, image=NEW),
        "PluginForgotten",
        Cure.TIME,
        True,
    ),
    ("serving", sight(SERVING), "PluginSilent", Cure.TIME, False),
    (
        "could not register",
        sight(log("Could not register device plugin: x")),
        "PluginSilent",
        Cure.TIME,
        False,
    ),
    ("stopping", sight(log("Stopping plugins.")), "PluginSilent", Cure.TIME, False),
    ("an empty log", sight(b""), "PluginSilent", Cure.TIME, False),
    ("created", sight(of=container(state=CREATED)), "PluginNeverStarted", Cure.TIME, False),
    (
        "created, of a pod that failed before",
        sight(FAILED_LOG, of=container(state=CREATED)),
        "PluginNeverStarted",
        Cure.TIME,
        False,
    ),
    (
        "exited",
        sight(FAILED_LOG, of=container(state=EXITED), exit_code=1),
        "PluginExited",
        Cure.WAIT,
        False,
    ),
    (
        "of unknown state",
        sight(of=container(state=ContainerState.UNKNOWN)),
        "PluginUnread",
        Cure.WAIT,
        False,
    ),
]


@pytest.mark.parametrize(
    ("found", "reason", "cure", "hup"), [r[1:] for r in FAULTS], ids=[r[0] for r in FAULTS]
)
def test_faults_of_a_plugin(found: PluginSight, reason: str, cure: Cure, hup: bool) -> None:
    said = fault(snapshot(plugins=(found,), allocatable=seen(())), DEFAULTS, short=True)
    assert said is not None
    assert (said.reason, said.cure, said.hup_answers) == (reason, cure, hup)
    assert said.access_denied is (reason == "PluginAccessDenied")
    assert said.barred is (reason == "PluginLogUnread")
    assert said.sight == found
    assert said.next_step and "kube-system/nvidia-device-plugin-node" in said.because


def test_a_plugin_that_saw_fewer_was_not_forgotten() -> None:
    said = fault(
        snapshot(plugins=(sight(WELL_LOG),)), DEFAULTS, short=True, listed=Listing(opaque=7)
    )
    assert said is not None and (said.reason, said.cure) == ("PluginSawFewer", Cure.TIME)


def test_a_gpu_marked_unhealthy_after_an_xid_causes_no_restart() -> None:
    lost = log(
        "Registered device plugin with Kubelet",
        "XidCriticalError: Xid=79 on Device=GPU-x, the device will go unhealthy.",
    )
    said = fault(snapshot(plugins=(sight(lost, True, image=NEW),)), DEFAULTS, short=True)
    assert said is not None and (said.reason, said.cure) == ("PluginSawUnhealthy", Cure.PERSON)


def test_every_reason_of_a_container_is_tested() -> None:
    assert {row[2] for row in FAULTS} == {
        "PluginInitFailed",
        "PluginSawNoGpu",
        "PluginAccessDenied",
        "PluginLacksLibrary",
        "PluginAsking",
        "PluginForgotten",
        "PluginSilent",
        "PluginNeverStarted",
        "PluginExited",
        "PluginSawUnhealthy",
        "PluginUnread",
        "PluginLogUnread",
    }


@pytest.mark.parametrize(
    ("changes", "short"),
    [
        ({}, False),
        ({"plugins": (sight(FAILED_LOG),)}, False),
        ({"plugins": (sight(FAILED_LOG),), "runtime": TIMED_OUT}, True),
        ({"plugins": (), "runtime": DENIED}, True),
    ],
)
def test_no_fault_if_everything_is_listed_or_nothing_is_known(
    changes: dict[str, Any], short: bool
) -> None:
    assert fault(snapshot(**changes), DEFAULTS, short) is None


def test_two_plugins_need_an_operator() -> None:
    two = (sight(of=container("c1")), sight(FAILED_LOG, of=container("c2")))
    said = fault(snapshot(plugins=two), DEFAULTS, short=True)
    assert said is not None
    assert (said.reason, said.cure, said.sight) == ("TwoPlugins", Cure.PERSON, None)
    assert (
        "c1" in said.because and "c2" in said.because and "[Plugin] Containers=" in said.next_step
    )


UNIT = "nvidia-device-plugin.service"


@pytest.mark.parametrize(
    ("plugin_unit", "units", "reason", "cure"),
    [
        ("", seen(()), "NoPlugin", Cure.WAIT),
        (UNIT, seen((unit(UNIT),)), "NotRegistered", Cure.TIME),
        (UNIT, seen((unit(UNIT, "failed"),)), "PluginUnitDown", Cure.WAIT),
        (UNIT, seen((unit(UNIT, "activating"),)), "PluginUnitDown", Cure.WAIT),
        (UNIT, seen((unit("other.service"),)), "PluginUnitDown", Cure.WAIT),
        (UNIT, TIMED_OUT, "PluginUnitDown", Cure.WAIT),
    ],
)
def test_no_container_is_the_plugin(plugin_unit: str, units: Any, reason: str, cure: Cure) -> None:
    said = fault(snapshot(plugins=(), units=units), Settings(plugin_unit=plugin_unit), short=True)
    assert said is not None
    assert (said.reason, said.cure, said.sight, said.hup_answers) == (reason, cure, None, False)


SHORT: dict[str, Any] = {"allocatable": seen(())}
HOST_UNIT = unit("nvidia-k8s-device-plugin.service", sub="running")


@pytest.mark.parametrize(
    ("units", "plugins", "settings", "reason"),
    [
        ((HOST_UNIT,), (), {}, "NotRegistered"),
        ((HOST_UNIT,), (sight(FAILED_LOG),), {}, "TwoPlugins"),
        ((HOST_UNIT,), (sight(FAILED_LOG),), {"plugin_unit": "none"}, "PluginInitFailed"),
        ((HOST_UNIT,), (sight(FAILED_LOG),), {"plugin_unit": HOST_UNIT.name}, "NotRegistered"),
        (
            (HOST_UNIT,),
            (sight(FAILED_LOG),),
            {"plugin_containers": ("nvidia-device-plugin-ctr",)},
            "PluginInitFailed",
        ),
        (
            (unit(HOST_UNIT.name, "inactive", sub="dead"),),
            (sight(FAILED_LOG),),
            {},
            "PluginInitFailed",
        ),
        (
            (unit("mine.service", "failed"),),
            (sight(FAILED_LOG),),
            {"plugin_unit": "mine.service"},
            "PluginUnitDown",
        ),
        (
            (unit("mine.service", "inactive", load="not-found"),),
            (sight(FAILED_LOG),),
            {"plugin_unit": "mine.service"},
            "PluginInitFailed",
        ),
    ],
)
def test_a_unit_of_the_host_is_a_candidate_too(
    units: Any, plugins: Any, settings: dict[str, Any], reason: str
) -> None:
    said = fault(snapshot(units=seen(units), plugins=plugins), Settings(**settings), short=True)
    assert said is not None and said.reason == reason
    assert said.cure is Cure.PERSON if reason == "TwoPlugins" else said.cure is not Cure.PERSON
    assert said.unit == (units[0].name if said.sight is None and reason != "TwoPlugins" else "")


@pytest.mark.parametrize(
    ("policy", "found", "reason", "cure"),
    [
        ("Never", sight(FAILED_LOG), "NeverStartedAgain", Cure.FRESH_START),
        (
            "OnFailure",
            sight(FAILED_LOG),
            "NeverStartedAgain",
            Cure.FRESH_START,
        ),  # it exits with 0 on SIGTERM
        ("Never", sight(WELL_LOG, False), "NeverStartedAgain", Cure.FRESH_START),
        ("Never", sight(of=container(state=EXITED), exit_code=1), "PluginExited", Cure.WAIT),
        ("Never", sight(NO_LIBRARY), "PluginLacksLibrary", Cure.PERSON),
        ("Always", sight(FAILED_LOG), "PluginInitFailed", Cure.FRESH_START),
        ("", sight(FAILED_LOG), "PluginInitFailed", Cure.FRESH_START),
    ],
)
def test_a_container_that_would_not_come_back_is_not_removed(
    policy: str, found: PluginSight, reason: str, cure: Cure
) -> None:
    said = fault(snapshot(plugins=(replace(found, restart_policy=policy),)), DEFAULTS, short=True)
    assert said is not None and (said.reason, said.cure) == (reason, cure)
    assert said.barred is (reason == "NeverStartedAgain")
    assert (f"restartPolicy is {policy}:" in said.because) is (reason == "NeverStartedAgain")


@pytest.mark.parametrize(
    ("migs", "strategy", "reason", "cure"),
    [
        ((), "mixed", "MigWithoutInstances", Cure.PERSON),
        ((), "single", "MigWithoutInstances", Cure.PERSON),
        (
            None,
            "mixed",
            "PluginSawNoGpu",
            Cure.FRESH_START,
        ),  # they could not be listed: nobody knows
        ((), "none", "PluginSawNoGpu", Cure.FRESH_START),
        ((), "", "PluginSawNoGpu", Cure.FRESH_START),
    ],
)
def test_gpus_without_devices_to_register(
    migs: Any, strategy: str, reason: str, cure: Cure
) -> None:
    """No start of the plugin makes a MIG instance."""
    gpus = tuple(replace(g, state=GpuState(mig=True, mig_devices=migs)) for g in GPUS)
    seen_one = sight(
        b"No devices found. Waiting indefinitely.\n",
        env={"MIG_STRATEGY": strategy} if strategy else {},
    )
    said = diagnose(
        snapshot(probe=probed(gpus=gpus), allocatable=seen(()), plugins=(seen_one,)), DEFAULTS
    ).repair_facts
    assert (
        said is not None
        and said.fault is not None
        and (said.fault.reason, said.fault.cure) == (reason, cure)
    )


def test_a_manifest_that_cannot_be_read_is_no_permission() -> None:
    unread = replace(sight(FAILED_LOG), restart_policy=plugin.NOT_READ)
    said = fault(snapshot(plugins=(unread,)), DEFAULTS, short=True)
    assert said is not None and said.barred and said.reason == "PluginInitFailed"
    assert "could not be read" in said.because and "restartPolicy" in said.next_step


OTHER = Runtime(
    (sandbox(), sandbox("s2", name="hami-7x")),
    (container(), named("device-plugin", "c2", sandbox_id="s2")),
)


@pytest.mark.parametrize(
    ("owner", "named_as"),
    [
        (
            SocketOwner("nvidia-gpu.sock", 77, "c2", "containerd.service"),
            "kube-system/hami-7x device-plugin c2, pid 77",
        ),
        (SocketOwner("nvidia-gpu.sock", 77, "c9", ""), "container c9, pid 77"),
        (
            SocketOwner("nvidia-gpu.sock", 77, "", "nvidia-device-plugin.service"),
            "nvidia-device-plugin.service, pid 77",
        ),
        (SocketOwner("nvidia-gpu.sock", 77, "c1", ""), ""),
        (SocketOwner("nvidia-gpu.sock", 77, "", ""), ""),  # a process somewhere: nothing is proved
    ],
)
def test_a_container_whose_socket_another_serves_is_not_removed(
    owner: SocketOwner, named_as: str
) -> None:
    found = snapshot(
        plugins=(sight(FAILED_LOG),), runtime=seen(OTHER), socket_owners=(owner,), **SHORT
    )
    said = fault(found, DEFAULTS, short=True)
    assert said is not None
    assert (said.reason, said.barred) == (
        ("AnotherServes", True) if named_as else ("PluginInitFailed", False)
    )
    assert named_as in said.because
    told = finding(
        diagnosed(
            plugins=(sight(FAILED_LOG),), runtime=seen(OTHER), socket_owners=(owner,), **SHORT
        ),
        "SocketOwner",
    )
    assert (told.verdict, told.blocks) == (Verdict.FAILS if named_as else Verdict.HOLDS, False)


@pytest.mark.parametrize(
    ("container_id", "service", "barred"),
    [
        ("c2", "", True),
        ("c9", "docker.service", False),
        ("", "other.service", True),
        ("", HOST_UNIT.name, False),
        ("", "", False),
    ],
)
def test_a_unit_whose_socket_a_pod_serves_is_not_restarted(
    container_id: str, service: str, barred: bool
) -> None:
    owner = SocketOwner("nvidia-gpu.sock", 77, container_id, service)
    said = fault(
        snapshot(plugins=(), units=seen((HOST_UNIT,)), runtime=seen(OTHER), socket_owners=(owner,)),
        DEFAULTS,
        short=True,
    )
    assert said is not None and (said.barred, said.cure, said.unit) == (
        barred,
        Cure.TIME,
        HOST_UNIT.name,
    )
    assert said.reason == ("AnotherServes" if barred else "NotRegistered")


def test_without_a_candidate_the_server_of_the_socket_is_reported() -> None:
    owner = SocketOwner("nvidia-gpu.sock", 77, "c2", "")
    said = fault(
        snapshot(plugins=(), runtime=seen(OTHER), socket_owners=(owner,)), DEFAULTS, short=True
    )
    assert said is not None and said.reason == "NoPlugin"
    assert "nvidia-gpu.sock is served by kube-system/hami-7x device-plugin c2" in said.because


def test_a_crash_loop_is_reported_and_left_to_the_kubelet() -> None:
    looping = sight(of=container(state=EXITED, attempt=4), exit_code=1)
    said = fault(snapshot(plugins=(looping,)), DEFAULTS, short=True)
    assert said is not None and said.cure is Cure.WAIT
    assert "at its attempt 5" in said.because and "a removal does not shorten" in said.because


@pytest.mark.parametrize(
    ("runtime", "name"),
    [
        (GKE, "nvidia-gpu-device-plugin"),
        (HAMI, "device-plugin"),
        (VOLCANO, "volcano-device-plugin"),
        (GPUSHARE, "gpushare"),
    ],
)
def test_a_vendors_plugin_is_rebuilt_like_any_other_and_never_signalled(
    runtime: Runtime, name: str
) -> None:
    found = pod_sight(runtime, name)
    broken = replace(
        sight(FAILED_LOG, True, of=found.container, image="v/x:v0.14.0"), sandbox=found.sandbox
    )
    said = fault(snapshot(plugins=(broken,)), DEFAULTS, short=True)
    assert said is not None and (said.reason, said.cure) == ("PluginInitFailed", Cure.FRESH_START)
    assert not said.hup_answers


# --- how it is told


def test_a_healthy_plugin_is_described() -> None:
    said = finding(diagnosed(plugins=(sight(image="x:v0.9.0"),)), "PluginHealthy")
    assert said.verdict is Verdict.HOLDS
    for part in (
        "kube-system/nvidia-device-plugin-node",
        "c1 is running",
        "v0.9",
        "Registered device plugin",
    ):
        assert part in said.because


@pytest.mark.parametrize(
    ("log", "heals"), [(NO_LIBRARY, Heals.CONFIGURATION), (FAILED_LOG, Heals.SOON)]
)
def test_a_fault_is_a_finding_that_blocks_nothing_by_itself(log: bytes, heals: Heals) -> None:
    """Readiness follows from what the kubelet lists; a separate finding shows why it lists too
    little."""
    said = finding(diagnosed(plugins=(sight(log),), **SHORT), "PluginHealthy")
    assert (said.verdict, said.link, said.blocks, said.heals) == (Verdict.FAILS, 8, False, heals)
    assert said.next_step


def test_a_silent_runtime_is_unknown_and_not_a_missing_plugin() -> None:
    said = finding(diagnosed(runtime=TIMED_OUT, plugins=(), **SHORT), "PluginHealthy")
    assert (said.verdict, said.reason) == (Verdict.UNKNOWN, "RuntimeSilent")


@pytest.mark.parametrize(
    ("checkpoint", "verdict", "part"),
    [
        ({"nvidia.com/gpu": 8}, Verdict.HOLDS, "8 nvidia.com/gpu"),
        ({}, Verdict.FAILS, "no device"),
        ({"nvidia.com/gpu": 0}, Verdict.FAILS, "no device"),
        ({"rdma/hca": 4}, Verdict.FAILS, "no device"),
    ],
)
def test_the_checkpoint_is_a_hint(checkpoint: dict[str, int], verdict: Verdict, part: str) -> None:
    said = finding(diagnosed(checkpoint=seen(checkpoint)), "Checkpoint")
    assert (said.verdict, said.blocks) == (verdict, False)
    assert part in said.because and "a hint" in said.because


def test_a_checkpoint_that_cannot_be_read_is_unknown_and_blocks_nothing() -> None:
    said = next(f for f in diagnosed(checkpoint=DENIED).findings if f.condition == "Checkpoint")
    assert (said.verdict, said.reason, said.blocks) == (
        Verdict.UNKNOWN,
        "CheckpointUnreadable",
        False,
    )
