"""Links 1 to 5: NVIDIA's functions on PCI, the driver, its device nodes, the last probe, the kernel
log."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from ...model.host import Host
from ...model.kernel import KernelEntry
from ...model.reading import NOT_ASKED, Reading, Refusal, Seen, Why
from ...model.snapshot import DeviceNode, Entry, Hardware, PciFunction, ProbeState
from ..common import parse
from ..common.files import parsed_file
from ..common.kernel_log import words
from ..common.paths import (
    CONTAINER_MARKS,
    DRIVER_GPUS,
    DRIVER_VERSION,
    MODULE_STATE,
    PCI,
    SOC_FAMILY,
)
from .tegra import NVGPU, TEGRA, is_tegra

NVIDIA_VENDOR = 0x10DE
CAPABILITIES = "/proc/driver/nvidia/capabilities"
MOST_PARTS = 64
MOST_NAMED = 3


async def hardware(host: Host) -> Hardware:
    """The GPUs of this node and their driver. The kernel log is read only where an NVIDIA function
    is there."""
    functions = await pci(host)
    soc, nvgpu = await _tegra(host, functions)
    version = await parsed_file(host, DRIVER_VERSION, parse.driver_version)
    module_state = await parsed_file(host, MODULE_STATE, parse.text)
    is_container = await _is_container(host)
    is_loaded = isinstance(version, Seen)
    installed = NOT_ASKED if is_loaded else await _module_installed(host)
    building = NOT_ASKED if is_loaded else await _driver_building(host)
    proc_gpus = await _proc_gpus(host) if is_loaded else NOT_ASKED
    majors = await parsed_file(host, "/proc/devices", parse.majors)
    nodes = await _device_nodes(host)
    char_links = await _char_links(host)
    probe = await host.probe()
    found = Hardware(
        pci=functions,
        soc=soc,
        nvgpu=nvgpu,
        is_container=is_container,
        driver_version=version,
        module_state=module_state,
        module_installed=installed,
        driver_building=building,
        proc_gpus=proc_gpus,
        majors=majors,
        nodes=nodes,
        char_links=char_links,
        probe=probe,
        mig_instances=await _mig_instances(host, probe),
    )
    return replace(found, kernel=await _kernel_log(host)) if may_have_gpus(found) else found


def may_have_gpus(hardware: Hardware) -> bool:
    """False where neither PCI nor the SoC has any function of NVIDIA's."""
    return not isinstance(hardware.pci, Seen) or bool(hardware.pci.value) or is_tegra(hardware)


async def pci(host: Host) -> Reading[tuple[PciFunction, ...]]:
    """NVIDIA's functions on the PCI bus. One unreadable function makes the whole reading fail: a
    set with a hole is not a set."""
    folder = await host.folder(PCI)
    if isinstance(folder, Refusal):
        return folder
    functions = []
    for entry in folder.value:
        vendor = await parsed_file(host, f"{PCI}/{entry.name}/vendor", parse.hex_number)
        if isinstance(vendor, Refusal):
            if vendor.is_missing:  # gone between the two questions, or a stray entry
                continue
            return Refusal(vendor.why, f"{PCI}/{entry.name}/vendor: {vendor.detail}")
        if vendor.value == NVIDIA_VENDOR:
            function = await _pci_function(host, entry.name)
            if isinstance(function, Refusal):
                # A function that goes away while it is read is not a host without a PCI bus.
                why = Why.FAILED if function.is_missing else function.why
                return Refusal(
                    why, f"{PCI}/{entry.name} could not be read whole: {function.detail}"
                )
            functions.append(function)
    return Seen(tuple(functions), folder.at)


async def _pci_function(host: Host, name: str) -> PciFunction | Refusal:
    path = f"{PCI}/{name}"
    class_code = await parsed_file(host, f"{path}/class", parse.hex_number)
    if isinstance(class_code, Refusal):
        return class_code
    driver = await host.folder(path, "driver")
    if isinstance(driver, Refusal):
        return driver
    override = await parsed_file(host, f"{path}/driver_override", parse.text)
    bound = driver.value[0].target.rsplit("/", 1)[-1] if driver.value else ""
    written = override.value if isinstance(override, Seen) and override.value != "(null)" else ""
    return PciFunction(parse.bus_id(name) or name, class_code.value, bound, written)


class SocReadings(NamedTuple):
    family: Reading[str]
    nvgpu: Reading[tuple[Entry, ...]]


async def _tegra(host: Host, pci: Reading[tuple[PciFunction, ...]]) -> SocReadings:
    """Where PCI shows no GPU of NVIDIA's, it may be a part of the SoC. The SoC's PCI bridges are
    NVIDIA's, too."""
    if any(f.is_gpu for f in pci.value) if isinstance(pci, Seen) else not pci.is_missing:
        return SocReadings(NOT_ASKED, NOT_ASKED)
    soc = await parsed_file(host, SOC_FAMILY, parse.text)
    if isinstance(soc, Refusal) or not soc.value.lower().startswith(TEGRA):
        return SocReadings(soc, NOT_ASKED)
    return SocReadings(soc, await host.folder(NVGPU))


async def _proc_gpus(host: Host) -> Reading[tuple[str, ...]]:
    gpus = await host.folder(DRIVER_GPUS)
    if isinstance(gpus, Refusal):
        return gpus
    return Seen(tuple(parse.bus_id(e.name) or e.name for e in gpus.value), gpus.at)


async def _is_container(host: Host) -> bool:
    for path in CONTAINER_MARKS:
        if isinstance(await host.file(path), Seen):
            return True
    return False


async def _module_installed(host: Host) -> Reading[str]:
    release = await parsed_file(host, "/proc/sys/kernel/osrelease", parse.text)
    if isinstance(release, Refusal):
        return release
    path = f"/lib/modules/{release.value}/modules.dep"
    dep = await host.file(path, 8 << 20)
    if isinstance(dep, Refusal):
        return dep
    found = parse.module_file(dep.value)
    return Seen(found, dep.at) if found else Refusal(Why.MISSING, f"no nvidia module in {path}")


async def _driver_building(host: Host) -> Reading[str]:
    """dkms keeps a module's build folder only while it builds (dkms(8),
    /var/lib/dkms/MODULE/VERSION/build)."""
    modules, kept = await host.folder("/var/lib/dkms", "nvidia*"), []
    if isinstance(modules, Refusal):
        return modules
    for module in modules.value:
        versions = await host.folder(f"/var/lib/dkms/{module.name}")
        if isinstance(versions, Refusal):
            continue
        for version in versions.value:
            if version.kind != "dir":  # kernel-KERNEL-ARCH links lead to what was built
                continue
            kept.append(f"{module.name} {version.name}")
            build = await host.folder(f"/var/lib/dkms/{module.name}/{version.name}", "build")
            if isinstance(build, Seen) and build.value:
                return Seen(f"{module.name} {version.name}", build.at)
    return Refusal(
        Why.MISSING,
        f"dkms has {', '.join(kept[:MOST_NAMED])}, and does not build it now"
        if kept
        else "dkms builds no nvidia module now",
    )


async def _mig_instances(host: Host, probe: Reading[ProbeState]) -> Reading[tuple[str, ...]]:
    """MIG instances, by the folders that the driver keeps of each (NVIDIA's MIG User Guide, /proc
    based nvidia-capabilities): to list them asks no GPU, and where they are others than before,
    NVML is asked again. Where NVML says of no GPU whether it is in MIG mode, there are none."""
    last = probe.value.last if isinstance(probe, Seen) else None
    if last is None or all(gpu.state.mig is None for gpu in last.gpus):
        return NOT_ASKED
    gpus = await host.folder(CAPABILITIES, "gpu*")
    if isinstance(gpus, Refusal):
        return gpus
    found: list[str] = []
    for gpu in gpus.value[:MOST_PARTS]:
        instances = await host.folder(f"{CAPABILITIES}/{gpu.name}/mig", "gi*")
        for part in instances.value[:MOST_PARTS] if isinstance(instances, Seen) else ():
            compute = await host.folder(f"{CAPABILITIES}/{gpu.name}/mig/{part.name}", "ci*")
            names = [c.name for c in compute.value] if isinstance(compute, Seen) else []
            found += [f"{gpu.name}/{part.name}/{name}" for name in names or [""]]
    return Seen(tuple(found), gpus.at)


async def _kernel_log(host: Host) -> Reading[tuple[KernelEntry, ...]]:
    lines = await host.kernel_log()
    return lines if isinstance(lines, Refusal) else Seen(words(lines.value), lines.at)


async def _device_nodes(host: Host) -> Reading[tuple[DeviceNode, ...]]:
    dev = await host.folder("/dev", "nvidia*")
    caps = await host.folder("/dev/nvidia-caps")
    if isinstance(dev, Refusal):
        return dev
    found = [_node("/dev", e) for e in dev.value if e.kind == "char"]
    if isinstance(caps, Seen):
        found += [_node("/dev/nvidia-caps", e) for e in caps.value if e.kind == "char"]
    return Seen(tuple(found), dev.at)


async def _char_links(host: Host) -> Reading[dict[str, str]]:
    links = await host.folder("/dev/char")
    if isinstance(links, Refusal):
        return links
    return Seen({e.name: e.target for e in links.value if e.kind == "link"}, links.at)


def _node(folder: str, entry: Entry) -> DeviceNode:
    return DeviceNode(f"{folder}/{entry.name}", entry.major, entry.minor, entry.mtime, entry.mode)
