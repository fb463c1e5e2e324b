"""Links 2 and 4: the kernel module, and the services that keep it initialised."""

from __future__ import annotations

from dataclasses import replace

from ...model.actions import Action, LoadModule
from ...model.condition import Condition, Link
from ...model.finding import Finding, Heals, Scope, Verdict
from ...model.reading import Refusal, Seen
from ...model.reason import Reason
from ...model.settings import Settings
from ...model.snapshot import Snapshot
from ..common.watched import DRIVER_UNITS, FABRIC_MANAGER, IMEX_UNIT
from . import kernel_events as kernel_log
from .inventory import GpuInventory
from .tegra import NVGPU

REBUILD = "build it for this kernel: dkms autoinstall, or the driver's package again; depmod -a"


def is_live(snapshot: Snapshot) -> bool:
    """The module is loaded and has finished loading: NVML can be asked without loading anything."""
    if not isinstance(snapshot.hardware.driver_version, Seen):
        return isinstance(snapshot.hardware.nvgpu, Seen)
    return not (
        isinstance(snapshot.hardware.module_state, Seen)
        and snapshot.hardware.module_state.value != "live"
    )


def disturbed_at(snapshot: Snapshot) -> float:
    """When a reload or restart last happened that asks for a new validation; boottime, seconds.

    Of units only the driver's own count: NVML on the host does not care for a kubelet's start, and
    whether the plugin registered with it is judged apart. Without persistence a probe more wakes
    every GPU.
    """
    instants = [0.0]
    if (
        isinstance(snapshot.boot.manager, Seen)
        and snapshot.boot.manager.value.last_reload_at is not None
    ):
        instants.append(snapshot.boot.manager.value.last_reload_at)
    if isinstance(snapshot.boot.units, Seen):
        instants += [
            u.active_since
            for u in snapshot.boot.units.value
            if u.name in DRIVER_UNITS and u.is_active and u.active_since is not None
        ]
    return max(instants)


def findings(snapshot: Snapshot, gpus: GpuInventory) -> tuple[Finding, ...]:
    if gpus.scope is Scope.NONE:
        return ()
    if isinstance(snapshot.hardware.driver_version, Seen):
        if not is_live(snapshot):
            return (
                _fails(
                    "the nvidia module is still loading (initstate is not live)",
                    Reason.DRIVER_LOADING,
                ),
            )
        return (
            Finding(
                Link.DRIVER,
                Condition.DRIVER_LOADED,
                Verdict.HOLDS,
                f"driver {snapshot.hardware.driver_version.value} (/proc/driver/nvidia/version)",
            ),
        )
    if isinstance(snapshot.hardware.nvgpu, Seen):
        return (
            Finding(Link.DRIVER, Condition.DRIVER_LOADED, Verdict.HOLDS, f"driver nvgpu ({NVGPU})"),
        )
    if not snapshot.hardware.driver_version.is_telling:
        return (
            Finding(
                Link.DRIVER,
                Condition.DRIVER_LOADED,
                Verdict.UNKNOWN,
                gpus.because,
                Reason.DRIVER_UNREADABLE,
                missing=("/proc/driver/nvidia/version",),
                next_step="cat /proc/driver/nvidia/version",
            ),
        )
    if not snapshot.hardware.driver_version.is_missing:
        return (_fails(str(snapshot.hardware.driver_version), Reason.DRIVER_UNREADABLE),)
    if isinstance(snapshot.hardware.module_state, Seen):
        return (
            _fails(
                f"the nvidia module is still loading ({snapshot.hardware.module_state.value})",
                Reason.DRIVER_LOADING,
            ),
        )
    return (_refused(snapshot, gpus) or _not_loaded(snapshot, gpus),)


def _refused(snapshot: Snapshot, gpus: GpuInventory) -> Finding | None:
    """Why the module was not loaded, as the kernel's log says it: no waiting mends that."""
    refused, built = (
        kernel_log.rejected(snapshot),
        isinstance(snapshot.hardware.driver_building, Seen),
    )
    if (
        refused
        and not built
        and (
            isinstance(snapshot.hardware.module_installed, Seen) or "nvidia" in refused.line.lower()
        )
    ):
        return replace(
            _fails(
                "the kernel refused a module for its "
                f"signature{kernel_log.cited(snapshot, refused)}",
                Reason.MODULE_REJECTED,
                "sign the nvidia module with a key that Secure Boot knows (mokutil "
                "--test-key), or switch Secure Boot "
                "off; then modprobe nvidia",
            ),
            heals=Heals.NEVER,
        )
    unfit = kernel_log.unfit(snapshot, is_uvm=False)
    if unfit and not built:
        return replace(
            _fails(
                f"the kernel refused {unfit.client}: it was built for another "
                f"kernel{kernel_log.cited(snapshot, unfit)}",
                Reason.MODULE_UNFIT,
                f"{REBUILD}; then modprobe nvidia",
            ),
            heals=Heals.NEVER,
        )
    foreign = kernel_log.unsupported(snapshot, gpus.candidates)
    if foreign:
        which = foreign.bus_id or "a GPU of this host"
        return replace(
            _fails(
                f"the driver does not support {which}{kernel_log.cited(snapshot, foreign)}",
                Reason.GPU_UNSUPPORTED,
                "install a driver that supports this GPU: another branch, or the open modules",
            ),
            heals=Heals.NEVER,
        )
    return None


def _not_loaded(snapshot: Snapshot, gpus: GpuInventory) -> Finding:
    if gpus.scope is Scope.LATE_DRIVER:
        return _fails(
            gpus.because + kernel_log.cited(snapshot, kernel_log.rejected(snapshot)),
            Reason.DRIVER_NOT_INSTALLED,
            "the GPU Operator, cloud-init or a person installs it; gpu-gate watches for it",
        )
    none_bound = kernel_log.dead(snapshot, gpus.candidates) or kernel_log.no_region(
        snapshot, gpus.candidates
    )
    return _fails(
        gpus.because + kernel_log.cited(snapshot, none_bound),
        Reason.DRIVER_NOT_LOADED,
        "modprobe nvidia; dmesg | grep -i -E 'nvidia|NVRM'",
    )


def _fails(because: str, reason: Reason, next_step: str = "dmesg | grep -i nvidia") -> Finding:
    return Finding(
        Link.DRIVER,
        Condition.DRIVER_LOADED,
        Verdict.FAILS,
        because,
        reason,
        missing=("/proc/driver/nvidia/version",),
        heals=Heals.SOON,
        next_step=next_step,
    )


def service_findings(snapshot: Snapshot, gpus: GpuInventory) -> tuple[Finding, ...]:
    """nvidia-persistenced is a hint to probe now, never a condition: some hosts run none, and its
    "active" comes before any device is open."""
    if gpus.scope is Scope.NONE:
        return ()
    if isinstance(snapshot.boot.units, Refusal):
        return (
            Finding(
                Link.FABRIC,
                Condition.PERSISTENCE_ACTIVE,
                Verdict.UNKNOWN,
                f"systemd was not read ({snapshot.boot.units})",
                Reason.SYSTEMD_UNREADABLE,
                missing=("nvidia-persistenced.service",),
                blocks=False,
                next_step="systemctl status dbus",
            ),
        )
    found = []
    for unit in snapshot.boot.units.value:
        if unit.name == "nvidia-persistenced.service":
            holds = unit.is_active
            found.append(
                Finding(
                    Link.FABRIC,
                    Condition.PERSISTENCE_ACTIVE,
                    Verdict.HOLDS if holds else Verdict.FAILS,
                    f"{unit.name} is {unit.load if unit.load != 'loaded' else unit.active}",
                    Reason.NONE if holds else Reason.PERSISTENCE_INACTIVE,
                    blocks=False,
                    next_step=""
                    if holds
                    else "without persistence every probe and pod start wakes the GPUs: "
                    "systemctl enable --now nvidia-persistenced",
                )
            )
        elif unit.name == FABRIC_MANAGER and unit.load == "loaded" and unit.active == "failed":
            found.append(
                Finding(
                    Link.FABRIC,
                    Condition.FABRIC_MANAGER_ACTIVE,
                    Verdict.FAILS,
                    f"{unit.name} has failed",
                    Reason.FABRIC_MANAGER_FAILED,
                    blocks=False,
                    next_step="journalctl -u nvidia-fabricmanager",
                )
            )
        elif unit.name == IMEX_UNIT and unit.load == "loaded" and unit.active == "failed":
            found.append(
                Finding(
                    Link.FABRIC,
                    Condition.IMEX_ACTIVE,
                    Verdict.FAILS,
                    f"{unit.name} has failed: jobs over several hosts' NVLink cannot "
                    "start; this host's own GPUs do without it",
                    Reason.IMEX_FAILED,
                    blocks=False,
                    next_step=f"journalctl -u {IMEX_UNIT}; cat /etc/nvidia-imex/nodes_config.cfg",
                )
            )
    return tuple(found)


def additive(snapshot: Snapshot, settings: Settings, gpus: GpuInventory) -> tuple[Action, ...]:
    wanted = (
        settings.load_driver == "auto"
        and gpus.scope is Scope.GPUS
        and isinstance(snapshot.hardware.driver_version, Refusal)
        and isinstance(snapshot.hardware.module_state, Refusal)
        and isinstance(snapshot.hardware.module_installed, Seen)
        and not is_live(snapshot)
    )
    return (LoadModule(),) if wanted else ()
