"""Links 7, 9 and 10: the kubelet, the sockets in its folder, and what it lists as allocatable."""

from __future__ import annotations

from ...model.fault import Fault, Mending
from ...model.finding import Finding, Heals, Verdict
from ...model.reading import Refusal, Seen
from ...model.scene import Scene, Unit
from ...model.settings import Settings
from ..look.watched import kubelet_units
from ..plugin import listed_gpus
from .gpus import Judged


def find_unit(scene: Scene, settings: Settings) -> Unit | None:
    """The unit that carries this host's kubelet: a running one first, then an enabled one, then any installed."""
    if not isinstance(scene.units, Seen):
        return None
    names = kubelet_units(settings)
    installed = [u for u in scene.units.value if u.name in names and u.load == "loaded"]
    rank = {"active": 0, "reloading": 0, "activating": 1}
    return min(installed, default=None, key=lambda u: (
        rank.get(u.active, 2), not u.file_state.startswith("enabled"), names.index(u.name)))


def is_active(scene: Scene, settings: Settings) -> bool | None:
    """None where systemd was not read."""
    if not isinstance(scene.units, Seen):
        return None
    unit = find_unit(scene, settings)
    return unit is not None and unit.is_active


def findings(scene: Scene, settings: Settings) -> tuple[Finding, ...]:
    if settings.kubelet_unit == "none":
        return ()
    if isinstance(scene.units, Refusal):
        return (Finding(7, "KubeletActive", Verdict.UNKNOWN, f"systemd was not read ({scene.units})",
                        "SystemdUnreadable", missing=("the kubelet's unit",), blocks=False),)
    unit = find_unit(scene, settings)
    if unit is None:
        return (Finding(7, "KubeletActive", Verdict.FAILS, "no kubelet unit is installed", "NoKubelet",
                        blocks=False, heals=Heals.CONFIGURATION,
                        next_step="[Kubelet] Unit= names it; Unit=none says that there is none"),)
    found = [Finding(7, "KubeletActive", Verdict.HOLDS if unit.is_active else Verdict.FAILS,
                     f"{unit.name} is {unit.active}", "" if unit.is_active else "KubeletInactive",
                     blocks=False, next_step="" if unit.is_active else f"systemctl status {unit.name}")]
    if isinstance(scene.plugin_sockets, Seen):
        names = [e.name for e in scene.plugin_sockets.value if e.kind == "socket" and e.name != "kubelet.sock"]
        found.append(Finding(
            9, "PluginSocket", Verdict.HOLDS if names else Verdict.FAILS,
            f"sockets in {settings.device_plugins_dir}: {', '.join(names) or 'none'} (a hint: a dead plugin "
            "leaves its socket behind)", "" if names else "NoPluginSocket", blocks=False))
    return tuple(found)


def registered(scene: Scene, settings: Settings, judged: Judged) -> Finding | None:
    """Does the kubelet list every GPU? Only its own word counts: log, socket file and checkpoint may lie."""
    unit = find_unit(scene, settings)
    if settings.kubelet_unit == "none" or (unit is None and isinstance(scene.units, Seen)):
        return None
    if isinstance(scene.allocatable, Refusal):
        return _registered(Verdict.UNKNOWN, f"the kubelet's pod-resources API gave no answer "
                           f"({scene.allocatable})", "KubeletSilent")
    if unit and unit.active_since is not None and scene.allocatable.at < unit.active_since:
        return _registered(Verdict.UNKNOWN, "the kubelet's last answer is older than the kubelet",
                           "KubeletRestarted")
    ids = listed_gpus(scene.allocatable.value, settings)
    wanted = {g.uuid for g in judged.gpus}
    if not ids:
        return _registered(Verdict.FAILS, f"the kubelet lists no {'/'.join(settings.resources)}",
                           "NotRegistered")
    by_uuid = any(i.startswith("GPU-") for i in ids)
    short = sorted(wanted - ids) if by_uuid else []
    if short or (not by_uuid and len(ids) < len(wanted)):
        return _registered(Verdict.FAILS, f"the kubelet lists {len(ids)} of {len(wanted)} GPUs"
                           + (f", not {', '.join(short)}" if short else ""), "PartlyRegistered")
    return _registered(Verdict.HOLDS, f"the kubelet lists {len(ids)} of {len(wanted) or len(ids)} GPUs", "")


def _registered(verdict: Verdict, because: str, reason: str) -> Finding:
    next_step = "" if verdict is Verdict.HOLDS else "crictl ps -a --name nvidia-device-plugin; crictl logs …"
    return Finding(10, "PluginRegistered", verdict, because, reason, next_step=next_step,
                   missing=() if verdict is Verdict.HOLDS else ("healthy devices in pod-resources",))


def mending(scene: Scene, settings: Settings, fault: Fault | None) -> Mending:
    """What the mender may know of this look; `may_act` only where the kubelet itself answered in it."""
    unit = find_unit(scene, settings)
    answered = isinstance(scene.allocatable, Seen) and unit is not None and unit.is_active \
        and (unit.active_since is None or scene.allocatable.at >= unit.active_since)
    listed = listed_gpus(scene.allocatable.value, settings) if isinstance(scene.allocatable, Seen) else set()
    return Mending(
        fault=fault, may_act=answered, listed=len(listed),
        kubelet_since=unit.active_since or 0.0 if unit else 0.0,
        kubelet_invocation=unit.invocation_id if unit else "",
        offset=scene.clock.realtime - scene.clock.boottime, boot_id=scene.boot_id,
        entries=scene.ledger.value if isinstance(scene.ledger, Seen) else (),
        ledger_problem="" if isinstance(scene.ledger, Seen) else str(scene.ledger))
