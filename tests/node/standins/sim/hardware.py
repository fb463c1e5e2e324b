"""The GPUs of a simulated node as files: PCI functions, the driver's /proc and /sys entries, device
nodes.

Everything is written below one folder (``Layout.under``). On a running node parts of it are mounted
over the kernel's own places; with --root they simply are the files of a node-as-a-folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
from fnmatch import fnmatch
from pathlib import Path

# The bus ids of a real 8-GPU machine, then whatever follows.
BUSES = [
    "0000:07:00.0",
    "0000:0f:00.0",
    "0000:47:00.0",
    "0000:4e:00.0",
    "0000:87:00.0",
    "0000:90:00.0",
    "0000:b7:00.0",
    "0000:bd:00.0",
]
DECOYS = {
    # bus: vendor, device, class, driver
    "0000:00:00.0": ("0x8086", "0x09a2", "0x088000", ""),
    "0000:00:01.0": ("0x8086", "0x352a", "0x060400", "pcieport"),
    "0000:0c:00.0": ("0x15b3", "0x1021", "0x020700", "mlx5_core"),
    "0000:06:00.0": (
        "0x1a03",
        "0x2000",
        "0x030000",
        "ast",
    ),  # the BMC's VGA: a display, not NVIDIA's
    "0000:07:00.1": ("0x10de", "0x10f1", "0x040300", "snd_hda_intel"),  # NVIDIA's audio function
    "0000:c4:00.0": ("0x10de", "0x22a3", "0x068000", "nvidia-nvswitch"),
}
NAME = "NVIDIA H100 80GB HBM3"
UVM_MAJOR, CAPS_MAJOR = 235, 236
CONTROL = {
    "nvidiactl": (195, 255),
    "nvidia-modeset": (195, 254),
    "nvidia-uvm": (UVM_MAJOR, 0),
    "nvidia-uvm-tools": (UVM_MAJOR, 1),
}
CAPS = {"nvidia-caps/nvidia-cap1": (CAPS_MAJOR, 1), "nvidia-caps/nvidia-cap2": (CAPS_MAJOR, 2)}
PARAMS = """\
ResmanDebugLevel: 4294967295
RmLogonRC: 1
ModifyDeviceFiles: 1
DeviceFileUID: 0
DeviceFileGID: 0
DeviceFileMode: 438
InitializeSystemMemoryAllocations: 1
UsePageAttributeTable: 4294967295
EnableMSI: 1
EnableGpuFirmware: 18
DynamicPowerManagement: 3
ExcludedGpus: ""
"""


def make_gpus(count: int) -> list[dict]:
    """UUIDs as in the captured states, so that logs and checkpoints look alike."""
    gpus = []
    for i in range(count):
        bus = BUSES[i] if i < len(BUSES) else f"0000:{0xC8 + i - len(BUSES):02x}:00.0"
        uuid = f"GPU-be4c{i:04x}-fa4e-4e11-9000-{i:012x}"
        gpus.append(
            {
                "index": i,
                "bus": bus,
                "uuid": uuid,
                "minor": i,
                "serial": f"165042300{i:04d}",
                "name": NAME,
                "driver": "nvidia",
            }
        )
    return gpus


def rewrite(path: Path, text: str) -> None:
    """In place and in one write: the file may be mounted somewhere, so its inode has to stay."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("r+" if path.exists() else "w") as file:
        file.write(text)
        file.truncate()


def relink(path: Path, target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    if target:
        path.symlink_to(target)


class Layout:
    """``under``: where the simulated trees are written; ``root``: where /dev and /run are."""

    def __init__(self, root: Path, under: Path) -> None:
        self.root, self.under = root, under
        self.state_file = root / "run/simgpu/hardware.json"
        self.state: dict = {
            "gpus": [],
            "driver_version": "550.54.15",
            "loaded": False,
            "real_devices": "",
            "real_modules": "",
        }
        if self.state_file.exists():
            self.state = json.loads(self.state_file.read_text())

    def save(self) -> None:
        self.state_file.parent.mkdir(parents=True, exist_ok=True)
        new = self.state_file.with_suffix(".new")
        new.write_text(json.dumps(self.state, indent=1))
        os.replace(new, self.state_file)

    @property
    def gpus(self) -> list[dict]:
        return self.state["gpus"]

    # /sys

    def write_pci(self) -> None:
        devices, drivers = self.under / "sys/bus/pci/devices", self.under / "sys/bus/pci/drivers"
        present = {
            g["bus"]: ("0x10de", "0x2330", "0x030200", self.driver_of(g))
            for g in self.gpus
            if not g.get("gone")
        }
        present.update(DECOYS)
        devices.mkdir(parents=True, exist_ok=True)
        for old in devices.iterdir():
            if old.name not in present:
                shutil.rmtree(old)
        for bus, (vendor, device, klass, driver) in present.items():
            folder = devices / bus
            folder.mkdir(exist_ok=True)
            values = {
                "vendor": vendor,
                "device": device,
                "class": klass,
                "driver_override": "(null)",
                "enable": "1",
                "numa_node": "0",
            }
            values["uevent"] = (
                f"PCI_CLASS={klass[2:].upper()}\nPCI_ID={vendor[2:].upper()}:{device[2:].upper()}\nPCI_SLOT_NAME={bus}"
            )
            values["uevent"] = (f"DRIVER={driver}\n" if driver else "") + values["uevent"]
            for name, value in values.items():
                rewrite(folder / name, value + "\n")
            relink(folder / "driver", f"../../../../bus/pci/drivers/{driver}" if driver else "")
            relink(folder / "subsystem", "../../../../bus/pci")
        bound = {
            driver: [b for b, p in present.items() if p[3] == driver]
            for driver in {p[3] for p in present.values()}
            if driver
        }
        if not self.state["loaded"]:
            bound.pop("nvidia", None)
        self._write_drivers(drivers, bound)

    @staticmethod
    def _write_drivers(drivers: Path, bound: dict[str, list[str]]) -> None:
        drivers.mkdir(parents=True, exist_ok=True)
        for old in drivers.iterdir():
            if old.name not in bound:
                shutil.rmtree(old)
        for driver, buses in bound.items():
            (drivers / driver).mkdir(exist_ok=True)
            for old in (drivers / driver).iterdir():
                if old.name not in buses:
                    old.unlink()
            for bus in buses:
                relink(drivers / driver / bus, f"../../devices/{bus}")

    def driver_of(self, gpu: dict) -> str:
        """nvidia binds only while it is loaded; another driver is none of its business."""
        driver = gpu["driver"]
        return driver if driver != "nvidia" or self.state["loaded"] else ""

    def write_module(self) -> None:
        modules = self.under / "sys/module"
        modules.mkdir(parents=True, exist_ok=True)
        for name in ("nvidia", "nvidia_uvm", "nvidia_modeset"):
            if not self.state["loaded"]:
                shutil.rmtree(modules / name, ignore_errors=True)
                continue
            rewrite(modules / name / "version", self.state["driver_version"] + "\n")
            rewrite(modules / name / "refcnt", "0\n")
            rewrite(modules / name / "taint", "OE\n")
            rewrite(modules / name / "initstate", "live\n")

    # /proc

    def write_proc(self) -> None:
        driver = self.under / "proc/driver"
        driver.mkdir(parents=True, exist_ok=True)
        characters, _, blocks = self.state["real_devices"].partition("\nBlock devices:")
        lines = characters.rstrip().splitlines() or ["Character devices:", "  1 mem"]
        modules = self.state["real_modules"]
        if self.state["loaded"]:
            majors = {
                195: ["nvidia", "nvidia-modeset", "nvidiactl"],
                UVM_MAJOR: ["nvidia-uvm"],
                CAPS_MAJOR: ["nvidia-caps"],
            }
            lines += [f"{major:3d} {name}" for major, names in majors.items() for name in names]
            own = (
                "nvidia_uvm 4644864 0 -",
                "nvidia_modeset 1343488 0 -",
                "nvidia 53985280 3 nvidia_uvm,nvidia_modeset,",
            )
            modules = "".join(f"{line} Live 0x0000000000000000 (POE)\n" for line in own) + modules
            self._write_driver(driver / "nvidia")
        else:
            # Moved away first: a reader sees a whole driver or none.
            if (driver / "nvidia").exists():
                os.replace(driver / "nvidia", self.under / "gone")
            shutil.rmtree(self.under / "gone", ignore_errors=True)
        rewrite(
            self.under / "proc/devices",
            "\n".join(lines) + "\n\nBlock devices:" + (blocks or "\n259 blkext\n"),
        )
        rewrite(self.under / "proc/modules", modules)

    def _write_driver(self, target: Path) -> None:
        version = self.state["driver_version"]
        new = self.under / "new"
        shutil.rmtree(new, ignore_errors=True)
        for gpu in self.gpus:
            if gpu["driver"] != "nvidia" or gpu.get("gone"):
                continue
            fields = {
                "Model": gpu["name"],
                "IRQ": 16 + gpu["index"],
                "GPU UUID": gpu["uuid"],
                "Video BIOS": "96.00.5e.00.01",
                "Bus Type": "PCIe",
                "DMA Size": "52 bits",
                "DMA Mask": "0xfffffffffffff",
                "Bus Location": gpu["bus"],
                "Device Minor": gpu["minor"],
                "GPU Firmware": version,
                "GPU Excluded": "No",
            }
            rewrite(
                new / "gpus" / gpu["bus"] / "information",
                "".join(f"{f'{k}:':6s} \t{v}\n" for k, v in fields.items()),
            )
        rewrite(new / "params", PARAMS)
        banner = (
            f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Tue Mar  5 "
            "22:23:56 UTC 2024\n"
        )
        rewrite(
            new / "version",
            banner + "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14+deb12u1) \n",
        )
        if target.exists():
            os.replace(target, self.under / "gone")
        os.replace(new, target)
        shutil.rmtree(self.under / "gone", ignore_errors=True)

    # /dev

    def known_nodes(self) -> dict[str, tuple[int, int]]:
        own = {
            f"nvidia{g['minor']}": (195, g["minor"]) for g in self.gpus if g["driver"] == "nvidia"
        }
        return {**CONTROL, **own, **CAPS}

    def chosen_nodes(self, patterns: list[str]) -> dict[str, tuple[int, int]]:
        """All, or those whose name fits one of the patterns (``nvidia0``, ``nvidia-uvm*``)."""
        known = self.known_nodes()
        return {
            n: v
            for n, v in known.items()
            if not patterns or any(fnmatch(n, one) for one in patterns)
        }

    def make_nodes(self, patterns: list[str], has_links: bool = True) -> None:
        for name, (major, minor) in self.chosen_nodes(patterns).items():
            make_node(self.root / "dev", name, major, minor, has_links)

    def remove_nodes(self, patterns: list[str], only_links: bool = False) -> None:
        for name, (major, minor) in self.chosen_nodes(patterns).items():
            with contextlib.suppress(FileNotFoundError):
                (self.root / f"dev/char/{major}:{minor}").unlink()
            if not only_links:
                with contextlib.suppress(FileNotFoundError):
                    (self.root / "dev" / name).unlink()


def make_node(dev: Path, name: str, major: int, minor: int, has_link: bool = True) -> None:
    """The device node and its link in ``char/``; where mknod is not allowed, a plain file."""
    path, link = dev / name, dev / f"char/{major}:{minor}"
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        try:
            os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(major, minor))
        except PermissionError:
            path.touch()
        path.chmod(0o666)
    if has_link and not link.is_symlink():
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(f"../{name}")
