"""What the device plugin was given to see, and by which MIG strategy it offers that: its
container's environment.

NVIDIA_VISIBLE_DEVICES as libnvidia-container and nvidia-container-toolkit read it: all, none, void,
or a list of UUIDs (their beginning is enough), NVML's indices (0), MIG devices (0:1, MIG-…), bus
ids, or CDI's vendor/class=NAME.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...model.gpu import MigDevice
from ...model.reading import Seen
from ...model.runtime import PluginSight
from ...model.snapshot import Gpu, ProbeReport, Snapshot
from ..common import parse

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
STRATEGIES = ("none", "single", "mixed")
CDI = "cdi.k8s.io/"
"""Beginning of the annotations that ask for CDI devices (cncf-tags/container-device-interface,
pkg/cdi)."""


@dataclass(frozen=True, slots=True)
class VisibleDevices:
    """What the plugins of this node may see."""

    names: tuple[str, ...] | None = None
    "None: every GPU"
    strategy: str = ""
    'MIG_STRATEGY; "" where it is not said: it may be in a configuration file that we do not read'
    is_known: bool = True
    "False: a plugin is there whose container could not be read"


EVERYTHING = VisibleDevices()


@dataclass(frozen=True, slots=True)
class Shown:
    """A GPU that the plugin sees, and of its MIG devices those that it sees."""

    gpu: Gpu
    migs: tuple[MigDevice, ...] | None


def visible_devices(snapshot: Snapshot) -> VisibleDevices:
    if not isinstance(snapshot.plugin.runtime, Seen) or not all(
        isinstance(s.detail, Seen) for s in snapshot.plugin.plugins
    ):
        return VisibleDevices(is_known=False)
    names: list[str] = []
    sees_all = not snapshot.plugin.plugins
    for sight in snapshot.plugin.plugins:
        found = _names(sight)
        sees_all = sees_all or found is None
        names += found or ()
    strategies = {_strategy(s) for s in snapshot.plugin.plugins}
    return VisibleDevices(
        None if sees_all else tuple(names), strategies.pop() if len(strategies) == 1 else ""
    )


def _names(sight: PluginSight) -> tuple[str, ...] | None:
    """None where nothing limits it. Empty and void only say that this variable is not the way it
    gets its GPUs."""
    env = sight.detail.value.env if isinstance(sight.detail, Seen) else {}
    said = env.get(VISIBLE, "")
    if said in ("", "void") or said.startswith(
        "/"
    ):  # a path: they are volumes, which CRI does not show
        notes = sight.sandbox.annotations if sight.sandbox else {}
        said = ",".join(value for key, value in notes.items() if key.startswith(CDI))
    names = tuple(filter(None, (word.strip().rpartition("=")[2] for word in said.split(","))))
    if not names or "all" in names:
        return None
    return tuple(n for n in names if n not in ("none", "void"))


def _strategy(sight: PluginSight) -> str:
    if not isinstance(sight.detail, Seen):
        return ""
    args = sight.detail.value.args
    words = [sight.detail.value.env.get("MIG_STRATEGY", "")]
    for at, word in enumerate(args):
        flag, _, value = word.lstrip("-").partition("=")
        if flag == "mig-strategy":
            words.append(value or (args[at + 1] if at + 1 < len(args) else ""))
    return next(
        (w for w in reversed(words) if w in STRATEGIES), ""
    )  # a flag overrules the environment


def select(
    report: ProbeReport, gpus: tuple[Gpu, ...], names: tuple[str, ...] | None
) -> tuple[tuple[Shown, ...], tuple[str, ...]]:
    """(what of these GPUs the names mean, names that mean none of them), in NVML's order."""
    if names is None:
        return tuple(Shown(g, g.state.mig_devices) for g in gpus), ()
    index = _by_index(report)
    chosen: dict[str, set[str] | None] = {}
    strangers = []
    for name in names:
        found = list(_meant(name, gpus, index))
        if not found:
            strangers.append(name)
        for uuid, mig in found:
            known = chosen.setdefault(uuid, set())
            if mig is None:
                chosen[uuid] = None
            elif known is not None:
                known.add(mig)
    return tuple(Shown(g, _only(g, chosen[g.uuid])) for g in gpus if g.uuid in chosen), tuple(
        strangers
    )


def _by_index(report: ProbeReport) -> dict[str, str]:
    """NVML's index to UUID: those that answered with an error have an index, too."""
    broken = {e.index for e in report.errors}
    free = (i for i in range(len(report.gpus) + len(report.errors)) if i not in broken)
    return {str(i): g.uuid for i, g in zip(free, report.gpus, strict=False)}


def _meant(
    name: str, gpus: tuple[Gpu, ...], index: dict[str, str]
) -> Iterator[tuple[str, str | None]]:
    """(GPU, MIG device or None for the whole GPU)."""
    at, _, mig_at = name.partition(":")
    for gpu in gpus:
        migs = gpu.state.mig_devices or ()
        if (
            index.get(name) == gpu.uuid
            or parse.bus_id(name) == gpu.bus_id
            or (len(name) > 4 and gpu.uuid.lower().startswith(name.lower()))
        ):
            yield gpu.uuid, None
        elif mig_at.isdecimal() and index.get(at) == gpu.uuid and int(mig_at) < len(migs):
            yield gpu.uuid, migs[int(mig_at)].uuid
        else:
            yield from ((gpu.uuid, m.uuid) for m in migs if m.uuid.lower() == name.lower())


def _only(gpu: Gpu, migs: set[str] | None) -> tuple[MigDevice, ...] | None:
    """Of a GPU that is given whole, all its MIG devices."""
    if migs is None or gpu.state.mig_devices is None:
        return gpu.state.mig_devices
    return tuple(m for m in gpu.state.mig_devices if m.uuid in migs)
