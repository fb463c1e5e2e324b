"""What a GPU says of itself beyond its identity. None, or "", is "not said": the GPU, its driver or
nvidia-ml-py does not know the question. Values and names: nvidia-ml-py 13.615.71, pynvml.py."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MigDevice:
    """One MIG device: a compute instance of a GPU, that a container can be given."""

    uuid: str
    "MIG-…; of drivers before 470 MIG-GPU-…/GI/CI"
    profile: str = ""
    "1g.10gb, 1c.3g.40gb, 1g.10gb+me"
    gpu_instance: int = -1
    compute_instance: int = -1


@dataclass(frozen=True, slots=True)
class GpuState:
    """The state of one GPU, as its last probe heard it."""

    mig: bool | None = None
    mig_pending: bool | None = None
    "what MIG mode will be after a reset"
    mig_devices: tuple[MigDevice, ...] | None = None
    "None where MIG mode is off, or they could not be listed whole"
    fabric: str = ""
    "not supported, not started, in progress, completed"
    fabric_status: int = 0
    "NVML's return code of the fabric's last attempt; 0 is well"
    persistence: bool | None = None
    remap_pending: bool | None = None
    "rows wait for a reset to be remapped"
    remap_failed: bool | None = None
    ecc: bool | None = None
    ecc_pending: bool | None = None
    "what ECC will be after a reset"
    recovery: str = ""
    """none, gpu reset, node reboot, drain p2p, drain and reset, imex domain, bus reset, system
    reboot"""
    virtualization: str = ""
    "none, passthrough, vgpu, host vgpu, host vsga"
    trouble: int = 0
    """NVML's code where a question was answered with GPU_IS_LOST (15) or RESET_REQUIRED (16); 0:
    none was"""


NOTHING_SAID = GpuState()
