"""Which device plugins there are: pods, images, resources, sockets and units, a row for each.

A row is a fact about other software, with its source. A setting overrules each: [Kubelet]
Resources=; [Plugin] Containers=, Images=, Unit=.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ...model.runtime import Container, Sandbox
from ...model.settings import Settings


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
PLUGIN_UNITS = tuple(dict.fromkeys(unit for kind in KINDS for unit in kind.units))
PREFERRED = ("nvidia.com/*",)
"""Guarded where no plugin was found that says otherwise."""


def plugin_units(settings: Settings) -> tuple[str, ...]:
    """Units of the host that may be the device plugin."""
    if settings.plugin_unit == "none":
        return ()
    return (settings.plugin_unit,) if settings.plugin_unit else PLUGIN_UNITS


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
