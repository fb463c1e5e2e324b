"""Link 1: which GPUs does this host have, and which of them are for containers?"""

from __future__ import annotations

from ...model.condition import Condition, Link
from ...model.finding import Finding, Heals, Scope, Verdict
from ...model.reading import Refusal, Seen
from ...model.reason import Reason
from ...model.settings import Settings
from ...model.snapshot import PciFunction, Snapshot
from ..common import parse
from . import kernel_events as kernel_log
from . import nvml_codes
from .inventory import GpuInventory
from .tegra import TEGRA, is_tegra

NVIDIA = "nvidia"
WINDOW = (
    "give it a memory window: Above 4G Decoding in the firmware's setup; of a guest "
    "its 64-bit MMIO size"
)


def expected_number(settings: Settings) -> int | None:
    """The configured number of GPUs, where one is configured."""
    expected = settings.expected_gpus
    return int(expected[0]) if len(expected) == 1 and expected[0].isdigit() else None


def classify_gpus(snapshot: Snapshot, settings: Settings) -> GpuInventory:
    on_soc = is_tegra(snapshot.hardware)  # asked only where PCI shows no GPU
    if isinstance(snapshot.hardware.pci, Refusal) and not (
        on_soc and snapshot.hardware.pci.is_missing
    ):
        if snapshot.hardware.pci.is_missing and not settings.expected_gpus:
            return GpuInventory(Scope.NONE, "this host has no PCI bus")
        return GpuInventory(
            Scope.UNKNOWN, f"the PCI bus could not be read ({snapshot.hardware.pci})"
        )
    if on_soc:
        return GpuInventory(*_scope(snapshot, settings, 1, []), (TEGRA,))
    bound, unbound, elsewhere = _by_driver(snapshot.hardware.pci.value_or(()), settings)
    if snapshot.hardware.is_container:
        given = _given_to_this_container(snapshot, bound)
        if bound and not given and not settings.expected_gpus:
            return GpuInventory(
                Scope.NONE, f"none of the host's {len(bound)} GPUs was given to this container node"
            )
        bound, unbound = given, []
    scope, because = _scope(snapshot, settings, len(bound) + len(unbound), elsewhere)
    return GpuInventory(
        scope, because, tuple(sorted(bound)), tuple(sorted(unbound)), tuple(sorted(elsewhere))
    )


def _by_driver(
    functions: tuple[PciFunction, ...], settings: Settings
) -> tuple[list[str], list[str], list[tuple[str, str]]]:
    """Bus ids of GPUs: bound to nvidia, without a driver, and elsewhere with why."""
    excluded = {parse.bus_id(b) or b for b in settings.exclude_gpus}
    bound: list[str] = []
    unbound: list[str] = []
    elsewhere: list[tuple[str, str]] = []
    for gpu in functions:
        if not gpu.is_gpu:
            continue
        why = "excluded by ExcludeGPUs=" if gpu.bus_id in excluded else _given_to(gpu)
        if why:
            elsewhere.append((gpu.bus_id, why))
        elif gpu.driver == NVIDIA:
            bound.append(gpu.bus_id)
        else:
            unbound.append(gpu.bus_id)
    return bound, unbound, elsewhere


def _given_to(gpu: PciFunction) -> str:
    """Who has this GPU, "" where it is nvidia's or nobody's."""
    if gpu.driver and gpu.driver != NVIDIA:
        return gpu.driver
    if not gpu.driver and gpu.driver_override and gpu.driver_override != NVIDIA:
        return f"{gpu.driver_override} (driver_override)"
    return ""


def _given_to_this_container(snapshot: Snapshot, bound: list[str]) -> list[str]:
    """A container node (kind, nvkind) sees the host's whole PCI bus, and was given only some of
    it."""
    if not isinstance(snapshot.hardware.proc_gpus, Seen) or not isinstance(
        snapshot.hardware.nodes, Seen
    ):
        return bound
    has_gpu_node = any(
        n.path.removeprefix("/dev/nvidia").isdigit() for n in snapshot.hardware.nodes.value
    )
    return [b for b in bound if b in snapshot.hardware.proc_gpus.value] if has_gpu_node else []


def _scope(
    snapshot: Snapshot, settings: Settings, candidates: int, elsewhere: list[tuple[str, str]]
) -> tuple[Scope, str]:
    if expected_number(settings) == 0:
        return Scope.NONE, "the owner expects no GPU here (ExpectedGPUs=0)"
    if candidates == 0 and not settings.expected_gpus:
        if elsewhere:
            users = ", ".join(f"{bus_id} {why}" for bus_id, why in elsewhere)
            return Scope.NONE, f"no NVIDIA GPU for containers: {users}"
        return Scope.NONE, "no NVIDIA GPU on the PCI bus"
    if isinstance(snapshot.hardware.driver_version, Seen) or isinstance(
        snapshot.hardware.module_state, Seen
    ):
        return Scope.GPUS, "the nvidia module is loaded"
    if isinstance(snapshot.hardware.nvgpu, Seen):
        return Scope.GPUS, "nvgpu is loaded"
    if not snapshot.hardware.driver_version.is_missing:
        return (
            Scope.UNKNOWN,
            f"/proc/driver/nvidia/version could not be read ({snapshot.hardware.driver_version})",
        )
    if isinstance(snapshot.hardware.driver_building, Seen):
        return Scope.GPUS, f"dkms is building {snapshot.hardware.driver_building.value}"
    if isinstance(snapshot.hardware.module_installed, Seen):
        return (
            Scope.GPUS,
            f"{snapshot.hardware.module_installed.value} is installed and not loaded yet",
        )
    if snapshot.hardware.module_installed.is_missing:
        dkms = snapshot.hardware.driver_building.detail
        return Scope.LATE_DRIVER, (
            f"no nvidia driver on the host yet ({snapshot.hardware.module_installed.detail})"
            + (f"; {dkms}" if dkms.startswith("dkms has") else "")
        )
    return (
        Scope.UNKNOWN,
        f"whether a driver is installed could not be read ({snapshot.hardware.module_installed})",
    )


def findings(snapshot: Snapshot, settings: Settings, gpus: GpuInventory) -> tuple[Finding, ...]:
    if gpus.bound == (TEGRA,):
        return (
            Finding(
                Link.PCI,
                Condition.GPUS_ON_PCI,
                Verdict.HOLDS,
                "the GPU is a part of the SoC (Tegra)",
            ),
        )
    if isinstance(snapshot.hardware.pci, Refusal) and gpus.scope is not Scope.NONE:
        return (
            Finding(
                Link.PCI,
                Condition.GPUS_ON_PCI,
                Verdict.UNKNOWN,
                gpus.because,
                Reason.PCI_UNREADABLE,
                missing=("/sys/bus/pci/devices",),
                next_step="lspci -d 10de:",
            ),
        )
    found = [_on_pci(settings, gpus)]
    if gpus.unbound and isinstance(snapshot.hardware.driver_version, Seen):
        found.append(_unbound(snapshot, settings, gpus))
    if gpus.on_display:
        names = " and ".join(sorted({driver for _, driver in gpus.on_display}))
        having = tuple(bus_id for bus_id, _ in gpus.on_display)
        found.append(
            Finding(
                Link.PCI,
                Condition.GPUS_BOUND,
                Verdict.FAILS,
                f"bound to {names}: {', '.join(having)}",
                Reason.NOUVEAU_BOUND,
                missing=having,
                heals=Heals.CONFIGURATION,
                next_step=f"blacklist {names} and rebuild the initramfs, or [Gate] ExcludeGPUs=",
            )
        )
    return tuple(found)


def _unbound(snapshot: Snapshot, settings: Settings, gpus: GpuInventory) -> Finding:
    foreign = kernel_log.unsupported(snapshot, gpus.unbound)
    dead = None if foreign else kernel_log.dead(snapshot, gpus.unbound)
    region = None if foreign or dead else kernel_log.no_region(snapshot, gpus.unbound)
    step = (
        "install a driver that supports this GPU (its line names another branch, or the open "
        "modules)"
        if foreign
        else nvml_codes.next_step(nvml_codes.GPU_IS_LOST)
        if dead
        else WINDOW
        if region
        else "dmesg | grep NVRM"
    )
    cause = foreign or dead or region
    return Finding(
        Link.PCI,
        Condition.GPUS_BOUND,
        Verdict.FAILS,
        f"{len(gpus.unbound)} of {len(gpus.candidates)} GPUs bound to no driver: "
        f"{', '.join(gpus.unbound)}" + kernel_log.cited(snapshot, cause),
        Reason.GPU_UNSUPPORTED if foreign else Reason.GPU_UNBOUND,
        missing=gpus.unbound,
        heals=Heals.NEVER if cause else Heals.SOON,
        blocks=(expected_number(settings) or len(gpus.candidates)) > len(gpus.bound),
        next_step=f"{step}; if that GPU is not for containers: [Gate] ExcludeGPUs=",
    )


def _on_pci(settings: Settings, gpus: GpuInventory) -> Finding:
    seen = len(gpus.candidates)
    apart = "".join(f"; {bus_id}: {why}" for bus_id, why in gpus.elsewhere)
    number = expected_number(settings)
    wanted = number if number is not None else len(settings.expected_gpus)
    if gpus.scope is Scope.NONE:
        return Finding(
            Link.PCI,
            Condition.GPUS_ON_PCI,
            Verdict.HOLDS,
            gpus.because,
            Reason.NO_GPU_FOR_CONTAINERS,
        )
    if seen < wanted:
        return Finding(
            Link.PCI,
            Condition.GPUS_ON_PCI,
            Verdict.FAILS,
            f"{seen} of {wanted} expected GPUs on the PCI bus{apart}",
            Reason.PCI_SHORT,
            missing=(f"{wanted - seen} GPUs",),
            heals=Heals.SOON,
            next_step="lspci -d 10de: ; a GPU that is not on the bus wants a power cycle or a "
            "technician",
        )
    return Finding(
        Link.PCI, Condition.GPUS_ON_PCI, Verdict.HOLDS, f"{seen} GPUs on the PCI bus{apart}"
    )
