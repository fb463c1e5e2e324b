"""Links 1 to 3: NVIDIA's functions on PCI, the driver, its device nodes."""

from __future__ import annotations

from typing import Any

from ...model.host import Host
from ...model.reading import NOT_ASKED, Reading, Refusal, Seen, Why
from ...model.snapshot import DeviceNode, Entry, PciFunction, ProbeState
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
from .tegra import NVGPU, TEGRA

NVIDIA_VENDOR = 0x10DE
CAPABILITIES = "/proc/driver/nvidia/capabilities"
MOST_PARTS = 64
MOST_NAMED = 3


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


async def tegra(host: Host, pci: Reading[tuple[PciFunction, ...]]) -> dict[str, Any]:
    """Where PCI shows no GPU of NVIDIA's, it may be a part of the SoC. The SoC's PCI bridges are
    NVIDIA's, too."""
    if any(f.is_gpu for f in pci.value) if isinstance(pci, Seen) else not pci.is_missing:
        return {}
    soc = await parsed_file(host, SOC_FAMILY, parse.text)
    if isinstance(soc, Refusal) or not soc.value.lower().startswith(TEGRA):
        return {"soc": soc}
    return {"soc": soc, "nvgpu": await host.folder(NVGPU)}


async def driver(host: Host) -> dict[str, Any]:
    version = await parsed_file(host, DRIVER_VERSION, parse.driver_version)
    found: dict[str, Any] = {
        "driver_version": version,
        "module_state": await parsed_file(host, MODULE_STATE, parse.text),
        "is_container": await _is_container(host),
    }
    if isinstance(version, Refusal):
        found["module_installed"] = await _module_installed(host)
        found["driver_building"] = await _driver_building(host)
    else:
        gpus = await host.folder(DRIVER_GPUS)
        found["proc_gpus"] = (
            gpus
            if isinstance(gpus, Refusal)
            else Seen(tuple(parse.bus_id(e.name) or e.name for e in gpus.value), gpus.at)
        )
    return found


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


async def mig_instances(host: Host, probe: Reading[ProbeState]) -> Reading[tuple[str, ...]]:
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


async def kernel_log(host: Host) -> dict[str, Any]:
    lines = await host.kernel_log()
    return {"kernel": lines if isinstance(lines, Refusal) else Seen(words(lines.value), lines.at)}


async def device_nodes(host: Host) -> dict[str, Any]:
    majors = await parsed_file(host, "/proc/devices", parse.majors)
    dev = await host.folder("/dev", "nvidia*")
    caps = await host.folder("/dev/nvidia-caps")
    links = await host.folder("/dev/char")
    nodes: Reading[tuple[DeviceNode, ...]]
    if isinstance(dev, Refusal):
        nodes = dev
    else:
        found = [_node("/dev", e) for e in dev.value if e.kind == "char"]
        if isinstance(caps, Seen):
            found += [_node("/dev/nvidia-caps", e) for e in caps.value if e.kind == "char"]
        nodes = Seen(tuple(found), dev.at)
    return {
        "majors": majors,
        "nodes": nodes,
        "char_links": links
        if isinstance(links, Refusal)
        else Seen({e.name: e.target for e in links.value if e.kind == "link"}, links.at),
    }


def _node(folder: str, entry: Entry) -> DeviceNode:
    return DeviceNode(f"{folder}/{entry.name}", entry.major, entry.minor, entry.mtime, entry.mode)
