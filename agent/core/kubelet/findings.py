"""Links 7, 9 and 10: the kubelet, the sockets in its folder, and what it lists as allocatable."""

from __future__ import annotations

from ...model.condition import Condition, Link
from ...model.fault import Fault, RepairFacts
from ...model.finding import Finding, Heals, Verdict
from ...model.reading import Refusal, Seen
from ...model.reason import Reason
from ...model.settings import Settings
from ...model.snapshot import Snapshot, Unit
from ..common.watched import kubelet_units
from ..gpu import nvml_codes
from ..gpu.inventory import ProbeAssessment
from ..plugin import ledger
from ..plugin.findings import has_no_socket
from ..plugin.resources import GPUS, Listing

CHECKPOINT = "kubelet_internal_checkpoint"


def find_unit(snapshot: Snapshot, settings: Settings) -> Unit | None:
    """The unit that carries this host's kubelet: a running one first, then an enabled one, then any
    installed."""
    if not isinstance(snapshot.boot.units, Seen):
        return None
    names = kubelet_units(settings)
    installed = [u for u in snapshot.boot.units.value if u.name in names and u.load == "loaded"]
    rank = {"active": 0, "reloading": 0, "activating": 1}
    return min(
        installed,
        default=None,
        key=lambda u: (
            rank.get(u.active, 2),
            not u.file_state.startswith("enabled"),
            names.index(u.name),
        ),
    )


def is_active(snapshot: Snapshot, settings: Settings) -> bool | None:
    """None where systemd was not read."""
    if not isinstance(snapshot.boot.units, Seen):
        return None
    unit = find_unit(snapshot, settings)
    return unit is not None and unit.is_active


def findings(snapshot: Snapshot, settings: Settings, short: bool = False) -> tuple[Finding, ...]:
    """`short`: it does not list every GPU."""
    return (
        ()
        if settings.kubelet_unit == "none"
        else (*_unit(snapshot, settings), *_socket(snapshot, settings, short))
    )


def _socket(snapshot: Snapshot, settings: Settings, short: bool) -> tuple[Finding, ...]:
    """What has registered before goes on without that socket."""
    if not has_no_socket(snapshot):
        return ()
    folder, again = settings.device_plugins_dir, "" if short else " anew"
    return (
        Finding(
            Link.KUBELET,
            Condition.KUBELET_SOCKET,
            Verdict.FAILS,
            f"the kubelet answers, and {folder} holds no kubelet.sock: no "
            f"plugin can register{again}",
            Reason.KUBELET_SOCKET_MISSING,
            blocks=short,
            next_step=f"ls -la {folder}; journalctl -b -u kubelet | grep -i 'device plugin'",
        ),
    )


def _unit(snapshot: Snapshot, settings: Settings) -> tuple[Finding, ...]:
    if isinstance(snapshot.boot.units, Refusal):
        return (
            Finding(
                Link.KUBELET,
                Condition.KUBELET_ACTIVE,
                Verdict.UNKNOWN,
                f"systemd was not read ({snapshot.boot.units})",
                Reason.SYSTEMD_UNREADABLE,
                missing=("the kubelet's unit",),
                blocks=False,
                next_step="systemctl status dbus",
            ),
        )
    unit = find_unit(snapshot, settings)
    if unit is None:
        heard = (
            ", and a kubelet answers: no unit that we know"
            if isinstance(snapshot.kubelet.allocatable, Seen)
            else ""
        )
        return (
            Finding(
                Link.KUBELET,
                Condition.KUBELET_ACTIVE,
                Verdict.FAILS,
                f"no kubelet unit is installed{heard}",
                Reason.NO_KUBELET,
                blocks=False,
                heals=Heals.CONFIGURATION,
                next_step="[Kubelet] Unit= names it; Unit=none says that there is none",
            ),
        )
    found = [
        Finding(
            Link.KUBELET,
            Condition.KUBELET_ACTIVE,
            Verdict.HOLDS if unit.is_active else Verdict.FAILS,
            f"{unit.name} is {unit.active}",
            Reason.NONE if unit.is_active else Reason.KUBELET_INACTIVE,
            blocks=False,
            next_step="" if unit.is_active else f"systemctl status {unit.name}",
        )
    ]
    if isinstance(snapshot.kubelet.plugin_sockets, Seen):
        names = [
            e.name
            for e in snapshot.kubelet.plugin_sockets.value
            if e.kind == "socket" and e.name != "kubelet.sock"
        ]
        found.append(
            Finding(
                Link.SOCKET,
                Condition.PLUGIN_SOCKET,
                Verdict.HOLDS if names else Verdict.FAILS,
                f"sockets in {settings.device_plugins_dir}: {', '.join(names) or 'none'} (a "
                "hint: a dead plugin "
                "leaves its socket behind)",
                Reason.NONE if names else Reason.NO_PLUGIN_SOCKET,
                blocks=False,
            )
        )
    return tuple(found)


def registered(snapshot: Snapshot, settings: Settings, listed: Listing) -> Finding | None:
    """Does the kubelet list every GPU? Only its own word counts: log, socket file and checkpoint
    may lie."""
    unit = find_unit(snapshot, settings)
    if settings.kubelet_unit == "none":
        return None
    # Its API answers: there is one, whoever carries it (rke1 runs it in a container).
    if (
        unit is None
        and isinstance(snapshot.boot.units, Seen)
        and not isinstance(snapshot.kubelet.allocatable, Seen)
    ):
        return None
    if isinstance(snapshot.kubelet.allocatable, Refusal):
        return _registered(
            Verdict.UNKNOWN,
            f"the kubelet's pod-resources API gave no answer ({snapshot.kubelet.allocatable})",
            Reason.KUBELET_SILENT,
            next_step="journalctl -u kubelet -n 30; ss "
            "-xlp | grep pod-resources; [Kubelet] PodResourcesSocket=",
        )
    if (
        unit
        and unit.active_since is not None
        and snapshot.kubelet.allocatable.at < unit.active_since
    ):
        return _registered(
            Verdict.UNKNOWN,
            "the kubelet's last answer is older than the kubelet",
            Reason.KUBELET_RESTARTED,
        )
    if (
        listed.count == 0
        and not snapshot.plugin.plugins
        and isinstance(snapshot.plugin.dra_driver, Seen)
    ):
        return _registered(
            Verdict.HOLDS,
            f"GPUs are offered by DRA (container {snapshot.plugin.dra_driver.value}, driver "
            "gpu.nvidia.com): no resource is expected",
            Reason.NONE,
        )
    if listed.count == 0 and listed.is_host:
        return _registered(
            Verdict.HOLDS,
            "every GPU is shared out by the vGPU manager: no resource is expected",
            Reason.NONE,
        )
    return _judge(listed, settings)


def _judge(listed: Listing, settings: Settings) -> Finding:
    limits = listed.visible_devices.names
    told = (
        f" (the plugin was given {listed.seen_by_plugin} of {listed.shown} GPUs: {_some(limits)})"
        if limits is not None and listed.seen_by_plugin != listed.shown
        else ""
    )
    if listed.count == 0:
        if limits == ():
            return _registered(
                Verdict.FAILS,
                "the plugin was given no GPU (NVIDIA_VISIBLE_DEVICES=none)",
                Reason.NOTHING_GIVEN,
                next_step="give its container GPUs: NVIDIA_VISIBLE_DEVICES=all",
            )
        return _registered(
            Verdict.FAILS,
            f"the kubelet lists no {'/'.join(settings.resources)}{told}",
            Reason.NOT_REGISTERED,
            listed.missing,
        )
    because = f"the kubelet lists {_in_words(listed)}{told}"
    if listed.is_complete:
        return _registered(Verdict.HOLDS, because, Reason.NONE)
    if listed.is_stale:
        return _registered(
            Verdict.FAILS,
            f"{listed.gone} ({_some(listed.strangers)}){told}",
            Reason.STALE_DEVICES,
            listed.missing,
        )
    if not listed.visible_devices.is_known:
        return _registered(
            Verdict.UNKNOWN,
            f"{because}; what the plugin was given could not be read",
            Reason.PLUGIN_UNREAD,
            listed.missing,
        )
    return _registered(Verdict.FAILS, because, Reason.PARTLY_REGISTERED, listed.missing)


def _in_words(listed: Listing) -> str:
    """7 of 8 GPUs, not GPU-…; where it is not nvidia.com/gpu alone, each resource by its name."""
    if not listed.tells:
        return (
            f"{listed.count} of {listed.count} GPUs"
            if listed.shown is None
            else f"{listed.count} ids"
        )
    offers = listed.offers
    only = len(offers) == 1 and offers[0].resource == GPUS
    words = []
    for offer in offers:
        parts = offer.expected or offer.listed
        kind = next(iter(sorted(p.kind for p in parts)))
        lacks = f", not {_some(offer.missing)}" if offer.missing else ""
        times = f", {offer.replicas} times each" if offer.replicas else ""
        uneven = f", fewer of {_some(offer.uneven)}" if offer.uneven else ""
        here = len(offer.listed & parts) + (len(listed.strangers) if only else 0)
        words.append(
            f"{here} of {max(len(parts), here)} {kind}s{'' if only else f' as {offer.resource}'}"
            f"{times}{uneven}{lacks}"
        )
    return "; ".join(words) + (f", not {_some(listed.unshown)}" if listed.unshown else "")


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _registered(
    verdict: Verdict,
    because: str,
    reason: Reason,
    missing: tuple[str, ...] = (),
    next_step: str = "crictl ps -a --name nvidia-device-plugin; crictl logs …",
) -> Finding:
    holds = verdict is Verdict.HOLDS
    return Finding(
        Link.REGISTRATION,
        Condition.PLUGIN_REGISTERED,
        verdict,
        because,
        reason,
        next_step="" if holds else next_step,
        missing=() if holds else missing or ("healthy devices in pod-resources",),
    )


def allocation(
    snapshot: Snapshot, listed: Listing, assessment: ProbeAssessment
) -> tuple[Finding, ...]:
    """Allocatable, and allocation will fail: the kubelet goes on listing what NVML has lost.
    NVIDIA's plugin asks all its GPUs at every allocation (GetPreferredAllocation), so that one lost
    GPU makes each of them fail."""
    broken = tuple(e for e in assessment.errors if e.index >= 0)
    if listed.count == 0 or listed.shown is None:
        return ()
    if listed.strangers:
        seen = f"the kubelet lists {_some(listed.strangers)}, which NVML does not show"
    elif broken and listed.visible_devices.names is None and listed.visible_devices.is_known:
        where = broken[0].bus_id or ", ".join(assessment.missing) or f"index {broken[0].index}"
        said = nvml_codes.name_of(broken[0].code)
        seen = f"the kubelet lists {listed.count} GPUs, and NVML says {said} for {where}"
    else:
        return ()
    if is_older(snapshot, listed):
        return (
            Finding(
                Link.REGISTRATION,
                Condition.ALLOCATION_WORKS,
                Verdict.UNKNOWN,
                f"{seen}; the list may be newer than the last probe",
                Reason.LIST_NEWER_THAN_PROBE,
            ),
        )
    step = (
        nvml_codes.next_step(broken[0].code)
        if broken
        else "dmesg | grep -E 'NVRM|Xid'; after a MIG change: "
        "kubectl rollout restart of the device plugin"
    )
    return (
        Finding(
            Link.REGISTRATION,
            Condition.ALLOCATION_WORKS,
            Verdict.FAILS,
            f"{seen}: allocatable, but allocation will fail",
            Reason.ALLOCATION_WILL_FAIL,
            missing=listed.strangers or assessment.missing,
            heals=Heals.NEVER,
            next_step=f"cordon the node; {step}",
        ),
    )


def listed_anew_at(snapshot: Snapshot, listed: Listing) -> float:
    """Boottime at which a list that contradicts the last probe may have come: a fresh probe must
    tell who is right. The kubelet rewrites its checkpoint whenever a plugin sends another list."""
    if not listed.strangers or not isinstance(snapshot.kubelet.plugin_sockets, Seen):
        return 0.0
    written = max(
        (e.mtime for e in snapshot.kubelet.plugin_sockets.value if e.name == CHECKPOINT),
        default=0.0,
    )
    at = written - (snapshot.clock.realtime - snapshot.clock.boottime)
    return (
        at if at <= snapshot.clock.boottime else 0.0
    )  # a stamp that lies in the future says nothing


def is_older(snapshot: Snapshot, listed: Listing) -> bool:
    """The last probe may be older than a list that contradicts it."""
    report = (
        snapshot.hardware.probe.value.last if isinstance(snapshot.hardware.probe, Seen) else None
    )
    return report is not None and listed_anew_at(snapshot, listed) > report.started_at


def repair_facts(
    snapshot: Snapshot, settings: Settings, fault: Fault | None, listed: Listing
) -> RepairFacts:
    """What the mender may know of this look; `may_act` only where the kubelet itself answered in
    it."""
    unit, offset = find_unit(snapshot, settings), snapshot.clock.realtime - snapshot.clock.boottime
    answered = (
        isinstance(snapshot.kubelet.allocatable, Seen)
        and unit is not None
        and unit.is_active
        and (unit.active_since is None or snapshot.kubelet.allocatable.at >= unit.active_since)
    )
    # Whether a plugin could register at all is its folder's to say; where it was not read, none is
    # ended on a guess.
    folder = snapshot.kubelet.plugin_sockets
    can_tell = isinstance(folder, Seen) or folder.is_missing
    return RepairFacts(
        fault=fault,
        may_act=answered and can_tell and not is_older(snapshot, listed),
        listed=0 if listed.is_stale else listed.count,
        kubelet_since=unit.active_since or 0.0 if unit else 0.0,
        kubelet_invocation=unit.invocation_id if unit else "",
        offset=offset,
        boot_id=snapshot.boot.boot_id,
        entries=ledger.by_this_clock(
            snapshot.plugin.ledger.value_or(()), snapshot.boot.boot_id, offset
        ),
        ledger_problem=""
        if isinstance(snapshot.plugin.ledger, Seen)
        else str(snapshot.plugin.ledger),
    )
