"""The one table of what a node may look like: how Kubernetes is laid out on it, and which device
plugins there are.

A row is a fact about somebody else's software, with its source. What is asked of a node, ordered
on, or told apart follows from these rows. Every row can be overruled: [Kubelet] Unit=,
PodResourcesSocket=, Resources=; [Plugin] RuntimeSocket=, Containers=, Images=, Unit=, ManifestDir=.
[Probe] DriverRoot= stands for the driver's own root.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from ...model.settings import Settings

if (
    TYPE_CHECKING
):  # `gpu-gate wait` imports this file in the way of every boot, and half its time would be theirs
    from ...model.runtime import Container, Sandbox

ROOT = "/var/lib/kubelet"
"""The kubelet's --root-dir. Pod resources follow it; device-plugins never does (kubernetes #68567,
#120626)."""
MANIFESTS = "/etc/kubernetes/manifests"
CONTAINERD, CRIO, CRI_DOCKERD = (
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/cri-dockerd.sock",
)
"""/var/run is a link to /run wherever systemd is (tmpfiles.d/var.conf): both spellings lead to the
same socket."""


@dataclass(frozen=True, slots=True)
class Layout:
    """One way of laying out Kubernetes on a node."""

    name: str
    units: tuple[str, ...]
    "units that carry the kubelet"
    sockets: tuple[str, ...]
    "CRI endpoints"
    source: str
    manifests: str = MANIFESTS
    'the folder of static pods; "" where there is none by default'
    root: str = ROOT
    control_plane: tuple[str, ...] = ()
    """those of the units that carry a control plane too: never ordered by default, and never held
    for long"""
    apiserver: str = "kube-apiserver.yaml"
    "in the folder of static pods, where a control plane runs as such"
    driver_root: str = ""
    "where the driver is kept, where that is not /"


LAYOUTS = (
    Layout(
        "kubeadm, ACK, TKE, AKS, kind",
        ("kubelet.service",),
        (CONTAINERD,),
        "kubeadm cmd/kubeadm/app/constants: KubernetesDir, ManifestsSubDirName; AgentBaker "
        "kubelet.service; "
        "a static plugin on ACK is there too (its document on upgrades to 1.32)",
    ),
    Layout(
        "GKE",
        ("kubelet.service",),
        (CONTAINERD,),
        "container-engine-accelerators cmd/nvidia_gpu/nvidia_gpu.go: host-path; "
        "nvidia-driver-installer/cos",
        driver_root="/home/kubernetes/bin/nvidia",
    ),
    Layout(
        "EKS",
        ("kubelet.service", "snap.kubelet-eks.daemon.service"),
        (CONTAINERD,),
        "amazon-eks-ami; Ubuntu's EKS images carry the kubelet as a snap",
        manifests="",
    ),
    Layout(
        "Bottlerocket",
        ("kubelet.service",),
        (CONTAINERD, "/run/dockershim.sock"),
        "bottlerocket-core-kit containerd-config-toml_k8s*; sources/api/static-pods: "
        "STATIC_POD_DIR",
        manifests="/etc/kubernetes/static-pods",
    ),
    Layout(
        "standalone kubelet",
        ("kubelet.service",),
        (CONTAINERD, CRIO),
        "kubernetes.io, Create static Pods: --pod-manifest-path=/etc/kubelet.d/",
        manifests="/etc/kubelet.d",
    ),
    Layout(
        "CRI-O, OpenShift, OKD",
        ("kubelet.service",),
        (CRIO,),
        "cri-o docs/crio.8.md --listen; openshift static pods: kube-apiserver-pod.yaml",
        apiserver="kube-apiserver-pod.yaml",
    ),
    Layout(
        "docker with cri-dockerd, minikube",
        ("kubelet.service",),
        (CRI_DOCKERD, "/run/dockershim.sock"),
        "Mirantis/cri-dockerd packaging/systemd/cri-docker.socket; dockershim until Kubernetes "
        "1.23",
    ),
    Layout(
        "k3s",
        ("k3s-agent.service", "k3s.service"),
        ("/run/k3s/containerd/containerd.sock", "/run/k3s/cri-dockerd/cri-dockerd.sock"),
        "k3s install.sh; pkg/agent/containerd, pkg/agent/cridockerd; k3s #4070",
        manifests="/var/lib/rancher/k3s/agent/pod-manifests",
        control_plane=("k3s.service",),
    ),
    Layout(
        "rke2",
        ("rke2-agent.service", "rke2-server.service"),
        ("/run/k3s/containerd/containerd.sock",),
        "rke2 docs, File Locations; rke2 #8199",
        manifests="/var/lib/rancher/rke2/agent/pod-manifests",
        control_plane=("rke2-server.service",),
    ),
    Layout(
        "microk8s",
        ("snap.microk8s.daemon-kubelite.service", "snap.microk8s.daemon-kubelet.service"),
        ("/var/snap/microk8s/common/run/containerd.sock",),
        "microk8s #448, #3959",
        manifests="",
        root="/var/snap/microk8s/common/var/lib/kubelet",
        control_plane=("snap.microk8s.daemon-kubelite.service",),
    ),
    Layout(
        "Charmed Kubernetes",
        ("snap.kubelet.daemon.service",),
        (CONTAINERD,),
        "the kubelet's own snap; sos report/plugins/kubernetes.py",
        manifests="",
    ),
    Layout(
        "Canonical Kubernetes",
        ("snap.k8s.kubelet.service",),
        (CONTAINERD,),
        "canonical/k8s-snap; sos report/plugins/kubernetes.py",
        manifests="",
    ),
    Layout(
        "k0s",
        ("k0sworker.service", "k0scontroller.service"),
        ("/run/k0s/containerd.sock",),
        "k0s pkg/component/worker/kubelet.go: --root-dir; static pods come by HTTP; k0s #7585",
        manifests="",
        root="/var/lib/k0s/kubelet",
        control_plane=("k0scontroller.service",),
    ),
    Layout(
        "MicroShift",
        ("microshift.service",),
        (CRIO,),
        "openshift/microshift packaging/systemd",
        manifests="",
        control_plane=("microshift.service",),
    ),
)


@dataclass(frozen=True, slots=True)
class Kind:
    """One device plugin that offers NVIDIA GPUs."""

    name: str
    labels: tuple[tuple[str, str], ...]
    "of its pod: on the sandbox, not on the container"
    containers: tuple[str, ...]
    "patterns of the plugin's own container's name"
    images: tuple[str, ...]
    source: str
    commands: tuple[str, ...] = ("nvidia-device-plugin",)
    "what its container executes, without folders"
    resources: tuple[str, ...] = ("nvidia.com/*",)
    sockets: tuple[str, ...] = ("nvidia-*.sock",)
    "in the kubelet's folder of device plugins"
    units: tuple[str, ...] = ()
    "units of the host that it may be instead"
    company: tuple[str, ...] = ()
    "containers in its pod that are not it, beside those of COMPANY"
    hup: tuple[tuple[int, int], tuple[int, int]] | None = None
    """versions (from, below) that SIGHUP makes start afresh in place; None: it ends them, or is not
    known to help"""


NVIDIA_NAMES = (
    ("app.kubernetes.io/name", "nvidia-device-plugin"),  # Helm chart
    ("name", "nvidia-device-plugin-ds"),  # static manifests, most clouds' documents
    ("app", "nvidia-device-plugin"),
    ("app", "nvidia-device-plugin-daemonset"),  # GPU Operator
    ("component", "nvidia-device-plugin"),  # ACK, static pod and DaemonSet
)
KINDS = (
    Kind(
        "GKE's",
        (("k8s-app", "nvidia-gpu-device-plugin"),),
        ("nvidia-gpu-device-plugin",),
        ("*nvidia-gpu-device-plugin*",),
        "container-engine-accelerators cmd/nvidia_gpu",
        ("nvidia-gpu-device-plugin",),
        sockets=("nvidiaGPU-*.sock",),
    ),
    Kind(
        "HAMi's",
        (
            ("app.kubernetes.io/component", "hami-device-plugin"),
            ("app.kubernetes.io/component", "4pd-device-plugin"),
        ),
        ("device-plugin",),  # the latter until 2.2
        (),
        "HAMi charts/hami/templates/device-plugin/daemonsetnvidia.yaml; its scheduler has the "
        "same image; "
        "4paradigm/k8s-vgpu-scheduler charts/vgpu, which it was before",
        company=("vgpu-monitor", "selinux-relabel"),
    ),
    Kind(
        "Volcano's",
        (
            ("name", "volcano-device-plugin"),
            ("app.kubernetes.io/component", "volcano-vgpu-device-plugin"),
        ),
        ("volcano-device-plugin",),
        ("*volcano-device-plugin*", "*volcano-vgpu-device-plugin*"),
        "volcano-sh/devices volcano-device-plugin.yml; volcano-vgpu-device-plugin "
        "deployments/static",
        ("volcano-device-plugin", "volcano-vgpu-device-plugin"),
        ("volcano.sh/*",),
        ("volcano*.sock", "nvidia-*.sock"),
        company=("monitor",),
    ),
    Kind(
        "Alibaba's gpushare",
        (("component", "gpushare-device-plugin"), ("name", "gpushare-device-plugin-ds")),
        ("gpushare",),
        ("*k8s-gpushare-plugin*",),
        "gpushare-device-plugin device-plugin-ds.yaml, const.go",
        ("gpushare-device-plugin-v2", "gpushare-device-plugin"),
        ("aliyun.com/*",),
        ("aliyungpushare.sock",),
    ),
    Kind(
        "Tencent's GPU manager",
        (("name", "gpu-manager-ds"), ("app", "qgpu-manager")),
        ("gpu-manager", "qgpu-manager"),
        ("*/gpu-manager:*", "*/qgpu-manager:*"),
        "tkestack/gpu-manager gpu-manager.yaml; TKE's document on qGPU",
        ("gpu-manager",),
        ("tencent.com/*", "tke.cloud.tencent.com/*"),
        ("vcore.sock", "vmemory.sock", "qgpu*.sock"),
    ),
    Kind(
        "AWS's virtual GPUs",
        (("name", "aws-virtual-gpu-device-plugin"),),
        ("aws-virtual-gpu-device-plugin-ctr",),
        ("*aws-virtual-gpu-device-plugin*",),
        "awslabs/aws-virtual-gpu-device-plugin manifests/device-plugin.yml, "
        "pkg/gpu/nvidia/server.go",
        ("vgpu-device-plugin",),
        ("k8s.amazonaws.com/vgpu", "eks.amazonaws.com/vgpu"),
        ("nvidia-aws-vgpu.sock",),
        company=("mps",),
    ),
    # Last: vendors build on NVIDIA's names.
    Kind(
        "NVIDIA's",
        NVIDIA_NAMES,
        ("nvidia-device-plugin", "nvidia-device-plugin-ctr"),
        ("*k8s-device-plugin*", "*nvidia-device-plugin*"),
        "k8s-device-plugin deployments/static and helm, 0.9 to 0.20; gpu-operator "
        "state-device-plugin; "
        "bottlerocket-core-kit packages/nvidia-k8s-device-plugin; AgentBaker "
        "nvidia-device-plugin.service",
        sockets=("nvidia-*.sock", "nvidia.sock"),  # the latter until 1.11
        units=("nvidia-k8s-device-plugin.service", "nvidia-device-plugin.service"),
        # An older one that failed ends with status 2 on SIGHUP. 1.0.0-beta is older still than
        # 0.13.
        hup=((0, 13), (1, 0)),
    ),
)
COMPANY = (
    "*-sidecar",
    "*-init",
    "config-manager*",
    "toolkit-validation",
    "mps-control-daemon*",
    "gpu-feature-discovery*",
)
"""Containers that share a plugin's pod, image or labels (Helm chart, GPU Operator) and are never
it."""
COMPANY_PODS = ("*mps-control-daemon*", "*gpu-feature-discovery*")
"""Pods of the Helm chart that carry the plugin's labels and none of it."""
FOREIGN = (
    "*rocm/*",
    "*amdgpu*",
    "*/cambricon*",
    "*/hygon*",
    "*/iluvatar*",
    "*/metax*",
    "*/mthreads*",
    "*/enflame*",
)
"""Images of other vendors' plugins, some of which are called k8s-device-plugin as well."""
COMMON = ("device-plugin",)
"""Names that any vendor's plugin may have: they say nothing without their pod's labels."""


def _unique(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word for word in words if word))


KUBELET_UNITS = _unique(unit for layout in LAYOUTS for unit in layout.units)
CONTROL_PLANE_UNITS = _unique(unit for layout in LAYOUTS for unit in layout.control_plane)
PLUGIN_UNITS = _unique(unit for kind in KINDS for unit in kind.units)
DRIVER_ROOTS = _unique(["/run/nvidia/driver", *(layout.driver_root for layout in LAYOUTS)])
"""The GPU Operator's driver container has the first one (gpu-driver-container), on any layout."""
PREFERRED = ("nvidia.com/*",)
"""Guarded where no plugin was found that says otherwise."""


def _of_unit(unit: str) -> tuple[Layout, ...]:
    """Every layout, those first whose kubelet this unit carries."""
    return tuple(sorted(LAYOUTS, key=lambda layout: unit not in layout.units))


def runtime_sockets(settings: Settings, unit: str = "") -> tuple[str, ...]:
    """CRI endpoints in the order in which they are tried; `unit` carries this host's kubelet."""
    if settings.runtime_socket:
        return (settings.runtime_socket,)
    return _unique(socket for layout in _of_unit(unit) for socket in layout.sockets)


def pod_resources_sockets(settings: Settings, unit: str = "") -> tuple[str, ...]:
    if settings.pod_resources_socket:
        return (settings.pod_resources_socket,)
    return _unique(f"{layout.root}/pod-resources/kubelet.sock" for layout in _of_unit(unit))


def manifest_folders(settings: Settings, unit: str = "") -> tuple[str, ...]:
    """Folders of static pods."""
    if settings.manifest_dir:
        return (settings.manifest_dir,)
    return _unique(layout.manifests for layout in _of_unit(unit))


def control_plane_files(settings: Settings) -> tuple[str, ...]:
    """One of them there: a control plane is on this node, as static pods or inside a unit that
    starts at boot."""
    names = _unique(layout.apiserver for layout in LAYOUTS)
    pods = [f"{folder}/{name}" for folder in manifest_folders(settings) for name in names]
    return _unique(
        [*pods, *(f"/etc/systemd/system/multi-user.target.wants/{u}" for u in CONTROL_PLANE_UNITS)]
    )


def kind_of(container: Container, sandbox: Sandbox | None) -> Kind | None:
    """The plugin whose pod, container's name or image this is; None where no row speaks of it."""
    if matches(container.image, FOREIGN):
        return None
    if sandbox and (labelled := kind_of_pod(sandbox)):
        return labelled
    tests: tuple[Callable[[Kind], bool], ...] = (
        lambda kind: matches(container.image, kind.images),
        lambda kind: container.name in kind.containers and container.name not in COMMON,
    )
    return next((kind for test in tests for kind in KINDS if test(kind)), None)


def kind_of_pod(sandbox: Sandbox) -> Kind | None:
    """The plugin whose pod this is, by its labels."""
    return next(
        (kind for kind in KINDS if any(label in sandbox.labels.items() for label in kind.labels)),
        None,
    )


def is_company(container: Container, kind: Kind | None) -> bool:
    """It shares a plugin's pod or image, and is not the plugin."""
    return matches(container.name, COMPANY + (kind.company if kind else ()))


def overlap(one: Iterable[str], other: Iterable[str]) -> bool:
    """Two sets of patterns that may speak of one resource."""
    return any(fnmatchcase(a, b) or fnmatchcase(b, a) for a in one for b in other)


def matches(word: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(word, pattern) for pattern in patterns)
