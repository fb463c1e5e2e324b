"""The state of a GPU beyond its identity. None or an empty string means unknown: the GPU, its
driver or nvidia-ml-py does not support the question. Values and names: nvidia-ml-py 13.615.71,
pynvml.py."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MigDevice:
    """One MIG device: a compute instance of a GPU, which a container can use."""

    uuid: str
    """MIG-…; with drivers before 470 MIG-GPU-…/GI/CI"""
    profile: str = ""
    """1g.10gb, 1c.3g.40gb, 1g.10gb+me"""
    gpu_instance: int = -1
    compute_instance: int = -1


@dataclass(frozen=True, slots=True)
class GpuState:
    """The state of one GPU in the last probe."""

    mig: bool | None = None
    mig_pending: bool | None = None
    """the MIG mode after the next reset"""
    mig_devices: tuple[MigDevice, ...] | None = None
    """None where MIG mode is off, or where the list is incomplete"""
    fabric: str = ""
    """not supported, not started, in progress, completed"""
    fabric_status: int = 0
    """NVML's return code of the fabric's last attempt; 0 is success"""
    persistence: bool | None = None
    remap_pending: bool | None = None
    """rows will be remapped at the next reset"""
    remap_failed: bool | None = None
    ecc: bool | None = None
    ecc_pending: bool | None = None
    """the ECC mode after the next reset"""
    recovery: str = ""
    """none, gpu reset, node reboot, drain p2p, drain and reset, imex domain, bus reset, system
    reboot"""
    virtualization: str = ""
    """none, passthrough, vgpu, host vgpu, host vsga"""
    trouble: int = 0
    """NVML's code where a call returned GPU_IS_LOST (15) or RESET_REQUIRED (16); otherwise 0"""


NOTHING_SAID = GpuState()
