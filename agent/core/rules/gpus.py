"""What the rules tell each other about a host's GPUs."""

from __future__ import annotations

from dataclasses import dataclass

from ...model.finding import Scope
from ...model.scene import Gpu, NvmlError

NOUVEAU = "nouveau"


@dataclass(frozen=True, slots=True)
class SortedGpus:
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
    def on_nouveau(self) -> tuple[str, ...]:
        return tuple(bus_id for bus_id, why in self.elsewhere if why == NOUVEAU)


@dataclass(frozen=True, slots=True)
class Judged:
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
