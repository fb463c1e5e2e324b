"""Every question we ask of a node, and nothing else: Host in, Scene out.

All conversions between clocks happen here. Questions that cost something are asked only where their answer can
matter: a node whose driver is loaded is not asked which module files it has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from ..model.host import Host
from ..model.reading import Reading, Refusal, Seen, Why
from ..model.runtime import Access, Container, ContainerState, LedgerEntry, PluginLog, PluginSight, Sandbox
from ..model.scene import DeviceNode, Entry, PciFunction, Scene
from ..model.settings import Settings
from . import ledger, parse, plugin, plugin_log
from .paths import CONTROL_PLANE_MANIFESTS, PCI, RUN, STATE

T = TypeVar("T")

NVIDIA_VENDOR = 0x10DE

# Units that carry a kubelet: kubeadm and most clouds; k3s, rke2, microk8s and k0s run it inside their own.
KUBELET_UNITS = (
    "kubelet.service",
    "k3s-agent.service",
    "k3s.service",
    "rke2-agent.service",
    "rke2-server.service",
    "snap.microk8s.daemon-kubelite.service",
    "k0sworker.service",
    "k0scontroller.service",
)
RUNTIME_UNITS = ("containerd.service", "crio.service", "docker.service")
DRIVER_UNITS = ("nvidia-persistenced.service", "nvidia-fabricmanager.service")



def watched_units(settings: Settings) -> tuple[str, ...]:
    """The units whose state and InvocationID matter."""
    return DRIVER_UNITS + RUNTIME_UNITS + kubelet_units(settings) + tuple(filter(None, (settings.plugin_unit,)))


def kubelet_units(settings: Settings) -> tuple[str, ...]:
    if settings.kubelet_unit == "none":
        return ()
    if settings.kubelet_unit:
        return (settings.kubelet_unit,)
    return KUBELET_UNITS


def watched_folders(settings: Settings) -> dict[str, tuple[str, ...]]:
    """Folders to be woken by, each with the name prefixes that matter there (none: every name).

    The driver makes no uevent for /dev/nvidia*, so /dev is watched; the kubelet's folders come and go.
    """
    pod_resources = settings.pod_resources_socket.rsplit("/", 1)[0]
    return {
        "/dev": ("nvidia",),
        "/dev/char": ("195:",),
        "/proc/driver": ("nvidia",),
        settings.device_plugins_dir: (),
        pod_resources: (),
        RUN: ("released", "paused", "waiting"),
    }


async def look(host: Host, settings: Settings) -> Scene:
    """Ask the node everything once."""
    scene = Scene(clock=await host.clock(), pci=await _pci(host))
    scene = replace(scene, **await _driver(host))
    scene = replace(scene, **await _device_nodes(host))
    scene = replace(scene, **await _marks(host))
    scene = replace(
        scene,
        probe=await host.probe(),
        manager=await host.manager(),
        units=await host.units(watched_units(settings)),
        plugin_sockets=await host.folder(settings.device_plugins_dir, "*"),
        allocatable=await host.allocatable(settings.pod_resources_socket),
        trouble=await host.trouble(),
    )
    if isinstance(scene.pci, Seen) and not scene.pci.value:  # no NVIDIA function at all: nothing to mend here
        return scene
    return replace(scene, **await _plugins(host, settings, is_listed(scene, settings)))


def is_listed(scene: Scene, settings: Settings) -> bool:
    """The kubelet lists as many GPUs as NVML shows: then the plugin's own access need not be asked, which costs
    a program's start."""
    last = scene.probe.value.last if isinstance(scene.probe, Seen) else None
    if not isinstance(scene.allocatable, Seen) or last is None:
        return False
    return 0 < len(last.gpus) <= len(plugin.listed_gpus(scene.allocatable.value, settings))


def _parsed(reading: Reading[bytes], parser: Callable[[bytes], T | None], what: str) -> Reading[T]:
    """The part a file holds; a file that holds something else is a failed reading, not a missing one."""
    if isinstance(reading, Refusal):
        return reading
    value = parser(reading.value)
    if value is None:
        return Refusal(Why.FAILED, f"{what} holds something else: {parse.text(reading.value)[:80]!r}")
    return Seen(value, reading.at)


async def _parsed_file(host: Host, path: str, parser: Callable[[bytes], T | None],
                       limit: int = 65536) -> Reading[T]:
    return _parsed(await host.file(path, limit), parser, path)


async def _pci(host: Host) -> Reading[tuple[PciFunction, ...]]:
    """NVIDIA's functions on the PCI bus. One unreadable function makes the whole reading fail: a set with a
    hole is not a set."""
    folder = await host.folder(PCI)
    if isinstance(folder, Refusal):
        return folder
    functions = []
    for entry in folder.value:
        vendor = await _parsed_file(host, f"{PCI}/{entry.name}/vendor", parse.hex_number)
        if isinstance(vendor, Refusal):
            if vendor.is_missing:  # gone between the two questions, or a stray entry
                continue
            return Refusal(vendor.why, f"{PCI}/{entry.name}/vendor: {vendor.detail}")
        if vendor.value == NVIDIA_VENDOR:
            function = await _pci_function(host, entry.name)
            if isinstance(function, Refusal):
                # A function that goes away while it is read is not a host without a PCI bus.
                why = Why.FAILED if function.is_missing else function.why
                return Refusal(why, f"{PCI}/{entry.name} could not be read whole: {function.detail}")
            functions.append(function)
    return Seen(tuple(functions), folder.at)


async def _pci_function(host: Host, name: str) -> PciFunction | Refusal:
    path = f"{PCI}/{name}"
    class_code = await _parsed_file(host, f"{path}/class", parse.hex_number)
    if isinstance(class_code, Refusal):
        return class_code
    driver = await host.folder(path, "driver")
    if isinstance(driver, Refusal):
        return driver
    override = await _parsed_file(host, f"{path}/driver_override", parse.text)
    bound = driver.value[0].target.rsplit("/", 1)[-1] if driver.value else ""
    written = override.value if isinstance(override, Seen) and override.value != "(null)" else ""
    return PciFunction(parse.bus_id(name) or name, class_code.value, bound, written)


async def _driver(host: Host) -> dict[str, Any]:
    version = await _parsed_file(host, "/proc/driver/nvidia/version", parse.driver_version)
    found: dict[str, Any] = {
        "driver_version": version,
        "module_state": await _parsed_file(host, "/sys/module/nvidia/initstate", parse.text),
        "is_container": await _is_container(host),
    }
    if isinstance(version, Refusal):
        found["module_installed"] = await _module_installed(host)
        found["driver_building"] = await _driver_building(host)
    else:
        gpus = await host.folder("/proc/driver/nvidia/gpus")
        found["proc_gpus"] = gpus if isinstance(gpus, Refusal) else Seen(
            tuple(parse.bus_id(e.name) or e.name for e in gpus.value), gpus.at)
    return found


async def _is_container(host: Host) -> bool:
    # systemd writes /run/systemd/container for itself (container-interface); Docker and Podman leave marks too.
    for path in ("/run/systemd/container", "/.dockerenv", "/run/.containerenv"):
        if isinstance(await host.file(path), Seen):
            return True
    return False


async def _module_installed(host: Host) -> Reading[str]:
    release = await _parsed_file(host, "/proc/sys/kernel/osrelease", parse.text)
    if isinstance(release, Refusal):
        return release
    path = f"/lib/modules/{release.value}/modules.dep"
    dep = await host.file(path, 8 << 20)
    if isinstance(dep, Refusal):
        return dep
    found = parse.module_file(dep.value)
    return Seen(found, dep.at) if found else Refusal(Why.MISSING, f"no nvidia module in {path}")


async def _driver_building(host: Host) -> Reading[str]:
    """dkms keeps a module's build folder only while it builds (dkms(8), /var/lib/dkms/MODULE/VERSION/build)."""
    modules = await host.folder("/var/lib/dkms", "nvidia*")
    if isinstance(modules, Refusal):
        return modules
    for module in modules.value:
        versions = await host.folder(f"/var/lib/dkms/{module.name}")
        if isinstance(versions, Refusal):
            continue
        for version in versions.value:
            build = await host.folder(f"/var/lib/dkms/{module.name}/{version.name}", "build")
            if isinstance(build, Seen) and build.value:
                return Seen(f"{module.name} {version.name}", build.at)
    return Refusal(Why.MISSING, "dkms builds no nvidia module now")


async def _device_nodes(host: Host) -> dict[str, Any]:
    majors = await _parsed_file(host, "/proc/devices", parse.majors)
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
        "char_links": links if isinstance(links, Refusal) else Seen(
            {e.name: e.target for e in links.value if e.kind == "link"}, links.at),
    }


async def _plugins(host: Host, settings: Settings, listed: bool) -> dict[str, Any]:
    """The runtime, and of what looks like the device plugin its status, its log's tail and its own access."""
    found: dict[str, Any] = {"checkpoint": await _parsed_file(
        host, f"{settings.device_plugins_dir}/kubelet_internal_checkpoint", parse.checkpoint, 4 << 20)}
    for socket in (settings.runtime_socket,) if settings.runtime_socket else plugin.SOCKETS:
        runtime = await host.runtime(socket)
        found |= {"runtime_socket": socket, "runtime": runtime}
        if not (isinstance(runtime, Refusal) and runtime.is_missing):
            break
    if isinstance(found["runtime"], Seen):
        pairs = plugin.candidates(found["runtime"].value, settings)
        found["plugins"] = tuple([await _sight(host, found["runtime_socket"], *pair, listed) for pair in pairs[:4]])
    return found


async def _sight(host: Host, socket: str, container: Container, sandbox: Sandbox | None,
                 listed: bool) -> PluginSight:
    detail = await host.container(socket, container.id)
    log: Reading[PluginLog] = Refusal(Why.NOT_ASKED, "the container's status was not read")
    access: Reading[Access] = Refusal(Why.NOT_ASKED, "nobody doubts it, or it has no process")
    if isinstance(detail, Seen):
        tail = await host.tail(detail.value.log_path)
        log = tail if isinstance(tail, Refusal) else Seen(plugin_log.read(tail.value), tail.at)
        if detail.value.pid > 0 and container.state is ContainerState.RUNNING and not listed:
            access = await host.access(detail.value.pid, "/dev/nvidiactl")
    return PluginSight(container, sandbox, detail, log, access)


def _node(folder: str, entry: Entry) -> DeviceNode:
    return DeviceNode(f"{folder}/{entry.name}", entry.major, entry.minor)


async def _marks(host: Host) -> dict[str, Any]:
    plane = False
    for path in CONTROL_PLANE_MANIFESTS:
        plane = plane or isinstance(await host.file(path, 1), Seen)
    return {
        "released": await _parsed_file(host, f"{RUN}/released", parse.mark),
        "paused": await _parsed_file(host, f"{RUN}/paused", parse.mark),
        "waiting": await _parsed_file(host, f"{RUN}/waiting", parse.mark),
        "learned": await _learned(host),
        "boot_id": await _boot_id(host),
        "ledger": await _ledger(host),
        "control_plane": plane,
    }


async def _boot_id(host: Host) -> str:
    found = await _parsed_file(host, "/proc/sys/kernel/random/boot_id", parse.text)
    return found.value if isinstance(found, Seen) else ""


async def _ledger(host: Host) -> Reading[tuple[LedgerEntry, ...]]:
    """The disruptive actions of this node. No ledger yet is an empty one; a torn one is a refusal."""
    found = _parsed(await host.tail(f"{STATE}/ledger.jsonl", 1 << 20), ledger.read, "the ledger")
    if isinstance(found, Refusal) and found.is_missing:
        return Seen((), 0.0)
    return found


async def _learned(host: Host) -> Reading[tuple[str, ...]]:
    """What this very machine showed before. Keyed, so that a node image carries no other machine's set."""
    stored = await _parsed_file(host, f"{STATE}/learned.json", parse.json_object)
    if isinstance(stored, Refusal):
        return stored
    bus_ids = stored.value.get("bus_ids")
    if stored.value.get("machine") != await host.machine() or not isinstance(bus_ids, list):
        return Refusal(Why.MISSING, "learned on another machine")
    return Seen(tuple(str(b) for b in bus_ids), stored.at)

