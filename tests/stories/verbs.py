"""The words of a story: what can happen to a simulated node, and what it is like at the
beginning."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from agent.core.common.paths import RUN
from agent.core.plugin.kinds import PLUGIN_UNITS
from agent.model.reading import Refusal, Why
from agent.model.settings import Settings
from agent.model.wake import WakeSource

from .gpus import Card
from .plugin_verbs import PLUGIN_VERBS, plugin
from .plugins import Kind
from .pods import HostUnit, Pod
from .world import MANIFEST, NO_BUS, World

DENIED = Refusal(Why.NOT_PERMITTED, "Permission denied: /dev")
SLOW_BUS = Refusal(Why.TIMED_OUT, "systemd gave no answer within 1.2 s")
LIVE_S = 0.5
"from a module's first sign to its being live"
NODES_S = 0.2
"from there to the device nodes that udev's rules have made"


def settings_of(words: list[str]) -> Settings:
    """Settings by their names in gpu-gate.conf(5): DeadlineSec=60 ExpectedGPUs=7."""
    by_key = {f.metadata["key"]: f for f in fields(Settings)}
    for key, name in (("ProbeTimeoutSec", "probe_timeout_s"), ("PluginUnit", "plugin_unit")):
        by_key[key] = next(f for f in fields(Settings) if f.name == name)
    values: dict[str, Any] = {}
    for word in words:
        key, _, text = word.partition("=")
        field = by_key[key]
        kind = type(field.default)
        flag = text == "yes" if kind is bool else kind(text)
        values[field.name] = tuple(text.split(",")) if kind is tuple else flag
    return replace(Settings(), **values)


def world_of(words: list[str], settings: Settings) -> World:
    """A node: gpus=8 driver=live|installed|building|none nodes=, links=, uvm=, persistence=,
    kubelet=, …"""
    said = dict(word.split("=", 1) for word in words)
    world = World(int(said.pop("gpus", "8")), settings, said.get("kubelet", "gated") != "none")
    said.pop("kubelet", None)
    if "container" in said:
        given = int(said.pop("container"))
        world.hardware.given = {c.bus_id for c in world.hardware.cards[:given]}
        world.disk.write("/run/systemd/container", "docker")
    kind = said.pop("plugin", "pod")
    if kind in ("unit", "gpushare", "dra", "none"):
        for pod in world.kubelet.pods:
            pod.leave()
        world.kubelet.pods = []
    if kind == "two":
        world.kubelet.pods.append(Pod(world, "gpu-operator-plugin-7h9qz"))
    elif kind in ("unit", "unit-and-pod"):
        unit = HostUnit(world, settings.plugin_unit or PLUGIN_UNITS[0])
        world.kubelet.pods.insert(0, unit)
    elif kind == "gpushare":
        world.kubelet.resource = "aliyun.com/gpu-mem"
        world.kubelet.pods = [
            Pod(world, "gpushare-8t2vx", ("component", "gpushare-device-plugin"), "gpushare")
        ]
    elif kind == "dra":
        dra = world.cri.sandbox("dra-kubelet-plugin-5xk2p", {})
        world.cri.create(dra, "gpus", "registry/k8s-dra-driver-gpu:1", 0)
        world.disk.socket("/var/lib/kubelet/plugins/gpu.nvidia.com/dra.sock")
    if said.pop("soc", "") == "tegra":
        world.hardware.be_tegra()
    if said.pop("cdi", "no") == "yes":
        world.toolkit.install()
    if settings.launch == "manifest":
        world.disk.folder("/etc/kubernetes/manifests")
        world.disk.write(settings.launch_manifest, "kind: Pod\n")
    if said.pop("control-plane", "no") == "yes":
        world.disk.write(MANIFEST, "apiVersion: v1\n")
    if said.pop("persistence", "yes") == "no":
        world.persistence = False
        world.set_unit("nvidia-persistenced.service", "inactive", load="not-found")
    world.init_s = float(said.pop("init-s", "1"))
    world.hardware.uvm = said.pop("uvm", "no") == "yes"
    nodes, links = said.pop("nodes", "yes") == "yes", said.pop("links", "yes") == "yes"
    for card in world.hardware.cards:
        card.driver = said.get("bound", "nvidia")
    said.pop("bound", None)
    driver = said.pop("driver", "live")
    world.hardware.installed = driver in ("live", "installed")
    world.hardware.show()
    if driver == "live":
        world.load_driver(nodes, links)
    if driver == "building":
        world.disk.folder("/var/lib/dkms/nvidia/550.54.15/build")
    if said:
        raise ValueError(f"no such property of a node: {', '.join(said)}")
    return world


def happen(world: World, words: list[str]) -> None:
    """One event, with its signals; "silently" at the end leaves them out."""
    silently = words[-1] == "silently"
    words = words[:-1] if silently else words
    told = world.on_signal
    if silently:
        world.on_signal = lambda kind, reason: None
    try:
        VERBS[words[0]](world, words[1:])
    finally:
        world.on_signal = told


def _nvml(world: World, words: list[str]) -> None:
    hardware = world.hardware
    if words[0] == "hangs":
        world.hang = "D" if words[1:] == ["in", "D"] else "S"
    elif words[0] == "thaws":
        world.thaw()
    elif words[0] == "shuffled":
        hardware.order.reverse()
    elif words[0] == "junk":
        hardware.junk = True
    else:
        hardware.junk = False
        hardware.nvml_error = 0 if words[0] == "ok" else int(words[0])


def _gpu(world: World, words: list[str]) -> None:
    """gpu 3 gone|back|error 15|ok|leaves|returns|binds vfio-pci|renumbered 9|cut 1g.10gb 3g.40gb"""
    card, verb = world.hardware.card(int(words[0])), words[1]
    if verb == "cut":
        card.cut(words[2:])
        world.hardware.show_migs(card)
    elif verb in ("gone", "back"):
        card.in_nvml = verb == "back"
    elif verb in ("error", "ok"):
        card.error = int(words[2]) if verb == "error" else 0
        if card.error:
            world.kubelet.sees_xid(card.uuid)
    elif verb in ("leaves", "returns"):
        card.on_bus = verb == "returns"
        _changed(world, card)
    elif verb == "binds":
        card.driver = "" if words[2] == "nothing" else words[2]
        _changed(world, card)
    elif verb == "renumbered":
        world.disk.remove(card.node)
        world.disk.remove(f"/dev/char/195:{card.minor}")
        card.minor = int(words[2])
        if world.hardware.module:
            world.hardware.make_nodes()
            world.hardware.make_links()
    else:
        raise ValueError(f"gpu {' '.join(words)}")


def _changed(world: World, card: Card) -> None:
    world.hardware.show()
    if card not in world.hardware.mine():
        world.kubelet.sees_xid(card.uuid)
    if card in world.hardware.mine() and world.hardware.module:
        world.hardware.make_nodes()
        world.hardware.make_links()
    world.signal("udev")


def _driver(world: World, words: list[str]) -> None:
    hardware, verb = world.hardware, words[0]
    if verb == "loads":
        if hardware.module:
            return
        hardware.module = "coming"
        hardware.show()
        world.signal("udev")
        world.time.after(LIVE_S, lambda: _live(world, "bare" not in words))
    elif verb == "unloads":
        world.unload_driver()
        world.signal("udev")
        world.signal("inotify")
    elif verb == "builds":
        world.disk.folder("/var/lib/dkms/nvidia/550.54.15/build")
    elif verb == "built":
        world.disk.remove("/var/lib/dkms/nvidia/550.54.15/build")
        hardware.installed = True
        hardware.show()
    elif verb == "uvm":
        hardware.uvm = True
        hardware.show()
        world.signal("udev")
    else:
        raise ValueError(f"driver {verb}")


def _live(world: World, with_nodes: bool) -> None:
    world.load_driver(nodes=False, links=False)
    world.signal("udev")
    if with_nodes:
        world.time.after(NODES_S, lambda: _nodes(world, ["appear"]))


def _nodes(world: World, words: list[str]) -> None:
    """nodes appear | nodes vanish /dev/nvidia3 /dev/char/195:3"""
    if words[0] == "appear":
        if world.hardware.module == "live":
            world.hardware.make_nodes()
            world.hardware.make_links()
    else:
        for path in words[1:]:
            world.disk.remove(path)
    world.signal("inotify")


def _unit(name: str, world: World, words: list[str]) -> None:
    active = (
        "active"
        if words[0] in ("starts", "restarts")
        else "failed"
        if words[0] == "fails"
        else "inactive"
    )
    world.set_unit(name, active)
    if name.startswith("nvidia-persistenced"):
        world.persistence = active == "active"
    world.signal("systemd")


def _kubelet(world: World, words: list[str]) -> None:
    {"starts": world.kubelet.start, "restarts": world.kubelet.restart, "stops": world.kubelet.stop}[
        words[0]
    ]()


def _wait(world: World, words: list[str]) -> None:
    world.kubelet.wait()


def _reload(world: World, words: list[str]) -> None:
    world.reloaded_at = world.now
    world.workloads.reload()
    world.signal("systemd", WakeSource.RELOAD)


def _gate(world: World, words: list[str]) -> None:
    if words[0] == "paused":
        world.pause(float(words[2]) if words[1:] else None)
    else:
        world.disk.remove(f"{RUN}/paused")
        world.signal("inotify")


def _kernel(world: World, words: list[str]) -> None:
    """kernel xid 79 of gpu 3 | kernel cannot init gpu 3 | kernel rejects | kernel does not support
    gpu 3"""
    bus_id = world.hardware.card(int(words[-1])).bus_id if words[-1].isdigit() else ""
    if words[0] == "xid":
        world.prints(
            f"NVRM: Xid (PCI:{bus_id[:-2]}): {words[1]}, pid='<unknown>', name=<unknown>, some text"
        )
    elif words[0] == "cannot":
        world.prints(f"NVRM: GPU {bus_id}: RmInitAdapter failed! (0x24:0x72:1568)")
    elif words[0] == "rejects":
        world.prints("Loading of unsigned module is rejected")
    else:
        world.prints(
            f"NVRM: The NVIDIA GPU {bus_id} (PCI ID: 10de:1180) NVRM: installed in this system "
            "is not "
            "supported by the NVRM: NVIDIA 535.54.03 driver release."
        )


def _fabric(world: World, words: list[str]) -> None:
    """fabric in progress | fabric completed"""
    for card in world.hardware.cards:
        card.fabric = " ".join(words)


def _mig_manager(world: World, words: list[str]) -> None:
    """mig-manager works|ends: a oneshot that is activating while it works"""
    world.set_unit(
        "nvidia-mig-manager.service", "activating" if words[0] == "works" else "inactive"
    )
    world.signal("systemd")


def _dev(world: World, words: list[str]) -> None:
    if words[0] == "unreadable":
        world.disk.refuse("/dev", DENIED)
    else:
        world.disk.allow("/dev")


def _bus(world: World, words: list[str]) -> None:
    world.bus = {"away": NO_BUS, "slow": SLOW_BUS, "back": None}[words[0]]
    if words[0] == "back":
        world.signal("systemd")


def _hand(world: World, words: list[str]) -> None:
    """hand MakeNodes fails | hand MakeNodes does nothing | hand MakeNodes works"""
    mood = " ".join(words[1:])
    world.hands[words[0]] = "" if mood == "works" else mood


def _look(world: World, words: list[str]) -> None:
    """look takes 2 | look stalls | look is quick"""
    world.lookup_s = (
        float(words[1]) if words[0] == "takes" else 6.0 if words[0] == "stalls" else 0.0
    )


def _everything(world: World, words: list[str]) -> None:
    """everything heals: what makes any of these nodes well"""
    _gate(world, ["resumed"])
    _mig_manager(world, ["ends"])
    _fabric(world, [])
    _bus(world, ["back"])
    _dev(world, ["readable"])
    world.hands.clear()
    _look(world, ["is", "quick"])
    world.thaw()
    _nvml(world, ["ok"])
    for card in world.hardware.cards:
        card.on_bus, card.in_nvml, card.error, card.driver = True, True, 0, "nvidia"
        _changed(world, card)
    world.disk.remove("/var/lib/dkms")
    if world.hardware.module:
        _nodes(world, ["appear"])
    _driver(world, ["loads"])
    for verb, word in (
        ("cri", "back"),
        ("pod-resources", "answers"),
        ("ledger", "well"),
        ("disk", "empty"),
        ("logs", "readable"),
    ):
        PLUGIN_VERBS[verb](world, [word])
    while len(world.kubelet.pods) > 1:
        world.kubelet.pods.pop().leave()
    world.set_unit("containerd.service", "active")
    world.kubelet.kind = Kind()
    world.kubelet.start()


def _healthy_plugin(world: World, words: list[str]) -> None:
    """all heals: the node, and 10 s later the plugin is started afresh by a person"""
    _everything(world, words)
    world.time.after(10.0, lambda: plugin(world, ["restarts"]))


def _clock(world: World, words: list[str]) -> None:
    """clock set 3600: forward by so many seconds, or back"""
    world.clock_off_s += float(words[1])


VERBS: dict[str, Any] = {
    "clock": _clock,
    "nvml": _nvml,
    "gpu": _gpu,
    "driver": _driver,
    "nodes": _nodes,
    "kubelet": _kubelet,
    "wait": _wait,
    "daemon-reload": _reload,
    "gpu-gate": _gate,
    "dev": _dev,
    "bus": _bus,
    "hand": _hand,
    "look": _look,
    "kernel": _kernel,
    "fabric": _fabric,
    "mig-manager": _mig_manager,
    "everything": _everything,
    "all": _healthy_plugin,
    **PLUGIN_VERBS,
    "persistenced": lambda world, words: _unit("nvidia-persistenced.service", world, words),
    "containerd": lambda world, words: _unit("containerd.service", world, words),
}
