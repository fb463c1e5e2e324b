"""Where gpu-gate keeps its own few files."""

RUN = "/run/gpu-gate"
"""Marks of this boot; /run is empty at the next one."""
STATE = "/var/lib/gpu-gate"
CONTROL_PLANE_MANIFESTS = (
    "/etc/kubernetes/manifests/kube-apiserver.yaml",
    "/var/lib/rancher/rke2/agent/pod-manifests/kube-apiserver.yaml",
)
PCI = "/sys/bus/pci/devices"
