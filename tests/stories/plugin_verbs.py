"""The words of a story that are about the device plugin, its runtime, and what keeps a repair from
being made."""

from __future__ import annotations

from typing import Any

from agent.model.reading import Refusal, Why

from .pods import HostUnit, Pod
from .repairer import LEDGER
from .world import World

DENIED_LEDGER = Refusal(Why.FAILED, "Input/output error: ledger.jsonl")
LOGS = "/var/log/pods"
NO_LOG = Refusal(Why.FAILED, "Input/output error: /var/log/pods")


def _kind(world: World, words: list[str]) -> None:
    """What the plugins are like that are started from now on: version=0.9 fail-on-init=yes
    own-error=999 asks-s=24 strategy=mixed replicas=4 given=0,2 …"""
    kind = world.kubelet.kind
    for word in words:
        key, _, value = word.partition("=")
        if key == "version":
            major, minor = value.split(".")
            kind.version = int(major), int(minor)
        elif key in ("own-error", "replicas"):
            setattr(kind, key.replace("-", "_"), int(value))
        elif key == "asks-s":
            kind.asks_s = float(value)
        elif key == "strategy":
            kind.strategy = value
        elif key == "given":
            kind.visible = ",".join(world.hardware.card(int(n)).uuid for n in value.split(","))
        else:
            name = {
                "fail-on-init": "fail_on_init",
                "deaf": "deaf",
                "library": "library",
                "mute": "mute",
                "hangs": "hangs",
                "hup-ends": "hup_ends",
            }[key]
            setattr(kind, name, value == "yes")


def plugin(world: World, words: list[str]) -> None:
    """plugin restarts|is k=v …|overlaps|crashes|denied|allowed|joined|hears|takes
    24|never-again|says LINE"""
    pods = world.kubelet.pods
    if words[0] == "is":
        _kind(world, words[1:])
    elif words[0] == "joined":
        pods.append(Pod(world, "gpu-operator-plugin-7h9qz"))
        pods[-1].sync(1.0)
    elif words[0] == "leaves":
        if len(pods) > 1:
            pods.pop().leave()
    else:
        for pod in pods:
            process = pod.plugin
            if words[0] == "restarts" and world.kubelet.is_active:
                pod.deleted()
            elif words[0] == "overlaps" and isinstance(pod, Pod):
                pod.overlaps()
            elif words[0] == "never-again" and isinstance(pod, Pod):
                pod.never_again()
            elif process is not None and process.alive and words[0] == "takes":
                process.kind.asks_s = float(words[1])
            elif process is not None and process.alive and words[0] == "hears":
                process.hup()
            elif process is not None and process.alive and words[0] == "says":
                process.says(" ".join(words[1:]))
            elif process is not None and process.alive and words[0] in ("denied", "allowed"):
                process.allowed = words[0] == "allowed"


def _access(world: World, _words: list[str]) -> None:
    """access is watched"""
    world.workloads.watched = True


def _trainer(world: World, words: list[str]) -> None:
    """trainer holds 0 1 behind|cgroupfs · trainer is updated · trainer has them again"""
    work = world.workloads
    if words[0] == "holds":
        work.give("trainer", words[1:])
    elif words[0] == "is":
        work.update("trainer")
    else:
        work.again("trainer")


def _cri(world: World, words: list[str]) -> None:
    """cri silent|refusing|stuck|slow|back"""
    world.cri.mood = "" if words[0] == "back" else words[0]


def _pod_resources(world: World, words: list[str]) -> None:
    world.kubelet.silent = words[0] == "silent"


def _logs(world: World, words: list[str]) -> None:
    """logs unreadable|readable"""
    if words[0] == "unreadable":
        world.disk.refuse(LOGS, NO_LOG)
    else:
        world.disk.allow(LOGS)


def _ledger(world: World, words: list[str]) -> None:
    """ledger unwritable|unreadable|torn|well"""
    world.ledger_mood = words[0] if words[0] == "unwritable" else ""
    if words[0] == "unreadable":
        world.disk.refuse(LEDGER, DENIED_LEDGER)
    elif words[0] == "torn":
        world.disk.write(LEDGER, "not json\n")
    else:
        world.disk.allow(LEDGER)
        world.disk.write(LEDGER, "".join(world.ledger))


def _disk(world: World, words: list[str]) -> None:
    world.disk_full = words[0] == "full"


def cdi(world: World, words: list[str]) -> None:
    """cdi written|older|gone | cdi unit fails|hangs|useless|works"""
    if words[0] == "unit":
        world.toolkit.mood = "" if words[1] == "works" else words[1]
    elif words[0] == "gone":
        world.toolkit.remove()
    else:
        world.toolkit.write(*(("535.161.07",) if words[0] == "older" else ()))


def admin(world: World, words: list[str]) -> None:
    """admin stops-plugin"""
    for pod in world.kubelet.pods:
        if isinstance(pod, HostUnit):
            pod.stop()
    world.time.after(1.0, lambda: world.signal("inotify"))  # the kubelet writes its checkpoint


PLUGIN_VERBS: dict[str, Any] = {
    "access": _access,
    "trainer": _trainer,
    "plugin": plugin,
    "cdi": cdi,
    "admin": admin,
    "cri": _cri,
    "pod-resources": _pod_resources,
    "ledger": _ledger,
    "logs": _logs,
    "disk": _disk,
}
