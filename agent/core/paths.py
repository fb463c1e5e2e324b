"""Where gpu-gate keeps its own few files."""

RUN = "/run/gpu-gate"
"""Marks of this boot; /run is empty at the next one."""
NODE_OBJECT = "/run/gpu-gate-node/node.json"
"""Written by gpu-gate-node.service, which alone talks to the API server."""
STATE = "/var/lib/gpu-gate"
PCI = "/sys/bus/pci/devices"
MANIFEST_DIRS = (
    "/etc/kubernetes/manifests",
    "/var/lib/rancher/k3s/agent/pod-manifests",
    "/var/lib/rancher/rke2/agent/pod-manifests",
)
"""Static pods of kubeadm, k3s and rke2. gpu-gate.tmpfiles and gpu-gate.service name them too."""
MANIFEST_NAME = "gpu-gate-plugin.yaml"
"""Of the manifest that Launch=manifest places; tmpfiles removes this name at the next boot, and no other."""
