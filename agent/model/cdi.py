"""How the container runtime adds GPUs to containers: CDI specs, the toolkit's mode, the runtime's
own configuration."""

from __future__ import annotations

from dataclasses import dataclass

from .reading import Reading


@dataclass(frozen=True, slots=True)
class CdiSpec:
    """One CDI spec of NVIDIA's (cncf-tags/container-device-interface, SPEC.md)."""

    kind: str
    """nvidia.com/gpu; the plugin and the GPU Operator write kinds of their own below
    nvidia.com/gpu"""
    devices: tuple[str, ...]
    """names without the kind: 0, GPU-…, MIG-…, 0:1, all"""
    versions: tuple[str, ...]
    """of the driver, from the names of its libraries: libcuda.so.535.161.07"""
    paths: tuple[str, ...]
    """on the host: device nodes, mounts, hooks"""
    numbers: tuple[tuple[str, int, int], ...] = ()
    """(device node, major, minor), where the spec fixes them"""


@dataclass(frozen=True, slots=True)
class CdiFile:
    """A file in a folder of CDI specs."""

    path: str
    spec: Reading[CdiSpec | None]
    """None: a spec of something else"""


@dataclass(frozen=True, slots=True)
class Refresh:
    """What the unit that writes the CDI spec may repair."""

    evidence: str
    """what is wrong with the specs, and with which driver: the unit is started once for it"""
    because: str
    invocation: str
    """of the unit: another one later shows that it ran"""
    is_running: bool


@dataclass(frozen=True, slots=True)
class Toolkit:
    """How this node's containers get their GPUs, as far as files show."""

    specs: Reading[tuple[CdiFile, ...]]
    """in the order of precedence, lowest first; empty where no folder of specs exists"""
    absent: Reading[tuple[str, ...]]
    """paths in the specs that do not exist"""
    mode: Reading[str]
    """of the NVIDIA container runtime: auto, legacy, cdi, jit-cdi, csv; MISSING without a
    configuration"""
    handlers: tuple[str, ...] = ()
    """files of the runtime's configuration that name a handler nvidia"""
    cdi_enabled: str = ""
    """the file of the runtime's configuration with enable_cdi = true"""
