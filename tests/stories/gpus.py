"""The hardware, the driver and NVML of a simulated node, as the kernel shows them in files."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from agent.core.common.paths import SOC_FAMILY
from agent.core.gpu.tegra import NVGPU

from .disk import Disk

PCI = "/sys/bus/pci/devices"
PROC = "/proc/driver/nvidia"
VERSION = "550.54.15"
UVM_MAJOR = 508
MODULES_DEP = "/lib/modules/6.8.0-gpu/modules.dep"
MODULE = "updates/dkms/nvidia.ko.zst"


@dataclass
class Card:
    """A GPU."""

    number: int
    bus_id: str
    uuid: str
    minor: int
    driver: str = "nvidia"
    on_bus: bool = True
    in_nvml: bool = True
    fabric: str = ""
    migs: dict[str, str] = field(default_factory=dict)
    "its MIG devices, UUID to profile; MIG mode is off where there is none"
    cuts: int = 0
    "how often they were made"
    error: int = 0
    "what NVML says when it is asked for this GPU; 0: no error"

    def cut(self, profiles: list[str]) -> None:
        """Make MIG devices, never those of before."""
        self.cuts += 1
        self.migs = {
            f"MIG-{self.number:04x}{self.cuts:04x}-bbbb-5bbb-9bbb-{n:012x}": p
            for n, p in enumerate(profiles)
        }

    @property
    def node(self) -> str:
        return f"/dev/nvidia{self.minor}"


class Hardware:
    """Cards, kernel module, device nodes and NVML. Changes show on the disk; nothing here sends a
    signal."""

    def __init__(self, disk: Disk, number: int) -> None:
        self.disk = disk
        self.cards = [
            Card(i, f"0000:{0x07 + 8 * i:02x}:00.0", f"GPU-{i:08x}-aaaa-bbbb-cccc-dddddddddddd", i)
            for i in range(number)
        ]
        self.given: set[str] | None = None
        "bus ids that a container node was given; None: this is no container"
        self.order = list(range(number))
        "in which NVML enumerates"
        self.module = ""
        '"", coming, live'
        self.on_soc = False
        "a Tegra's one GPU: no function on PCI, and no NVML"
        self.installed = True
        self.uvm = False
        self.nvml_error = 0
        self.junk = False
        self.version = VERSION
        disk.write("/proc/sys/kernel/osrelease", "6.8.0-gpu\n")
        # What else sits on such a bus: a bridge, the sound of a GPU, an NVSwitch. None of them is a
        # GPU.
        self._function("0000:00:1f.0", 0x8086, 0x060100, "")
        if number:
            self._function("0000:07:00.1", 0x10DE, 0x040300, "snd_hda_intel")
            self._function("0000:05:00.0", 0x10DE, 0x068000, "nvidia-nvswitch")
        self.show()

    def be_tegra(self) -> None:
        self.on_soc = True
        self.disk.write(SOC_FAMILY, "Tegra\n")
        self.disk.folder(NVGPU)

    def card(self, number: int) -> Card:
        return self.cards[number]

    def show(self) -> None:
        """Write what the kernel would show now."""
        for card in self.cards:
            self.disk.remove(f"{PCI}/{card.bus_id}")
            if card.on_bus:
                self._function(card.bus_id, 0x10DE, 0x030200, self.bound(card))
                if card.driver == "vfio-pci":
                    self.disk.write(f"{PCI}/{card.bus_id}/driver_override", "vfio-pci\n")
        self._show_module()
        dep = (
            f"{MODULE}: kernel/drivers/video/backlight.ko\n"
            if self.installed
            else "kernel/fs/ext4.ko:\n"
        )
        self.disk.write(MODULES_DEP, dep)

    def bound(self, card: Card) -> str:
        return ("nvidia" if self.module else "") if card.driver == "nvidia" else card.driver

    def _function(self, bus_id: str, vendor: int, class_code: int, driver: str) -> None:
        path = f"{PCI}/{bus_id}"
        self.disk.folder(path)
        self.disk.write(f"{path}/vendor", f"0x{vendor:04x}\n")
        self.disk.write(f"{path}/class", f"0x{class_code:06x}\n")
        self.disk.write(f"{path}/driver_override", "(null)\n")
        if driver:
            self.disk.link(f"{path}/driver", f"../../../bus/pci/drivers/{driver}")

    def _show_module(self) -> None:
        self.disk.remove(PROC)
        self.disk.remove("/sys/module/nvidia")
        lines = ["Character devices:", "  1 mem", " 10 misc"]
        if self.module:
            self.disk.write("/sys/module/nvidia/initstate", f"{self.module}\n")
        if self.module == "live":
            self.disk.write(
                f"{PROC}/version",
                f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {self.version}"
                "  Tue Mar  5 22:23:56 UTC 2024\nGCC version:  gcc 12\n",
            )
            self.disk.folder(f"{PROC}/gpus")
            for card in self.mine():
                self.disk.folder(f"{PROC}/gpus/{card.bus_id}")
            lines += ["195 nvidia", "195 nvidiactl"]
            lines += [f"{UVM_MAJOR} nvidia-uvm"] if self.uvm else []
        self.disk.write("/proc/devices", "\n".join([*lines, "", "Block devices:", "  8 sd", ""]))

    def mine(self) -> list[Card]:
        """The cards that the driver drives and this node was given."""
        return [
            c
            for c in self.cards
            if c.on_bus and c.driver == "nvidia" and (self.given is None or c.bus_id in self.given)
        ]

    def expected_nodes(self) -> list[str]:
        uvm = ["/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"] if self.uvm else []
        return ["/dev/nvidiactl", *(c.node for c in self.mine()), *uvm]

    def make_node(self, path: str) -> None:
        name = path.removeprefix("/dev/nvidia")
        if name.startswith("-uvm"):
            self.disk.node(path, UVM_MAJOR, 1 if name.endswith("tools") else 0)
        else:
            self.disk.node(path, 195, 255 if name == "ctl" else int(name))

    def make_nodes(self) -> None:
        for path in self.expected_nodes():
            if not self.disk.has(path):
                self.make_node(path)

    def make_links(self) -> None:
        self.disk.folder("/dev/char")
        for entry in self.disk.entries("/dev"):
            if entry.kind == "char":
                self.disk.link(f"/dev/char/{entry.major}:{entry.minor}", f"../{entry.name}")

    def answer(self) -> bytes:
        """The line that a probe program would print now."""
        if self.junk:
            return b"NvRmMemInitNvmap failed: error Permission denied\n"
        return json.dumps(self.enumerate()).encode() + b"\n"

    def enumerate(self) -> dict[str, Any]:
        """What NVML shows to whoever asks now."""
        out: dict[str, Any] = {
            "v": 1,
            "gpus": [],
            "errors": [],
            "excluded": [],
            "library_version": f"12.{VERSION}",
            "library": f"/usr/lib/libnvidia-ml.so.{VERSION}",
            "driver_version": self.version,
        }
        error = self.nvml_error if self.module == "live" else 9
        if error:
            out["errors"] = [{"code": error, "call": "nvmlInit", "index": -1}]
            out["driver_version"] = ""
        else:
            shown = sorted(
                (c for c in self.mine() if c.in_nvml), key=lambda c: self.order.index(c.number)
            )
            for index, card in enumerate(shown):
                self._answer_for(card, index, out)
        return out

    def show_migs(self, card: Card) -> None:
        """The folders that the driver keeps of a GPU's instances."""
        root = f"/proc/driver/nvidia/capabilities/gpu{card.minor}/mig"
        self.disk.remove(root)
        self.disk.folder(root)
        for number in range(len(card.migs)):
            self.disk.write(f"{root}/gi{number + 7 * card.cuts}/ci0/access", "")

    def _answer_for(self, card: Card, index: int, out: dict[str, Any]) -> None:
        if card.error:
            out["errors"].append(
                {
                    "code": card.error,
                    "call": "nvmlDeviceGetHandleByIndex",
                    "index": index,
                    "bus_id": "",
                }
            )
        else:
            state: dict[str, Any] = (
                {"fabric": card.fabric, "fabric_status": 0} if card.fabric else {}
            )
            if card.migs:
                state |= {
                    "mig": True,
                    "mig_pending": True,
                    "mig_devices": [
                        {"uuid": u, "profile": p, "gpu_instance": n, "compute_instance": 0}
                        for n, (u, p) in enumerate(card.migs.items())
                    ],
                }
            out["gpus"].append(
                {
                    "uuid": card.uuid,
                    "bus_id": f"0000{card.bus_id}".upper(),
                    "minor": card.minor,
                    "name": "NVIDIA H100",
                    "state": state,
                }
            )
