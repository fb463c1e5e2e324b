"""How Kubernetes is laid out on a node: units, sockets and folders, a row for each distribution.

A row is a fact about other software, with its source. What the agent asks of a node and orders on
it follows from these rows. A setting overrules each: [Kubelet] Unit=, PodResourcesSocket=;
[Plugin] RuntimeSocket=, ManifestDir=. [Probe] DriverRoot= stands for the driver's own root.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ...model.settings import Settings

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


def _unique(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word for word in words if word))


KUBELET_UNITS = _unique(unit for layout in LAYOUTS for unit in layout.units)
CONTROL_PLANE_UNITS = _unique(unit for layout in LAYOUTS for unit in layout.control_plane)
DRIVER_ROOTS = _unique(["/run/nvidia/driver", *(layout.driver_root for layout in LAYOUTS)])
"""The GPU Operator's driver container has the first one (gpu-driver-container), on any layout."""


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
