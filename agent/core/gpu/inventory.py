"""What the rules tell each other about a host's GPUs."""

from __future__ import annotations

from dataclasses import dataclass

from ...model.finding import Scope
from ...model.snapshot import Gpu, NvmlError

DISPLAY_DRIVERS = ("nouveau", "novacore", "nvidiafb", "rivafb")
"""The kernel's own drivers of these GPUs, without - and _: nova_core (6.15 and later) has been
called NovaCore."""


def is_display_driver(name: str) -> bool:
    return name.lower().replace("-", "").replace("_", "") in DISPLAY_DRIVERS


def is_passthrough(name: str) -> bool:
    """It keeps a device for a virtual machine or a program: vfio-pci, its variants
    (nvgrace-gpu-vfio-pci), Xen's."""
    return "vfio" in name or name in (
        "pciback",
        "xen-pciback",
        "pci-stub",
        "uio_pci_generic",
        "igb_uio",
    )


@dataclass(frozen=True, slots=True)
class GpuInventory:
    """The GPUs on PCI, by what they are for."""

    scope: Scope
    because: str
    bound: tuple[str, ...] = ()
    unbound: tuple[str, ...] = ()
    "no driver at all, and none asked for by driver_override"
    elsewhere: tuple[tuple[str, str], ...] = ()
    "(bus id, why): vfio-pci, nouveau, excluded by the owner"

    @property
    def candidates(self) -> tuple[str, ...]:
        return tuple(sorted(self.bound + self.unbound))

    @property
    def on_display(self) -> tuple[tuple[str, str], ...]:
        """(bus id, driver) of those that a driver of the kernel's own has."""
        return tuple((bus_id, why) for bus_id, why in self.elsewhere if is_display_driver(why))


@dataclass(frozen=True, slots=True)
class ProbeAssessment:
    """The last probe against what is expected."""

    expected: tuple[str, ...]
    "bus ids"
    wanted: int
    "how many GPUs must be shown"
    gpus: tuple[Gpu, ...]
    "that NVML enumerated and that are for containers"
    missing: tuple[str, ...]
    "what NVML should have shown: bus ids, UUIDs, or a number"
    errors: tuple[NvmlError, ...]
    fingerprint: str
