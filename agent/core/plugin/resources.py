"""Device ids to GPUs: what the kubelet lists against what it should. A map of resources to sets,
never a number.

Whoever gave the ids, they come down to parts of GPUs that NVML shows, by one table of names: UUIDs
(NVIDIA's plugin, with ::N for its replicas; HAMi and Volcano add -N, Alibaba's gpushare -_-N),
NVML's indices (0, of MIG devices 0:1; --device-id-strategy index), nvidia0 and nvidia0/gi1, with
/vgpuN (GKE), tegra.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ...model.gpu import MigDevice
from ...model.reading import Seen
from ...model.settings import Settings
from ...model.snapshot import Devices, Gpu, ProbeEnd, Snapshot
from ..common.pod_resources import physical
from ..gpu.nvml_codes import GPU_IS_LOST
from .kinds import PREFERRED
from .visible_devices import EVERYTHING, Shown, VisibleDevices, select, visible_devices

GPUS = "nvidia.com/gpu"
_REPLICA = re.compile(r"::(\d+)$")
_FOREIGN = re.compile(r"(GPU-|MIG-)|nvidia\d+(/gi\d+)?$|\d{1,2}(:\d+)?$")
"""Forms of ids that name a GPU, so that one that NVML does not show means something."""
HOST_OF_VGPUS = ("host vgpu", "host vsga")


@dataclass(frozen=True, slots=True)
class Part:
    """What can be offered once, or as replicas: a GPU, or a MIG device of one."""

    uuid: str
    gpu: str
    "UUID of the GPU"
    profile: str = ""
    'of a MIG device; "" is the whole GPU'

    @property
    def kind(self) -> str:
        return "MIG device" if self.uuid != self.gpu else "GPU"


@dataclass(frozen=True, slots=True)
class Offer:
    """One resource: what is listed of it, and what should be."""

    resource: str
    listed: frozenset[Part]
    expected: frozenset[Part]
    replicas: int = 0
    "of each part; 0 where it has none"
    uneven: tuple[str, ...] = ()
    "UUIDs of which fewer replicas are listed"

    @property
    def missing(self) -> tuple[str, ...]:
        return tuple(sorted(p.uuid for p in self.expected - self.listed))


@dataclass(frozen=True, slots=True)
class Listing:
    """The kubelet's list against the expected one."""

    offers: tuple[Offer, ...] = ()
    strangers: tuple[str, ...] = ()
    "ids of GPUs that NVML does not show"
    opaque: int = 0
    "ids that name no GPU we know how to name"
    unshown: tuple[str, ...] = ()
    "that the plugin was given by name, and NVML does not show"
    visible_devices: VisibleDevices = EVERYTHING
    seen_by_plugin: int = 0
    "how many GPUs the plugin was given"
    shown: int | None = None
    "how many GPUs NVML shows; None where it was not asked, or failed as a whole"
    is_empty: bool = False
    """what the plugin was given has nothing to offer, by its own strategy: MIG mode without
    instances"""
    is_host: bool = False
    "every GPU that NVML shows is shared out to virtual machines (vGPU)"

    @property
    def count(self) -> int:
        """How many things are listed: parts of GPUs, or ids where they tell nothing."""
        known = {p.uuid for o in self.offers for p in o.listed}
        return len(known) + len(self.strangers) or self.opaque

    @property
    def missing(self) -> tuple[str, ...]:
        return tuple(m for o in self.offers for m in o.missing) + self.unshown

    @property
    def uneven(self) -> tuple[str, ...]:
        return tuple(u for o in self.offers for u in o.uneven)

    @property
    def gone(self) -> str:
        """Of MIG devices made anew under a plugin, or GPUs exchanged: how many ids outlived what
        they name."""
        ids = "all ids" if self.is_stale else f"{len(self.strangers)} of the ids"
        return (
            f"{ids} that the kubelet lists are gone from NVML"
            if self.strangers and self.shown
            else ""
        )

    @property
    def is_stale(self) -> bool:
        """Nothing that is listed exists any more, and a plugin that asked NVML now would see
        others: each allocation fails, and nothing is lost by starting it afresh."""
        others = any(o.missing for o in self.offers)
        return (
            bool(self.strangers)
            and others
            and not (self.opaque or any(o.listed for o in self.offers))
        )

    @property
    def is_complete(self) -> bool:
        if self.count == 0:
            return False
        return not self.tells or not (self.missing or self.uneven)

    @property
    def tells(self) -> bool:
        """The ids say which GPUs they are."""
        return bool(self.strangers) or any(o.listed for o in self.offers)


def listing(snapshot: Snapshot, settings: Settings, gpus: tuple[Gpu, ...] | None = None) -> Listing:
    """Of this snapshot; `gpus`: those that are for containers, where that is known already."""
    listed = snapshot.kubelet.allocatable.value_or(())
    ids = [Devices(d.resource, ours) for d in listed if (ours := _of_gpus(d, settings))]
    report = (
        snapshot.hardware.probe.value.last if isinstance(snapshot.hardware.probe, Seen) else None
    )
    may_see = visible_devices(snapshot)
    if report is None or report.end is not ProbeEnd.ANSWERED:
        return Listing(opaque=_physical_devices(ids), visible_devices=may_see)
    there = tuple(g for g in report.gpus if g.state.trouble != GPU_IS_LOST)
    wanted = _for_containers(there if gpus is None else gpus, settings)
    sees, unshown = select(report, there, may_see.names)
    # The plugin knows nothing of ExcludeGPUs=: it may list such a GPU, and it is not expected to.
    shown = tuple(s for s in sees if s.gpu.uuid in wanted)
    found, strangers, opaque = _sort(ids, _names(there, sees))
    expected = _expected(shown, may_see.strategy, {p for by in found.values() for p in by})
    return Listing(
        _offers(found, expected, may_see.strategy),
        strangers,
        opaque,
        unshown,
        may_see,
        len(shown),
        len(wanted),
        is_empty=_has_nothing_to_offer(shown, bool(expected)),
        is_host=bool(there) and all(map(_is_host_of_vgpus, there)),
    )


def _physical_devices(listed: list[Devices]) -> int:
    return len({physical(i) for d in listed for i in d.ids})


def _for_containers(gpus: tuple[Gpu, ...], settings: Settings) -> set[str]:
    """UUIDs of those that containers may be given."""
    return {
        g.uuid for g in gpus if g.bus_id not in settings.exclude_gpus and not _is_host_of_vgpus(g)
    }


def _is_host_of_vgpus(gpu: Gpu) -> bool:
    return gpu.state.virtualization in HOST_OF_VGPUS


def _has_nothing_to_offer(shown: tuple[Shown, ...], is_expected: bool) -> bool:
    """MIG mode without instances."""
    return bool(shown) and not is_expected and all(s.migs is not None for s in shown)


def _of_gpus(devices: Devices, settings: Settings) -> tuple[str, ...]:
    """Of a guarded resource its ids. The catch-all nvidia.com/* also fits NVIDIA's network devices
    (hostdev, rdma_…), IMEX channels, and GPUs that kubevirt-gpu-device-plugin gives to virtual
    machines: those resources have a model's name (GA102GL_A10), their ids are IOMMU groups or
    mediated devices."""
    pattern = next(
        (p for p in settings.resources or PREFERRED if fnmatchcase(devices.resource, p)), ""
    )
    name = devices.resource.rpartition("/")[2]
    if not pattern or (
        pattern == "nvidia.com/*" and re.match(r"hostdev|rdma|mlnx|imex|sriov", name, re.I)
    ):
        return ()
    ids = tuple(i for i in devices.ids if i.strip())
    is_model = pattern == "nvidia.com/*" and name != name.lower()
    return tuple(i for i in ids if i.startswith(("GPU-", "MIG-"))) if is_model else ids


def _names(known: tuple[Gpu, ...], shown: tuple[Shown, ...]) -> dict[str, Part]:
    """Every name of every part. Indices are the plugin's own: it counts what it sees."""
    names: dict[str, Part] = {}
    for gpu in known:
        whole = Part(gpu.uuid, gpu.uuid)
        names[gpu.uuid] = names[f"nvidia{gpu.minor}"] = whole
        for mig in gpu.state.mig_devices or ():
            part = _mig_part(gpu, mig)
            names[mig.uuid] = names[f"nvidia{gpu.minor}/gi{mig.gpu_instance}"] = part
    for at, one in enumerate(shown):
        names[str(at)] = Part(one.gpu.uuid, one.gpu.uuid)
        for mig_at, mig in enumerate(one.migs or ()):
            names[f"{at}:{mig_at}"] = _mig_part(one.gpu, mig)
    if len(known) == 1:
        names["tegra"] = Part(known[0].uuid, known[0].uuid)
    return names


def _mig_part(gpu: Gpu, mig: MigDevice) -> Part:
    return Part(mig.uuid, gpu.uuid, mig.profile)


Found = dict[str, dict[Part, list[str]]]
"""Resource to part to the ids that are listed of it."""


def _sort(listed: list[Devices], names: dict[str, Part]) -> tuple[Found, tuple[str, ...], int]:
    found: Found = {}
    strangers, opaque = set(), set()
    for devices in listed:
        for device_id in devices.ids:
            base = physical(device_id)
            part = names.get(base)
            if part is not None:
                found.setdefault(devices.resource, {}).setdefault(part, []).append(device_id)
            elif _FOREIGN.match(base):
                strangers.add(base)
            else:
                opaque.add(base)
    return found, tuple(sorted(strangers)), len(opaque)


def _expected(shown: tuple[Shown, ...], strategy: str, listed: set[Part]) -> tuple[Part, ...]:
    """What NVIDIA's plugin offers by its strategy (internal/rm/nvml_manager.go, device_map.go).
    Where nothing says which it is, the ids tell: a GPU in MIG mode is listed itself (none) or by
    its MIG devices (single, mixed)."""
    listed_uuids = {p.uuid for p in listed}
    any_mig = strategy in ("single", "mixed") or (
        not strategy and any(p.uuid != p.gpu for p in listed)
    )
    parts: list[Part] = []
    for one in shown:
        by_itself = (
            not one.gpu.state.mig
            or (not any_mig)
            or (not strategy and one.gpu.uuid in listed_uuids)
        )
        if by_itself:
            parts.append(Part(one.gpu.uuid, one.gpu.uuid))
        else:
            parts += [_mig_part(one.gpu, m) for m in one.migs or ()]
    return tuple(parts)


def _offers(found: Found, expected: tuple[Part, ...], strategy: str) -> tuple[Offer, ...]:
    wanted: dict[str, set[Part]] = {}
    for part in expected:
        for resource in _resources_of(part, found, strategy):
            wanted.setdefault(resource, set()).add(part)
    offers = []
    for resource in sorted({*found, *wanted}):
        by_part = found.get(resource, {})
        replicas, uneven = _replicas(by_part)
        offers.append(
            Offer(
                resource, frozenset(by_part), frozenset(wanted.get(resource, ())), replicas, uneven
            )
        )
    return tuple(offers)


def _resources_of(part: Part, found: Found, strategy: str) -> Iterator[str]:
    """Where it is listed; else where its like is; else the name NVIDIA's plugin has for it."""
    here = [r for r, by in found.items() if part in by]
    like = [
        r
        for r, by in found.items()
        if any(p.kind == part.kind and p.profile == part.profile for p in by)
    ]
    if here:
        yield from here
    elif like:
        yield like[0]
    elif part.kind == "GPU" or strategy == "single" or not part.profile:
        yield GPUS
    else:
        yield f"nvidia.com/mig-{part.profile.replace('+', '.')}"


def _replicas(by_part: dict[Part, list[str]]) -> tuple[int, tuple[str, ...]]:
    """(replicas of each part, UUIDs that lack one). NVIDIA's plugin gives every part of a resource
    equally many; one that is missing is an unhealthy GPU, of which it takes one replica back."""
    numbers = {
        part: {int(m.group(1)) for i in ids if (m := _REPLICA.search(i))}
        for part, ids in by_part.items()
    }
    most = max((max(ns) + 1 for ns in numbers.values() if ns), default=0)
    return most, tuple(sorted(p.uuid for p, ns in numbers.items() if most and len(ns) < most))
