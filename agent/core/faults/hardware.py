"""Links 1 to 5: PCI, the driver, its device nodes, the fabric, NVML."""

from __future__ import annotations

from ...model.kernel import Tells
from ...model.reading import Refusal, Seen
from ...model.scene import ProbeEnd
from ...model.witness import Says
from ..nvml_codes import MISMATCH
from ..rules.kernel_log import dead, newest
from .known import Evidence, KnownFault, Mark, cited, when

SYSTEM_NOT_READY = 802
"""CUDA_ERROR_SYSTEM_NOT_READY (cuda.h)."""


def _vfio(evidence: Evidence) -> Mark | None:
    """Only where it leaves nothing: a GPU given away on purpose is no fault."""
    functions = evidence.scene.pci.value_or(())
    given = [f.bus_id for f in functions if f.is_gpu and f.driver == "vfio-pci"]
    if not given or evidence.diagnosis.expected:
        return None
    return Mark(True, f"bound to vfio-pci: {', '.join(given)}, and no GPU is left for containers")


def _fabric(evidence: Evidence) -> Mark | None:
    cuda, found = evidence.witness.cuda, evidence.finding("FabricPending", "FabricFailed")
    if isinstance(cuda, Seen) and cuda.value.code == SYSTEM_NOT_READY:
        return Mark(True, f"{cuda.value.call} says 802 (system not ready)" + (f"; {found.because}" if found else ""))
    if found is None or (isinstance(cuda, Seen) and cuda.value.code == 0):
        return None
    return Mark(found.reason == "FabricFailed", found.because)


def _mismatch(evidence: Evidence) -> Mark | None:
    found = evidence.finding("NvmlLibRmVersionMismatch")
    if found:
        return Mark(True, found.because)
    kernel = evidence.scene.kernel
    line = next((w for w in reversed(kernel.value) if w.tells is Tells.MISMATCH), None) \
        if isinstance(kernel, Seen) else None
    if line is None:
        return None
    return Mark(False, f"the kernel refused a client, {evidence.ago(line.at)}: {line.line[:160]}; it may have been "
                "any container's, and NVML on the host answers")


def _fell_off(evidence: Evidence) -> Mark | None:
    unbound, scene = evidence.finding("GpuUnbound"), evidence.scene
    found = unbound if unbound and dead(scene, unbound.missing) else evidence.finding("GpuFellOffBus")
    if found:
        return Mark(True, found.because)
    lost = evidence.finding("NvmlGpuIsLost", "GpuMissing")
    if lost is None:
        return None
    kernel = evidence.scene.kernel.value_or(())
    if any(w.tells is Tells.LOST and w.bus_id in lost.missing for w in kernel):
        return Mark(True, lost.because)  # which cites the line
    line = evidence.journal(Says.KERNEL)
    if line and ("fallen off the bus" in line.line or "): 79," in line.line):
        return Mark(True, f"{lost.because}; {cited(evidence, line)}")
    return Mark(False, lost.because) if lost.reason == "NvmlGpuIsLost" else None


def _init_failed(evidence: Evidence) -> Mark | None:
    missing = evidence.finding("GpuMissing", "NvmlGpuIsLost")
    kernel = evidence.scene.kernel.value_or(())
    line = next((w for w in reversed(kernel) if w.tells is Tells.INIT_FAILED), None)
    if missing is None or line is None or line.bus_id not in missing.missing:
        return None
    return Mark(True, f"{line.bus_id} is on PCI and absent from NVML; {line.line[:160]}")


def _no_firmware(evidence: Evidence) -> Mark | None:
    missing = evidence.finding("GpuMissing")
    line = newest(evidence.scene, missing.missing, Tells.FIRMWARE) if missing else None
    return Mark(True, f"{line.bus_id} is on PCI and absent from NVML; {line.line[:160]}") if line else None


def _absent(evidence: Evidence) -> Mark | None:
    """Of a GPU that nobody has bound, NVML cannot know."""
    missing, pci = evidence.finding("GpuMissing"), evidence.scene.pci
    bound = {f.bus_id for f in pci.value if f.driver == "nvidia"} if isinstance(pci, Seen) else set()
    return Mark(True, missing.because) if missing and bound.intersection(missing.missing) else None


def _hang(evidence: Evidence) -> Mark | None:
    state = evidence.scene.probe.value_or(None)
    found = evidence.finding("ProbeHung")
    if found:
        return Mark(True, found.because)
    if state and state.last and state.last.end is ProbeEnd.HUNG:
        return Mark(True, state.last.detail)
    cuda = evidence.witness.cuda
    if isinstance(cuda, Refusal) and cuda.why.value == "timed-out":
        return Mark(True, f"CUDA gave no answer: {cuda.detail}")
    return None


def _early_host(evidence: Evidence) -> Mark | None:
    found = evidence.finding("NvmlUnknown", "NvmlDriverNotLoaded", "NvmlNotReady", "NvmlUninitialized")
    return Mark(True, f"{found.because}; nothing that cannot heal by waiting was seen") if found else None


REBOOT = "systemctl reboot"
FAULTS = (
    KnownFault(
        "GpuNotOnBus", 1, "A GPU is not on the PCI bus", "aws/eks-node-monitoring-agent PR 121",
        "fewer NVIDIA GPUs on PCI than ExpectedGPUs= says", judge=when("PciShort"),
        remedy="power-cycle the machine (a warm reboot often does not do it); if it stays away, its vendor",
        do="lspci -d 10de:", is_not="a driver's fault: nothing in software puts a function on the bus"),
    KnownFault(
        "Nouveau", 1, "GPUs are bound to nouveau", "NVIDIA/gpu-operator #8",
        "a GPU whose bound driver is nouveau", judge=when("NouveauBound"),
        remedy="blacklist nouveau, rebuild the initramfs, and reboot",
        do="printf 'blacklist nouveau\\noptions nouveau modeset=0\\n' >/etc/modprobe.d/nouveau.conf && "
           "update-initramfs -u"),
    KnownFault(
        "VfioBound", 1, "Every GPU is given to virtual machines (vfio-pci)", "NVIDIA/gpu-operator #551",
        "GPUs bound to vfio-pci, and none left for containers", judge=_vfio,
        remedy="nothing, where that is meant; else take them back from vfio-pci and reboot",
        do="lspci -k -d 10de:", is_not="a lost GPU: somebody asked for this binding"),
    KnownFault(
        "NoDriver", 2, "No NVIDIA driver is installed for this kernel", "NVIDIA/gpu-operator #707",
        "no nvidia module of the running kernel, none loaded, none being built", judge=when("DriverNotInstalled"),
        remedy="whoever brings the driver here (GPU Operator, image, a person) has not; a new kernel wants a new one",
        do="dkms status; ls /lib/modules/$(uname -r)"),
    KnownFault(
        "DriverNotLoaded", 2, "The NVIDIA driver is installed and not loaded", "NVIDIA/gpu-operator #8",
        "a module file for this kernel, and no /proc/driver/nvidia/version", judge=when("DriverNotLoaded"),
        remedy="load it; where it refuses, the kernel's log says why", do="modprobe nvidia; dmesg | tail"),
    KnownFault(
        "SecureBoot", 2, "The kernel refuses the module for its signature", "NVIDIA/gpu-operator #1726, #266",
        "the kernel's line that a module was rejected, and no load since", judge=when("ModuleRejected"),
        remedy="sign the module with a key that the firmware knows, or switch Secure Boot off",
        do="mokutil --sb-state; modinfo -F signer nvidia"),
    KnownFault(
        "GpuUnsupported", 2, "The driver does not support this GPU", "siderolabs/extensions #227",
        "the kernel's line that the GPU is not supported by this driver", judge=when("GpuUnsupported"),
        remedy="another driver branch, or the open kernel modules; the line names which",
        do="dmesg | grep 'NVRM: The NVIDIA GPU'"),
    KnownFault(
        "DeviceNodesMissing", 3, "The driver is loaded, and its device nodes are not there",
        "NVIDIA/nvidia-container-toolkit cmd/nvidia-ctk/system", "a device node that GPU work needs is missing",
        judge=when("DeviceNodesMissing"), remedy="have nvidia-modprobe make them",
        do="nvidia-modprobe -c 0 -u; ls -l /dev/nvidia*"),
    KnownFault(
        "FabricNotReady", 4, "The NVSwitch fabric is not ready: nvidia-smi is content, CUDA says 802",
        "NVIDIA/gpu-operator #1043, pytorch #35710", "CUDA says 802, or NVML says that the fabric's attempt failed",
        judge=_fabric,
        consistent="NVML says not started or in progress: where NVSwitches are shared that is their rest",
        decide="ask CUDA itself", capture="gpu-gate doctor --deep",
        remedy="start the fabric manager, in the version of the driver; then it wants some seconds",
        do="systemctl restart nvidia-fabricmanager; journalctl -u nvidia-fabricmanager",
        is_not="a GPU's own fault; and on GB200 the unit is inactive while the fabric is complete"),
    KnownFault(
        "DriverLibraryMismatch", 5, "The driver was upgraded under the loaded module",
        "nvidia-ml-py, NVML_ERROR_LIB_RM_VERSION_MISMATCH", f"NVML says {MISMATCH} (LIB_RM_VERSION_MISMATCH)",
        judge=_mismatch,
        consistent="the kernel refused some client's version, while the host's NVML answers",
        decide="which container brings a library of its own", capture="dmesg | grep 'API mismatch'; gpu-gate probe",
        remedy="drain the node and reboot it; hold the driver's packages back from unattended upgrades", do=REBOOT,
        is_not="healed by waiting, or by starting the device plugin afresh"),
    KnownFault(
        "FellOffBus", 5, "A GPU has fallen off the bus (Xid 79)", "NVIDIA/k8s-device-plugin #231, leptonai/gpud #604",
        "the kernel's line (Xid 79) of a GPU that NVML does not show", judge=_fell_off,
        consistent="NVML says GPU_IS_LOST, and no such line is kept",
        decide="the kernel's line of that GPU", capture="journalctl -k | grep -E 'Xid|fallen off'",
        remedy="cordon and drain the node, then reboot it; if it comes again, replace the GPU",
        do='kubectl cordon "$(hostname)"',
        is_not="the plugin's fault: starting it afresh registers the remaining GPUs at best"),
    KnownFault(
        "GspTimeout", 5, "A GPU's own processor no longer answers its driver (Xid 119, 120)",
        "NVIDIA's Xid catalogue, 119 and 120", "Xid 119 or 120 of a GPU that NVML has not shown well since",
        judge=when("GspTimeout"), remedy="drain the node, then reset the GPU, or reboot",
        do="nvidia-smi --gpu-reset -i BUS_ID", is_not="a busy GPU; asking NVML again would hang"),
    KnownFault(
        "GspFirmwareMissing", 5, "The firmware of the GPU's own processor is not where the driver looks for it",
        "NVIDIA/gpu-operator #1278, open-gpu-kernel-modules #639",
        "the kernel's line that it found no gsp firmware for a GPU that NVML does not show", judge=_no_firmware,
        remedy="install the firmware that belongs to the loaded module (a driver container sets the folder in "
               "firmware_class), then load the module anew, or reboot",
        do="modinfo -F firmware nvidia; ls /lib/firmware/nvidia; cat /sys/module/firmware_class/parameters/path",
        is_not="a broken GPU: a power cycle changes nothing"),
    KnownFault(
        "GpuInitFailed", 5, "The driver cannot bring a GPU up (RmInitAdapter failed)",
        "NVIDIA/gpu-operator #1146, open-gpu-kernel-modules #789",
        "the kernel's line of a GPU on PCI that NVML does not show", judge=_init_failed,
        remedy="power-cycle; a GPU that fails again is its vendor's", do="dmesg | grep -E 'RmInitAdapter|Xid'",
        is_not="told by /dev: its device node is there"),
    KnownFault(
        "GpuAbsentFromNvml", 5, "A GPU is on the PCI bus, and NVML does not show it",
        "NVIDIA/gpu-operator #2511, #1309",
        "its bus id on PCI, bound to nvidia, and in no answer of NVML's", judge=_absent,
        remedy="the kernel's log may say why; where it does not, reboot the drained node",
        do="dmesg | grep -E 'NVRM|Xid'; nvidia-smi -L", is_not="helped by starting the plugin afresh"),
    KnownFault(
        "NvmlHang", 5, "NVML does not answer", "NVIDIA/go-nvml #152, NVIDIA/nvidia-docker #377",
        "a probe that outlived its deadline", judge=_hang,
        remedy="what hangs in the driver cannot be ended: drain the node and reboot it",
        do="cat /proc/PID/stack; dmesg | grep -E 'NVRM|Xid'"),
    KnownFault(
        "NvmlNotReady", 5, "NVML on the host does not answer well yet", "the founding incident",
        "NVML's error on the host itself, of those that waiting may heal", judge=_early_host,
        remedy="wait; a driver that stays so wants its log read", do="gpu-gate probe; dmesg | grep -E 'NVRM|Xid'",
        is_not="a fault of plugin or kubelet: the host itself cannot see its GPUs"),
    KnownFault(
        "GpuWantsReset", 5, "A GPU asks for a reset (rows to be remapped, ECC)", "leptonai/gpud PR 80, PR 1133",
        "NVML's own word: remapping pending, recovery action, ECC mode pending",
        judge=when("GpuWantsAttention", "NvmlResetRequired"),
        remedy="reset it when it is idle, or reboot", do="nvidia-smi -q | grep -E 'Pending|Recovery'",
        is_not="a reason to hold the node while NVML shows it: it works until then"),
)
