"""The kernel's log lines about GPUs, to parts.

Forms: open-gpu-kernel-modules 570, kernel-open/nvidia/nv.c and src/nvidia (NVRM, Xid), the kernel's
kernel/module/signing.c (5.4 names the module, 5.10 and later do not), main.c and version.c (version
magic, symbols), drivers/pci/probe.c (pci_setup_device), pci.c (power state) and pcie/err.c (AER),
nvidia-nvswitch (SXid); and field reports: NVIDIA/gpu-operator #492 (a region),
negativo17/nvidia-driver #97 (version magic), AOSC-Dev/aosc-os-abbs #2594 (a symbol),
system76/firmware-open #259 (D3cold), open-gpu-kernel-modules #1229 (AER).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...model.kernel import KernelEntry, KernelEvent, KernelLine
from . import parse, xids
from .parse import without

_THE_GPU = "NVRM: The NVIDIA GPU"
_BUS = r"([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2})(?:\.[0-7])?"
_XID = re.compile(rf"NVRM: Xid \((?:PCI:)?{_BUS}(?: GPU-C?I:\d+)*\): (\d+)", re.I)
"""In MIG mode it names the GPU instance, and the compute instance, as well (krc, "Xid (PCI:…
GPU-I:… GPU-CI:…)")."""
_VERSION = r"has the version '?(\d+(?:\.\d+)+)"
_UNFIT = re.compile(
    r"(?:^|insert (?:module )?')(nvidia(?![\w-]*(?:drm|modeset|peermem|fs|vgpu))[\w-]*)(?:: "
    rf"(?:version magic '{without('version magic')}' "
    r"should be|disagrees about version of symbol|Unknown symbol \w+ \(err)"
    r"|': (?:Exec format error|Unknown symbol in module))"
)
"""Of the two modules that GPU work needs; what nvidia-drm lacks is a display's trouble."""
_FORMS: tuple[tuple[KernelEvent, re.Pattern[str]], ...] = (
    (
        KernelEvent.FOUND,
        re.compile(rf"\bpci {_BUS}: \[10de:[0-9a-f]{{4}}\] type \S+ class 0x030[02]"),
    ),
    (KernelEvent.LOADED, re.compile(r"NVRM: loading NVIDIA ")),
    (
        KernelEvent.LOST,
        re.compile(
            rf"NVRM: GPU (?:at )?(?:PCI:)?{_BUS}\b{without('NVRM: GPU ')}fallen off the bus", re.I
        ),
    ),
    (
        KernelEvent.DEAD,
        re.compile(rf"{_THE_GPU} {_BUS}\b{without(_THE_GPU)}fallen off the bus", re.I | re.S),
    ),
    (
        KernelEvent.LOST,
        re.compile(
            rf"\bnvidia {_BUS}: (?:Unable to|can't) change power state from D3cold to D0", re.I
        ),
    ),
    (
        KernelEvent.REGION,
        re.compile(
            rf"NVIDIA device is invalid:{without('NVIDIA device is')}\(PCI:{_BUS}\)", re.I | re.S
        ),
    ),
    (
        KernelEvent.POWER,
        re.compile(rf"NVRM: GPU {_BUS}: GPU does not have the necessary power cables", re.I),
    ),
    (KernelEvent.UNFIT, _UNFIT),
    (
        KernelEvent.FIRMWARE,
        re.compile(
            rf"{_BUS}: (?:Direct firmware load for |loading \S*/)nvidia/[\w.-]+/"
            r"gsp(?!_log)\w*\.bin failed with error -2\b"
        ),
    ),
    (
        KernelEvent.INIT_FAILED,
        re.compile(rf"NVRM: GPU {_BUS}: (?:RmInitAdapter|rm_init_adapter) failed", re.I),
    ),
    (
        KernelEvent.UNSUPPORTED,
        re.compile(
            rf"{_THE_GPU} {_BUS}\b{without(_THE_GPU)}(?:not supported by|is supported "
            r"through|requires use of)",
            re.I | re.S,
        ),
    ),
    # An older branch's GPU: it names its model, and no bus id.
    (
        KernelEvent.UNSUPPORTED,
        re.compile(
            rf"NVRM: The NVIDIA {without('NVRM: The NVIDIA')}GPU installed in this system is"
            r"\s+(?:NVRM:\s+)?supported through"
        ),
    ),
    (
        KernelEvent.REJECTED,
        re.compile(
            r"(?:^|\b(nvidia)[\w-]{0,40}: )loading of (?:unsigned module|module with \w+ \w+) is "
            r"rejected"
            r"|Lockdown: \S+ unsigned module loading is restricted"
            rf"|insert (?:module )?'?nvidia\b{without('insert ')}"
            r"(?:Key was rejected by service|Required key not available)",
            re.I,
        ),
    ),
    (KernelEvent.MISMATCH, re.compile(rf"NVRM: API mismatch: {without('NVRM: API')}?{_VERSION}")),
    (KernelEvent.XID, re.compile(rf"nvidia-nvswitch\d+: SXid \(PCI:{_BUS}\): \d+, Fatal", re.I)),
    (
        KernelEvent.XID,
        re.compile(
            rf"\bnvidia {_BUS}: (?:AER: can't recover|PCIe Bus Error: (?:severity=)?Uncorrect)",
            re.I,
        ),
    ),
)
_OF_XID = {
    79: KernelEvent.LOST,
    119: KernelEvent.GSP,
    120: KernelEvent.GSP,
    143: KernelEvent.INIT_FAILED,
}


_HINTS = ("NVRM", "[10de:", "nvidia", "is rejected", "is restricted")
"""One of them is in every line that tells something: to read a whole ring is to cost little."""


def word(line: KernelLine) -> KernelEntry | None:
    """What a line tells; None where it is not about GPUs, or only about a program that used one."""
    if not any(hint in line.text for hint in _HINTS):
        return None
    text = line.text[: parse.LINE]
    xid = _XID.search(text)
    if xid:
        number = int(xid.group(2)[:4])
        if number in xids.APPLICATIONS:
            return None
        return KernelEntry(
            line.at,
            _OF_XID.get(number, KernelEvent.XID),
            line.text,
            _bus_id(xid.group(1)),
            xid=number,
        )
    for event, form in _FORMS:
        found = form.search(text)
        if found:
            part = (found.group(1) or "") if found.groups() else ""
            if event in (KernelEvent.MISMATCH, KernelEvent.UNFIT):
                return KernelEntry(line.at, event, line.text, client=part)
            return KernelEntry(line.at, event, line.text, _bus_id(part) if ":" in part else "")
    return None


def words(lines: Sequence[KernelLine]) -> tuple[KernelEntry, ...]:
    return tuple(found for found in map(word, lines) if found is not None)


def _bus_id(written: str) -> str:
    """GPUs are function 0; an Xid names none."""
    return parse.bus_id(f"{written}.0") or written
