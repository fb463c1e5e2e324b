"""Lays the simulated trees over a running node's /sys and /proc, and takes them away again."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

MS_BIND, MS_PRIVATE, MNT_DETACH = 0x1000, 1 << 18, 2
OVER = (
    "sys/bus/pci/devices",
    "sys/bus/pci/drivers",
    "sys/module",
    "proc/driver",
    "proc/devices",
    "proc/modules",
)

_libc = ctypes.CDLL(None, use_errno=True)


def _bind(source: Path, target: Path) -> None:
    if _libc.mount(os.fsencode(source), os.fsencode(target), None, MS_BIND, None):
        raise OSError(ctypes.get_errno(), f"cannot bind {source} over {target}")


def _unmount(target: Path) -> None:
    if _libc.umount2(os.fsencode(target), MNT_DETACH):
        raise OSError(ctypes.get_errno(), f"cannot unmount {target}")


def mounted() -> list[str]:
    """Mount points, one entry for each mount."""
    with open("/proc/self/mountinfo") as file:
        return [line.split()[4].replace("\\040", " ") for line in file]


def lay(under: Path) -> None:
    """Idempotent. The kernel's real modules stay visible, as links to where /sys/module is kept
    aside."""
    real = under.parent / "real-module"
    here = mounted()
    if str(real) not in here:
        real.mkdir(exist_ok=True)
        _bind(Path("/sys/module"), real)
        # Else what is mounted over /sys/module would come to lie over this, too.
        _libc.mount(None, os.fsencode(real), None, MS_PRIVATE, None)
    for module in real.iterdir():
        link = under / "sys/module" / module.name
        if not link.exists() and not link.is_symlink():
            link.symlink_to(module)
    for name in OVER:
        target = Path("/") / name
        if str(target) not in here and target.exists():
            _bind(under / name, target)


def take_away(under: Path) -> None:
    for name in [*(f"/{n}" for n in OVER), str(under.parent / "real-module")]:
        while name in mounted():
            _unmount(Path(name))
