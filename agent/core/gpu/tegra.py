"""Jetsons: the GPU is a part of NVIDIA's Tegra SoC and no function on PCI, its driver may be nvgpu,
and NVML is optional: Orin has none, Thor has (k8s-device-plugin #377, #1963). NVIDIA's plugin lists
one device, "tegra"."""

from __future__ import annotations

from ...model.reading import Seen
from ...model.snapshot import Gpu, Hardware

TEGRA = "tegra"
"""In the place of a bus id, and the device id that the kubelet lists."""
INTEGRATED = Gpu(TEGRA, TEGRA, -1, "integrated GPU")
"""Where NVML is not there to name it."""
NVGPU = "/sys/module/nvgpu"


def is_tegra(hardware: Hardware) -> bool:
    """As go-nvlib tells it (pkg/nvlib/info, IsTegraSystem). Asked only where PCI shows no GPU of
    NVIDIA's."""
    return isinstance(hardware.soc, Seen) and hardware.soc.value.lower().startswith(TEGRA)
