"""Links 1 to 5: PCI, the driver, its device nodes, the fabric, NVML."""

from __future__ import annotations

from ...model.condition import Link
from ...model.diagnostics import JournalEvent
from ...model.kernel import KernelEvent
from ...model.reading import Refusal, Seen
from ...model.reason import Reason
from ...model.snapshot import ProbeEnd
from ..common.known_fault import Evidence, KnownFault, Mark, cited, either, when
from ..common.watched import FABRIC_MANAGER
from . import fabric
from . import kernel_events as kernel_log
from .inventory import is_passthrough
from .kernel_events import dead, newest
from .nvml_codes import MISMATCH

SYSTEM_NOT_READY = 802
"""CUDA_ERROR_SYSTEM_NOT_READY (cuda.h)."""


def _vfio(evidence: Evidence) -> Mark | None:
    """Only where it leaves nothing: a GPU given away on purpose is no fault."""
    functions = evidence.snapshot.hardware.pci.value_or(())
    given = [f for f in functions if f.is_gpu and is_passthrough(f.driver)]
    if not given or evidence.diagnosis.expected:
        return None
    return Mark(
        True,
        f"bound to {' and '.join(sorted({f.driver for f in given}))}: "
        f"{', '.join(f.bus_id for f in given)}, and no GPU is left for containers",
    )


def _no_region(evidence: Evidence) -> Mark | None:
    found, pci = (
        evidence.finding(Reason.GPU_UNBOUND, Reason.DRIVER_NOT_LOADED),
        evidence.snapshot.hardware.pci.value_or(()),
    )
    line = kernel_log.no_region(
        evidence.snapshot, [f.bus_id for f in pci if f.is_gpu and not f.driver]
    )
    return Mark(True, found.because) if found and line else None


def _fabric(evidence: Evidence) -> Mark | None:
    cuda, found = (
        evidence.diagnostics.cuda,
        evidence.finding(Reason.FABRIC_PENDING, Reason.FABRIC_FAILED),
    )
    report = evidence.diagnosis.report
    may_be = fabric.may_have_one(evidence.snapshot, report.gpus if report else ())
    if isinstance(cuda, Seen) and cuda.value.code == SYSTEM_NOT_READY:
        said = f"{cuda.value.call} says 802 (system not ready)"
        return (
            Mark(True, said + (f"; {found.because}" if found else ""))
            if may_be
            else Mark(
                False,
                f"{said}, and every GPU says that it is part of no fabric: a guest whose host "
                "has the NVSwitches, "
                "or confidential computing before its ready state",
            )
        )
    if isinstance(cuda, Seen) and cuda.value.code == 0:
        return None
    manager = evidence.finding(Reason.FABRIC_MANAGER_FAILED, Reason.FABRIC_MANAGER_INACTIVE)
    if found is None:
        return Mark(False, manager.because) if manager and may_be else None
    return Mark(
        found.reason == Reason.FABRIC_FAILED,
        found.because + (f"; {manager.because}" if manager else ""),
    )


def _other_fabric_manager(evidence: Evidence) -> Mark | None:
    """It refuses to start beside another driver; one that runs now has found its own."""
    units, line = (
        evidence.snapshot.boot.units.value_or(()),
        evidence.journal(JournalEvent.FABRIC_VERSION),
    )
    runs = any(u.name == FABRIC_MANAGER and u.is_active for u in units)
    return Mark(True, cited(evidence, line)) if line and not runs else None


def _wants_reset(evidence: Evidence) -> Mark | None:
    report = evidence.diagnosis.report
    lines = kernel_log.wants_reset(evidence.snapshot, report.gpus if report else ())
    said = "; ".join(f"{w.bus_id}, {evidence.ago(w.at)}: {w.line[:160]}" for w in lines)
    return Mark(False, said) if said else None


def _no_power(evidence: Evidence) -> Mark | None:
    found = evidence.finding(Reason.NVML_INSUFFICIENT_POWER, Reason.GPU_MISSING)
    line = newest(evidence.snapshot, found.missing, KernelEvent.POWER) if found else None
    if found and line:
        return Mark(True, f"{line.bus_id} is on PCI and absent from NVML; {line.line[:160]}")
    return (
        Mark(True, found.because)
        if found and found.reason == Reason.NVML_INSUFFICIENT_POWER
        else None
    )


def _mismatch(evidence: Evidence) -> Mark | None:
    found = evidence.finding(Reason.NVML_LIB_RM_VERSION_MISMATCH)
    if found:
        return Mark(True, found.because)
    kernel = evidence.snapshot.hardware.kernel
    line = (
        next((w for w in reversed(kernel.value) if w.event is KernelEvent.MISMATCH), None)
        if isinstance(kernel, Seen)
        else None
    )
    if line is None:
        return None
    return Mark(
        False,
        f"the kernel refused a client, {evidence.ago(line.at)}: {line.line[:160]}; it may have "
        "been "
        "any container's, and NVML on the host answers",
    )


def _fell_off(evidence: Evidence) -> Mark | None:
    unbound, snapshot = evidence.finding(Reason.GPU_UNBOUND), evidence.snapshot
    found = (
        unbound
        if unbound and dead(snapshot, unbound.missing)
        else evidence.finding(Reason.GPU_FELL_OFF_BUS)
    )
    if found:
        return Mark(True, found.because)
    lost = evidence.finding(Reason.NVML_GPU_IS_LOST, Reason.GPU_MISSING)
    if lost is None:
        return None
    kernel = evidence.snapshot.hardware.kernel.value_or(())
    if any(w.event is KernelEvent.LOST and w.bus_id in lost.missing for w in kernel):
        return Mark(True, lost.because)  # which cites the line
    line = evidence.journal(JournalEvent.KERNEL)
    if line and ("fallen off the bus" in line.line or "): 79," in line.line):
        return Mark(True, f"{lost.because}; {cited(evidence, line)}")
    return Mark(False, lost.because) if lost.reason == Reason.NVML_GPU_IS_LOST else None


def _init_failed(evidence: Evidence) -> Mark | None:
    missing = evidence.finding(Reason.GPU_MISSING, Reason.NVML_GPU_IS_LOST)
    kernel = evidence.snapshot.hardware.kernel.value_or(())
    line = next((w for w in reversed(kernel) if w.event is KernelEvent.INIT_FAILED), None)
    if missing is None or line is None or line.bus_id not in missing.missing:
        return None
    return Mark(True, f"{line.bus_id} is on PCI and absent from NVML; {line.line[:160]}")


def _no_firmware(evidence: Evidence) -> Mark | None:
    missing = evidence.finding(Reason.GPU_MISSING)
    line = newest(evidence.snapshot, missing.missing, KernelEvent.FIRMWARE) if missing else None
    return (
        Mark(True, f"{line.bus_id} is on PCI and absent from NVML; {line.line[:160]}")
        if line
        else None
    )


def _absent(evidence: Evidence) -> Mark | None:
    """NVML cannot see a GPU that no driver has bound."""
    missing, pci = evidence.finding(Reason.GPU_MISSING), evidence.snapshot.hardware.pci
    bound = (
        {f.bus_id for f in pci.value if f.driver == "nvidia"} if isinstance(pci, Seen) else set()
    )
    return Mark(True, missing.because) if missing and bound.intersection(missing.missing) else None


def _hang(evidence: Evidence) -> Mark | None:
    state = evidence.snapshot.hardware.probe.value_or(None)
    found = evidence.finding(Reason.PROBE_HUNG)
    if found:
        return Mark(True, found.because)
    if state and state.last and state.last.end is ProbeEnd.HUNG:
        return Mark(True, state.last.detail)
    cuda = evidence.diagnostics.cuda
    if isinstance(cuda, Refusal) and cuda.why.value == "timed-out":
        return Mark(True, f"CUDA gave no answer: {cuda.detail}")
    return None


def _early_host(evidence: Evidence) -> Mark | None:
    found = evidence.finding(
        Reason.NVML_UNKNOWN,
        Reason.NVML_DRIVER_NOT_LOADED,
        Reason.NVML_NOT_READY,
        Reason.NVML_UNINITIALIZED,
    )
    return (
        Mark(True, f"{found.because}; nothing that cannot heal by waiting was seen")
        if found
        else None
    )


REBOOT = "systemctl reboot"
FAULTS = (
    KnownFault(
        "GpuNotOnBus",
        Link.PCI,
        "A GPU is not on the PCI bus",
        "aws/eks-node-monitoring-agent PR 121",
        "fewer NVIDIA GPUs on PCI than ExpectedGPUs= says",
        judge=when(Reason.PCI_SHORT),
        remedy="power-cycle the machine (a warm reboot often does not do it); if it stays "
        "away, its vendor",
        do="lspci -d 10de:",
        is_not="a driver's fault: nothing in software puts a function on the bus",
    ),
    KnownFault(
        "Nouveau",
        Link.PCI,
        "GPUs are bound to nouveau, or another driver of the kernel's own",
        "NVIDIA/gpu-operator #8",
        "a GPU whose bound driver is nouveau, nova_core, nvidiafb or rivafb",
        judge=when(Reason.NOUVEAU_BOUND),
        remedy="blacklist that driver, rebuild the initramfs, and reboot",
        do="printf 'blacklist nouveau\\nblacklist nova_core\\noptions nouveau modeset=0\\n' "
        ">/etc/modprobe.d/nouveau.conf && update-initramfs -u",
    ),
    KnownFault(
        "VfioBound",
        Link.PCI,
        "Every GPU is given to virtual machines (vfio-pci)",
        "NVIDIA/gpu-operator #551",
        "GPUs bound to vfio-pci, a variant of it, pciback or pci-stub, and none left for "
        "containers",
        judge=_vfio,
        remedy="nothing, where that is meant; else take them back from that driver and reboot",
        do="lspci -k -d 10de:",
        is_not="a lost GPU: somebody asked for this binding",
    ),
    KnownFault(
        "GpuNoRegion",
        Link.PCI,
        "The machine's firmware gave a GPU no memory window (BAR)",
        "NVIDIA/gpu-operator #492",
        "the kernel's line that a region assigned to a GPU is invalid, and no driver has bound it",
        judge=_no_region,
        remedy="in the firmware's setup: Above 4G Decoding (and Resizable BAR); of a virtual "
        "machine: a larger "
        "64-bit MMIO window; kernel argument pci=realloc where neither can be had",
        do="lspci -vv -d 10de: | grep -E '^[0-9a-f]|Region'; dmesg | grep -E 'BAR|NVRM'",
        is_not="a broken GPU, nor a driver's fault: another driver version changes nothing",
    ),
    KnownFault(
        "NoDriver",
        Link.DRIVER,
        "No NVIDIA driver is installed for this kernel",
        "NVIDIA/gpu-operator #707",
        "no nvidia module of the running kernel, none loaded, none being built",
        judge=when(Reason.DRIVER_NOT_INSTALLED),
        remedy="whoever brings the driver here (GPU Operator, image, a person) has not; a new "
        "kernel wants a new one "
        "(dkms autoinstall)",
        do="dkms status; ls /lib/modules/$(uname -r)",
    ),
    KnownFault(
        "DriverNotLoaded",
        Link.DRIVER,
        "The NVIDIA driver is installed and not loaded",
        "NVIDIA/gpu-operator #8",
        "a module file for this kernel, and no /proc/driver/nvidia/version",
        judge=when(Reason.DRIVER_NOT_LOADED),
        remedy="load it; where it refuses, the kernel's log says why",
        do="modprobe nvidia; dmesg | tail",
    ),
    KnownFault(
        "SecureBoot",
        Link.DRIVER,
        "The kernel refuses the module for its signature",
        "NVIDIA/gpu-operator #1726, #266",
        "the kernel's line that a module was rejected, and no load since",
        judge=when(Reason.MODULE_REJECTED),
        remedy="sign the module with a key that the firmware knows, or switch Secure Boot off",
        do="mokutil --sb-state; modinfo -F signer nvidia",
    ),
    KnownFault(
        "ModuleUnfit",
        Link.DRIVER,
        "The kernel refuses a module that was built for another kernel",
        "negativo17/nvidia-driver #97, AOSC-Dev/aosc-os-abbs #2594",
        "the kernel's line on nvidia's or nvidia-uvm's version magic or symbols, and no load since",
        judge=when(Reason.MODULE_UNFIT, Reason.UVM_UNFIT),
        remedy="build the driver's modules for the running kernel, all of one version, then "
        "load them",
        do="dkms status; modinfo -F vermagic nvidia; modinfo -F vermagic nvidia-uvm; uname -r",
        is_not="a matter of signatures or Secure Boot",
    ),
    KnownFault(
        "GpuUnsupported",
        Link.DRIVER,
        "The driver does not support this GPU",
        "siderolabs/extensions #227",
        "the kernel's line that the GPU is not supported by this driver",
        judge=when(Reason.GPU_UNSUPPORTED),
        remedy="another driver branch, or the open kernel modules; the line names which",
        do="dmesg | grep 'NVRM: The NVIDIA GPU'",
    ),
    KnownFault(
        "DeviceNodesMissing",
        Link.DEVICE_NODES,
        "The driver is loaded, and its device nodes are not there",
        "NVIDIA/nvidia-container-toolkit cmd/nvidia-ctk/system",
        "a device node that GPU work needs is missing",
        judge=when(Reason.DEVICE_NODES_MISSING),
        remedy="have nvidia-modprobe make them",
        do="nvidia-modprobe -c 0 -u; ls -l /dev/nvidia*",
    ),
    KnownFault(
        "FabricManagerMismatch",
        Link.FABRIC,
        "The fabric manager is of another version than the driver, and does not start",
        "NVIDIA/gpu-operator #544, siderolabs/pkgs #720",
        "its line that its version does not match the driver's, and its unit does not run",
        judge=_other_fabric_manager,
        remedy="install the fabric manager of exactly the loaded driver's version, start it, "
        "and hold both packages "
        "back from unattended upgrades",
        do="cat /proc/driver/nvidia/version; nv-fabricmanager --version; systemctl restart "
        "nvidia-fabricmanager",
        is_not="cured by restarting the same fabric manager",
    ),
    KnownFault(
        "FabricNotReady",
        Link.FABRIC,
        "The NVSwitch fabric is not ready: nvidia-smi is content, CUDA says 802",
        "NVIDIA/gpu-operator #1043, pytorch #35710",
        "CUDA says 802, or NVML says that the fabric's attempt failed",
        judge=_fabric,
        consistent="NVML says not started or in progress (where NVSwitches are shared that is "
        "their rest), the "
        "fabric manager does not run beside NVSwitches, or CUDA says 802 and no GPU is part of "
        "a fabric",
        decide="CUDA's own word; of a guest its host's fabric manager; in confidential "
        "computing the ready state",
        capture="gpu-gate doctor --deep; nvidia-smi conf-compute -grs",
        remedy="start the fabric manager, in the version of the driver; then it wants some seconds",
        do="systemctl restart nvidia-fabricmanager; journalctl -u nvidia-fabricmanager",
        is_not="a GPU's own fault; and on GB200 the unit is inactive while the fabric is complete",
    ),
    KnownFault(
        "DriverLibraryMismatch",
        Link.NVML,
        "The driver was upgraded under the loaded module",
        "nvidia-ml-py, NVML_ERROR_LIB_RM_VERSION_MISMATCH",
        f"NVML says {MISMATCH} (LIB_RM_VERSION_MISMATCH)",
        judge=_mismatch,
        consistent="the kernel refused some client's version, while the host's NVML answers",
        decide="which container brings a library of its own",
        capture="dmesg | grep 'API mismatch'; gpu-gate probe",
        remedy="drain the node and reboot it; hold the driver's packages back from unattended "
        "upgrades",
        do=REBOOT,
        is_not="healed by waiting, or by starting the device plugin afresh",
    ),
    KnownFault(
        "FellOffBus",
        Link.NVML,
        "A GPU has fallen off the bus (Xid 79)",
        "NVIDIA/k8s-device-plugin #231, leptonai/gpud #604",
        "the kernel's line (Xid 79) of a GPU that NVML does not show",
        judge=_fell_off,
        consistent="NVML says GPU_IS_LOST, and no such line is kept",
        decide="the kernel's line of that GPU",
        capture="journalctl -k | grep -E 'Xid|fallen off'",
        remedy="cordon and drain the node, then reboot it; if it comes again, replace the GPU",
        do='kubectl cordon "$(hostname)"',
        is_not="the plugin's fault: starting it afresh registers the remaining GPUs at best",
    ),
    KnownFault(
        "GspTimeout",
        Link.NVML,
        "A GPU's own processor no longer answers its driver (Xid 119, 120)",
        "NVIDIA's Xid catalogue, 119 and 120",
        "Xid 119 or 120 of a GPU that NVML has not shown well since",
        judge=when(Reason.GSP_TIMEOUT),
        remedy="drain the node, then reset the GPU, or reboot",
        do="nvidia-smi --gpu-reset -i BUS_ID",
        is_not="a busy GPU; asking NVML again would hang",
    ),
    KnownFault(
        "GspFirmwareMissing",
        Link.NVML,
        "The firmware of the GPU's own processor is not where the driver looks for it",
        "NVIDIA/gpu-operator #1278, open-gpu-kernel-modules #639",
        "the kernel's line that it found no gsp firmware for a GPU that NVML does not show",
        judge=_no_firmware,
        remedy="install the firmware that belongs to the loaded module (a driver container "
        "sets the folder in "
        "firmware_class), then load the module anew, or reboot",
        do="modinfo -F firmware nvidia; ls /lib/firmware/nvidia; cat "
        "/sys/module/firmware_class/parameters/path",
        is_not="a broken GPU: a power cycle changes nothing",
    ),
    KnownFault(
        "GpuLacksPower",
        Link.NVML,
        "A GPU's power cables are not connected",
        "open-gpu-kernel-modules, osinit.c",
        "the kernel's line of a GPU that NVML does not show, or NVML's INSUFFICIENT_POWER",
        judge=_no_power,
        remedy="power the machine off and connect the GPU's own power cables; then the "
        "chassis' power budget",
        do="dmesg | grep 'power cables'",
        is_not="cured by a reboot, a reset or another driver",
    ),
    KnownFault(
        "GpuInitFailed",
        Link.NVML,
        "The driver cannot bring a GPU up (RmInitAdapter failed, Xid 143)",
        "NVIDIA/gpu-operator #1146, open-gpu-kernel-modules #789",
        "the kernel's line of a GPU on PCI that NVML does not show",
        judge=_init_failed,
        remedy="power-cycle; a GPU that fails again is its vendor's",
        do="dmesg | grep -E 'RmInitAdapter|Xid'",
        is_not="told by /dev: its device node is there",
    ),
    KnownFault(
        "GpuAbsentFromNvml",
        Link.NVML,
        "A GPU is on the PCI bus, and NVML does not show it",
        "NVIDIA/gpu-operator #2511, #1309",
        "its bus id on PCI, bound to nvidia, and in no answer of NVML's",
        judge=_absent,
        remedy="the kernel's log may say why, and somebody may have hidden it (nvidia-smi "
        "drain); else reboot the "
        "drained node",
        do="dmesg | grep -E 'NVRM|Xid'; nvidia-smi -L; nvidia-smi drain -q",
        is_not="helped by starting the plugin afresh",
    ),
    KnownFault(
        "NvmlHang",
        Link.NVML,
        "NVML does not answer",
        "NVIDIA/go-nvml #152, NVIDIA/nvidia-docker #377",
        "a probe that outlived its deadline",
        judge=_hang,
        remedy="what hangs in the driver cannot be ended: drain the node and reboot it",
        do="cat /proc/PID/stack; dmesg | grep -E 'NVRM|Xid'",
    ),
    KnownFault(
        "NvmlNotReady",
        Link.NVML,
        "NVML on the host does not answer well yet",
        "the founding incident",
        "NVML's error on the host itself, of those that waiting may heal",
        judge=_early_host,
        remedy="wait; a driver that stays so wants its log read",
        do="gpu-gate probe; dmesg | grep -E 'NVRM|Xid'",
        is_not="a fault of plugin or kubelet: the host itself cannot see its GPUs",
    ),
    KnownFault(
        "GpuWantsReset",
        Link.NVML,
        "A GPU asks for a reset (rows to be remapped, ECC, an Xid)",
        "leptonai/gpud PR 80, PR 1133; NVIDIA's Xid catalogue",
        "NVML's own word: remapping pending, recovery action, ECC mode pending",
        judge=either((when(Reason.GPU_WANTS_ATTENTION, Reason.NVML_RESET_REQUIRED), _wants_reset)),
        consistent="an Xid after which it is to be reset (48, 62, 64, 95, 140, …), of a driver "
        "that does not tell by "
        "NVML what it wants",
        decide="whether it was reset since",
        capture="nvidia-smi -q | grep -E 'GPU 0|Recovery|Remap'; journalctl -k",
        remedy="reset it when it is idle, or reboot; where a row could not be remapped: its vendor",
        do="nvidia-smi -q | grep -E 'Pending|Recovery'",
        is_not="a reason to hold the node while NVML shows it; the plugin takes such a GPU out "
        "of what it offers",
    ),
)
