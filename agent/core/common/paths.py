"""Where gpu-gate keeps its own few files."""

RUN = "/run/gpu-gate"
"""Marks of this boot; /run is empty at the next one."""
FIRST = "first-"
"""Marks of what came true for the first time in this boot begin so."""
NODE_OBJECT = "/run/gpu-gate-node/node.json"
"""Written by gpu-gate-node.service, which alone talks to the API server."""
ALLOW_STOPPED = "allow-stopped"
"""The mark that an addition to a scope's device list took something away: none is made any more in
this boot."""
STATE = "/var/lib/gpu-gate"
PCI = "/sys/bus/pci/devices"
SOC_FAMILY = "/sys/devices/soc0/family"
DRIVER_VERSION = "/proc/driver/nvidia/version"
DRIVER_GPUS = "/proc/driver/nvidia/gpus"
MODULE_STATE = "/sys/module/nvidia/initstate"
CONTAINER_MARKS = ("/run/systemd/container", "/.dockerenv", "/run/.containerenv")
"""systemd writes the first for itself (container-interface); Docker and Podman leave the others."""
MANIFEST_NAME = "gpu-gate-plugin.yaml"
"""Of the manifest that Launch=manifest places; tmpfiles removes this name at the next boot, and no
other."""
