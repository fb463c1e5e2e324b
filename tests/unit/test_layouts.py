"""The one table: every layout of a node and every device plugin, row by row; and what the owner
overrules."""

from __future__ import annotations

from typing import Any

import pytest

from agent.core.collect import watched_units
from agent.core.common import layouts
from agent.core.common.layouts import LAYOUTS
from agent.core.common.watched import kubelet_units, running_kubelet, watched_folders
from agent.core.plugin import kinds
from agent.core.plugin.candidates import unit as plugin_unit
from agent.core.plugin.kinds import KINDS, Kind, kind_of, plugin_units
from agent.model.settings import Settings

from .snapshots import DEFAULTS, TIMED_OUT, container, sandbox, seen, unit

DEFAULT_ROOT, K0S_ROOT = "/var/lib/kubelet", "/var/lib/k0s/kubelet"
MICROK8S_ROOT = "/var/snap/microk8s/common/var/lib/kubelet"
CONTAINERD, K3S = "/run/containerd/containerd.sock", "/run/k3s/containerd/containerd.sock"
CRIO = "/run/crio/crio.sock"

# whose, the unit that carries its kubelet, its runtime, the folder of its pod-resources socket's
# root, static pods
NODES = [
    (
        "kubeadm, EKS, AKS, GKE, ACK, TKE",
        "kubelet.service",
        CONTAINERD,
        DEFAULT_ROOT,
        "/etc/kubernetes/manifests",
    ),
    ("Charmed Kubernetes", "snap.kubelet.daemon.service", CONTAINERD, DEFAULT_ROOT, None),
    ("EKS on Ubuntu", "snap.kubelet-eks.daemon.service", CONTAINERD, DEFAULT_ROOT, None),
    ("k3s", "k3s-agent.service", K3S, DEFAULT_ROOT, "/var/lib/rancher/k3s/agent/pod-manifests"),
    ("k3s, server", "k3s.service", K3S, DEFAULT_ROOT, "/var/lib/rancher/k3s/agent/pod-manifests"),
    ("rke2", "rke2-agent.service", K3S, DEFAULT_ROOT, "/var/lib/rancher/rke2/agent/pod-manifests"),
    (
        "rke2, server",
        "rke2-server.service",
        K3S,
        DEFAULT_ROOT,
        "/var/lib/rancher/rke2/agent/pod-manifests",
    ),
    (
        "microk8s",
        "snap.microk8s.daemon-kubelite.service",
        "/var/snap/microk8s/common/run/containerd.sock",
        MICROK8S_ROOT,
        None,
    ),
    (
        "microk8s until 1.20",
        "snap.microk8s.daemon-kubelet.service",
        "/var/snap/microk8s/common/run/containerd.sock",
        MICROK8S_ROOT,
        None,
    ),
    ("Canonical Kubernetes", "snap.k8s.kubelet.service", CONTAINERD, DEFAULT_ROOT, None),
    ("k0s", "k0sworker.service", "/run/k0s/containerd.sock", K0S_ROOT, None),
    (
        "k0s, controller and worker",
        "k0scontroller.service",
        "/run/k0s/containerd.sock",
        K0S_ROOT,
        None,
    ),
    ("MicroShift", "microshift.service", CRIO, DEFAULT_ROOT, None),
]


@pytest.mark.parametrize(
    ("carrier", "runtime", "root", "pods"), [n[1:] for n in NODES], ids=[n[0] for n in NODES]
)
def test_sockets_follow_from_the_running_kubelet(
    carrier: str, runtime: str, root: str, pods: str | None
) -> None:
    assert (
        running_kubelet(seen((unit(carrier), unit("kubelet.service", "inactive"))), DEFAULTS)
        == carrier
    )
    assert layouts.runtime_sockets(DEFAULTS, carrier)[0] == runtime
    assert (
        layouts.pod_resources_sockets(DEFAULTS, carrier)[0] == f"{root}/pod-resources/kubelet.sock"
    )
    if pods is not None:
        assert layouts.manifest_folders(DEFAULTS, carrier)[0] == pods
    for asked in (layouts.runtime_sockets, layouts.pod_resources_sockets, layouts.manifest_folders):
        assert sorted(asked(DEFAULTS, carrier)) == sorted(asked(DEFAULTS)), (
            "the order only: nothing is left out"
        )


def test_every_unit_of_the_table_is_tried() -> None:
    assert {n[1] for n in NODES} == set(layouts.KUBELET_UNITS)


@pytest.mark.parametrize(
    "socket",
    [
        CONTAINERD,
        K3S,
        CRIO,
        "/run/k3s/cri-dockerd/cri-dockerd.sock",
        "/run/cri-dockerd.sock",
        "/run/dockershim.sock",
        "/run/k0s/containerd.sock",
        "/var/snap/microk8s/common/run/containerd.sock",
    ],
)
def test_every_runtime_is_tried_wherever_it_is(socket: str) -> None:
    assert socket in layouts.runtime_sockets(DEFAULTS, "kubelet.service")


@pytest.mark.parametrize(
    "path",
    [
        "/etc/kubernetes/manifests/kube-apiserver.yaml",
        "/etc/kubernetes/manifests/kube-apiserver-pod.yaml",  # OpenShift, OKD
        "/var/lib/rancher/rke2/agent/pod-manifests/kube-apiserver.yaml",
        *(
            f"/etc/systemd/system/multi-user.target.wants/{u}"
            for u in (
                "k3s.service",
                "rke2-server.service",
                "k0scontroller.service",
                "snap.microk8s.daemon-kubelite.service",
                "microshift.service",
            )
        ),
    ],
)
def test_where_a_control_plane_shows_itself(path: str) -> None:
    assert path in layouts.control_plane_files(DEFAULTS)


def test_the_units_with_a_control_plane_are_kubelets_units_and_no_agents() -> None:
    assert set(layouts.CONTROL_PLANE_UNITS) < set(layouts.KUBELET_UNITS)
    assert not {
        "kubelet.service",
        "k3s-agent.service",
        "rke2-agent.service",
        "k0sworker.service",
    } & set(layouts.CONTROL_PLANE_UNITS)


def test_device_plugins_stays_where_it_is_whatever_the_root() -> None:
    """kubernetes #68567, #120626: two independent paths."""
    assert DEFAULTS.device_plugins_dir == "/var/lib/kubelet/device-plugins"
    folders = watched_folders(DEFAULTS)
    assert {
        DEFAULTS.device_plugins_dir,
        f"{K0S_ROOT}/pod-resources",
        f"{MICROK8S_ROOT}/pod-resources",
        f"{DEFAULT_ROOT}/pod-resources",
    } <= set(folders)
    assert not [
        f for f in folders if f.endswith("device-plugins") and f != DEFAULTS.device_plugins_dir
    ]


def test_every_row_has_a_source() -> None:
    assert all(row.source for row in (*LAYOUTS, *KINDS))
    assert len({row.name for row in (*LAYOUTS, *KINDS)}) == len(LAYOUTS) + len(KINDS)


def test_where_drivers_are_kept_beside_the_root() -> None:
    assert layouts.DRIVER_ROOTS == ("/run/nvidia/driver", "/home/kubernetes/bin/nvidia")


# --- overruled


@pytest.mark.parametrize(
    ("setting", "asked", "only"),
    [
        ({"runtime_socket": "/x.sock"}, layouts.runtime_sockets, ("/x.sock",)),
        (
            {"runtime_socket": "/var/run/crio/crio.sock"},
            layouts.runtime_sockets,
            ("/var/run/crio/crio.sock",),
        ),
        ({"pod_resources_socket": "/x.sock"}, layouts.pod_resources_sockets, ("/x.sock",)),
        ({"manifest_dir": "/m"}, layouts.manifest_folders, ("/m",)),
        ({"kubelet_unit": "my.service"}, kubelet_units, ("my.service",)),
        ({"kubelet_unit": "none"}, kubelet_units, ()),
        ({"plugin_unit": "my.service"}, plugin_units, ("my.service",)),
        ({"plugin_unit": "none"}, plugin_units, ()),
        ({}, plugin_units, ("nvidia-k8s-device-plugin.service", "nvidia-device-plugin.service")),
    ],
)
def test_settings_override_the_table(
    setting: dict[str, Any], asked: Any, only: tuple[str, ...]
) -> None:
    assert asked(Settings(**setting)) == only
    if asked in (kubelet_units, plugin_units):
        assert set(only) <= set(watched_units(Settings(**setting)))


def test_the_manifests_of_a_control_plane_follow_manifest_dir() -> None:
    assert "/m/kube-apiserver.yaml" in layouts.control_plane_files(Settings(manifest_dir="/m"))


@pytest.mark.parametrize(
    ("units", "settings", "found"),
    [
        ((unit("kubelet.service"), unit("k3s.service")), DEFAULTS, "kubelet.service"),
        (
            (unit("kubelet.service", "activating"), unit("k3s-agent.service")),
            DEFAULTS,
            "k3s-agent.service",
        ),
        ((unit("kubelet.service", "inactive"),), DEFAULTS, ""),
        (
            (unit("mine.service"), unit("kubelet.service")),
            Settings(kubelet_unit="mine.service"),
            "mine.service",
        ),
        ((unit("kubelet.service"),), Settings(kubelet_unit="none"), ""),
        ((), DEFAULTS, ""),
    ],
)
def test_the_running_kubelet_selects_the_layout(units: Any, settings: Settings, found: str) -> None:
    assert running_kubelet(seen(units), settings) == found
    assert running_kubelet(TIMED_OUT, settings) == ""


# --- plugins

BOTTLEROCKET, AKS = kinds.PLUGIN_UNITS


def running(name: str, active: str = "active", sub: str = "running") -> Any:
    return unit(name, active, sub=sub)


@pytest.mark.parametrize(
    ("units", "settings", "found"),
    [
        ((running(BOTTLEROCKET),), {}, BOTTLEROCKET),
        ((running(AKS),), {}, AKS),
        ((running(AKS, "inactive", "dead"),), {}, ""),  # AKS: installed, and a DaemonSet is used
        (
            (running(AKS, "active", "exited"),),
            {},
            "",
        ),  # kops: a oneshot of this name installs drivers
        ((running(AKS, "activating", "start"),), {}, ""),
        ((running(AKS, "failed", "failed"),), {}, ""),
        ((running("other.service"),), {}, ""),
        ((running(AKS),), {"plugin_unit": "none"}, ""),
        (
            (running(AKS), running("mine.service", "failed", "failed")),
            {"plugin_unit": "mine.service"},
            "mine.service",
        ),
        ((running(AKS),), {"plugin_unit": "mine.service"}, ""),
        (
            (running(AKS),),
            {"plugin_containers": ("mine",)},
            "",
        ),  # the owner says that it is a container
    ],
)
def test_a_plugin_that_is_a_unit_of_the_host(
    units: Any, settings: dict[str, Any], found: str
) -> None:
    said = plugin_unit(seen(units), Settings(**settings))
    assert (said.name if said else "") == found
    assert plugin_unit(TIMED_OUT, Settings(**settings)) is None


@pytest.mark.parametrize("kind", KINDS, ids=[k.name for k in KINDS])
def test_each_label_image_and_name_of_a_row_finds_it(kind: Kind) -> None:
    for label in kind.labels:
        pod = sandbox(labels=dict([label, ("pod-template-hash", "1")]))
        assert kind_of(container(name="x", image="sha256:1"), pod) == kind
    for image in kind.images:
        assert (
            kind_of(container(name="x", image=image.replace("*", "r")), sandbox(labels={})) == kind
        )
    for name in set(kind.containers) - set(kinds.COMMON):
        assert kind_of(container(name=name, image="sha256:1"), None) == kind


@pytest.mark.parametrize(
    ("name", "socket"),
    [
        ("NVIDIA's", "nvidia-gpu.sock"),
        ("NVIDIA's", "nvidia-mig-1g.10gb.sock"),
        ("NVIDIA's", "nvidia-gpu.shared.sock"),
        ("NVIDIA's", "nvidia.sock"),
        ("GKE's", "nvidiaGPU-1795955834.sock"),
        ("HAMi's", "nvidia-gpu.sock"),
        ("Volcano's", "volcano.sock"),
        ("Volcano's", "nvidia-gpu-memory.sock"),
        ("Alibaba's gpushare", "aliyungpushare.sock"),
        ("Tencent's GPU manager", "vcore.sock"),
    ],
)
def test_the_sockets_that_a_plugin_makes(name: str, socket: str) -> None:
    kind = next(k for k in KINDS if k.name == name)
    assert kinds.matches(socket, kind.sockets)
    for other in (
        "kubelet.sock",
        "DEPRECATION",
        "kubelet_internal_checkpoint",
        "kubevirt-kvm.sock",
        "rdma.sock",
    ):
        assert not kinds.matches(other, kind.sockets)


def test_a_common_name_counts_only_with_its_pods_label() -> None:
    assert (
        kind_of(
            container(name="device-plugin", image="intel/gpu:1"), sandbox(labels={"app": "intel"})
        )
        is None
    )


def test_a_label_takes_precedence_over_an_image() -> None:
    """Vendors build on NVIDIA's image and names."""
    pod = sandbox(labels={"app.kubernetes.io/component": "hami-device-plugin"})
    found = kind_of(container(name="device-plugin", image="mirror/nvidia-device-plugin:v1"), pod)
    assert found is not None and found.name == "HAMi's"


def test_only_nvidias_plugin_restarts_in_place_on_sighup() -> None:
    """GKE's has no handler; Volcano's, gpushare's and old HAMi's wait for ever before theirs is
    made."""
    assert [k.name for k in KINDS if k.hup] == ["NVIDIA's"]
