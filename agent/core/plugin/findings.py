"""Link 8: the device plugin, and what is wrong with one that the kubelet does not list.

`fault` is the one place that names why a plugin did not register, and whether starting it afresh
may cure it.
"""

from __future__ import annotations

from dataclasses import replace

from ...model.condition import Condition, Link
from ...model.fault import Cure, Fault
from ...model.finding import Finding, Heals, Verdict
from ...model.reading import Refusal, Seen
from ...model.reason import Reason
from ...model.runtime import Container, ContainerState, PluginSight, Sandbox, SocketOwner
from ...model.settings import Settings
from ...model.snapshot import Snapshot, Unit
from ..gpu import kernel_events as kernel_log
from . import candidates as plugin
from . import process as plugin_process
from . import running
from .resources import Listing
from .running import REBUILD, STALE

OLDER = Reason.PLUGIN_OLDER_THAN_DRIVER
NOTHING = Listing()


def findings(snapshot: Snapshot, settings: Settings, fault: Fault | None) -> tuple[Finding, ...]:
    found = (
        _checkpoint(snapshot),
        _health(snapshot, settings, fault),
        _single(snapshot, settings, fault),
        _socket_owners(snapshot),
    )
    return tuple(finding for finding in found if finding is not None)


def _checkpoint(snapshot: Snapshot) -> Finding | None:
    """A hint: the checkpoint outlives plugin, kubelet and boot."""
    if isinstance(snapshot.kubelet.checkpoint, Refusal):
        if snapshot.kubelet.checkpoint.is_missing:
            return None
        return Finding(
            Link.SOCKET,
            Condition.CHECKPOINT,
            Verdict.UNKNOWN,
            f"kubelet_internal_checkpoint tells nothing (a hint; {snapshot.kubelet.checkpoint})",
            Reason.CHECKPOINT_UNREADABLE,
            blocks=False,
        )
    listed = snapshot.kubelet.checkpoint.value.items()
    names = [f"{n} {r}" for r, n in listed if n and r.startswith("nvidia.com/")]
    return Finding(
        Link.SOCKET,
        Condition.CHECKPOINT,
        Verdict.HOLDS if names else Verdict.FAILS,
        f"kubelet_internal_checkpoint names {', '.join(names) or 'no device'} (a hint: it outlives "
        "plugin, kubelet and boot)",
        Reason.NONE if names else Reason.CHECKPOINT_EMPTY,
        blocks=False,
    )


def _health(snapshot: Snapshot, settings: Settings, fault: Fault | None) -> Finding | None:
    if isinstance(snapshot.plugin.runtime, Refusal):
        where = f" at {snapshot.plugin.runtime_socket}" if snapshot.plugin.runtime_socket else ""
        return Finding(
            Link.PLUGIN,
            Condition.PLUGIN_HEALTHY,
            Verdict.UNKNOWN,
            f"the container runtime{where} gave no answer ({snapshot.plugin.runtime})",
            Reason.RUNTIME_SILENT,
            blocks=False,
            next_step="systemctl status containerd; crictl ps -a; [Plugin] RuntimeSocket=",
        )
    if fault is not None:
        is_persons = fault.cure is Cure.PERSON or fault.barred
        return Finding(
            Link.PLUGIN,
            Condition.PLUGIN_HEALTHY,
            Verdict.FAILS,
            fault.because,
            fault.reason,
            blocks=fault.access_denied,
            heals=Heals.CONFIGURATION if is_persons else Heals.SOON,
            next_step=fault.next_step,
        )
    if snapshot.plugin.plugins:
        return _described(snapshot.plugin.plugins[0])
    unit = plugin.unit(snapshot.boot.units, settings)
    if unit is None:
        return None
    because = f"{unit.name} is {unit.active}"
    return Finding(Link.PLUGIN, Condition.PLUGIN_HEALTHY, Verdict.HOLDS, because)


def _described(sight: PluginSight) -> Finding:
    unread, because = _unread(sight), _describe(sight)
    if not unread:
        return Finding(Link.PLUGIN, Condition.PLUGIN_HEALTHY, Verdict.HOLDS, because)
    return Finding(
        Link.PLUGIN,
        Condition.PLUGIN_HEALTHY,
        Verdict.UNKNOWN,
        f"{unread}; {because}",
        Reason.PLUGIN_UNREAD,
        blocks=False,
        next_step="systemctl status containerd; crictl ps -a",
    )


def _single(snapshot: Snapshot, settings: Settings, fault: Fault | None) -> Finding | None:
    if fault is not None and fault.reason is Reason.TWO_PLUGINS:
        return None
    rivals = _rivals(snapshot, settings)
    if rivals is None:
        return None
    return Finding(
        Link.PLUGIN,
        Condition.SINGLE_PLUGIN,
        Verdict.FAILS,
        f"{rivals.because}: who ends takes the resource away",
        rivals.reason,
        blocks=False,
        heals=Heals.CONFIGURATION,
        next_step=rivals.next_step,
    )


def _socket_owners(snapshot: Snapshot) -> Finding | None:
    owners = snapshot.plugin.socket_owners
    if not owners:
        return None
    wrong = any(plugin.is_anothers(o, s) for o in owners for s in snapshot.plugin.plugins)
    remedy = "[Plugin] Containers= or Unit= names the right one; remove the other"
    return Finding(
        Link.SOCKET,
        Condition.SOCKET_OWNER,
        Verdict.FAILS if wrong else Verdict.HOLDS,
        ", ".join(f"{o.socket}: {plugin.owner_name(snapshot, o)}, pid {o.pid}" for o in owners),
        Reason.ANOTHER_SERVES if wrong else Reason.NONE,
        blocks=False,
        next_step=remedy if wrong else "",
    )


def _unread(sight: PluginSight) -> str:
    """A plugin of which only the name is known is not a well one; "" where nothing is lacking."""
    for name, reading in (("status", sight.detail), ("log", sight.log)):
        if isinstance(reading, Refusal) and not reading.is_telling:
            return f"its {name} is not known ({reading})"
    return ""


def _describe(sight: PluginSight) -> str:
    log = plugin.log_of(sight)
    version = plugin.version(sight)
    said = f"; its log: {log.line}" if log and log.line else ""
    is_again = sight.container.attempt and sight.container.state is ContainerState.RUNNING
    again = f", at its attempt {sight.container.attempt + 1}" if is_again else ""
    return (
        f"{plugin.pod_name(sight)} {sight.container.name} {sight.container.id[:12]} is "
        f"{sight.container.state.value}"
        + (f", v{version[0]}.{version[1]}" if version else "")
        + again
        + said
    )


def fault(
    snapshot: Snapshot, settings: Settings, short: bool, listed: Listing = NOTHING
) -> Fault | None:
    """What is wrong with the plugin; None where the kubelet lists what it should, or nothing can be
    said."""
    if not isinstance(snapshot.plugin.runtime, Seen):
        return None
    found = plugin_process.timed(
        snapshot, _fault(snapshot, settings, listed) if short else _denied_while_listed(snapshot)
    )
    if found and short and found.cure in (Cure.FRESH_START, Cure.TIME) and has_no_socket(snapshot):
        return replace(
            found,
            cure=Cure.WAIT,
            because=f"{found.because}; without kubelet.sock no plugin can register",
        )
    return found


def has_no_socket(snapshot: Snapshot) -> bool:
    """A kubelet answers, and no plugin can come to it: it has not begun to listen, or somebody
    cleared its folder. One whose folder is not there may have another."""
    folder = snapshot.kubelet.plugin_sockets
    return (
        isinstance(snapshot.kubelet.allocatable, Seen)
        and isinstance(folder, Seen)
        and not any(e.name == "kubelet.sock" for e in folder.value)
    )


def _rivals(snapshot: Snapshot, settings: Settings) -> Fault | None:
    """More than one that looks like the plugin: only a person may choose."""
    unit, sights = _candidates(snapshot, settings)
    if len(sights) + (unit is not None) < 2:
        return None
    names = [f"{plugin.pod_name(s)} {s.container.id[:12]}" for s in sights] + (
        [unit.name] if unit else []
    )
    return Fault(
        Reason.TWO_PLUGINS,
        f"{len(names)} {'of unit and ' if unit else ''}containers look like the device "
        f"plugin: {', '.join(names)}",
        Cure.PERSON,
        f"[Plugin] {'Unit= or ' if unit else ''}Containers= names the right one; remove the other",
    )


def _candidates(
    snapshot: Snapshot, settings: Settings
) -> tuple[Unit | None, tuple[PluginSight, ...]]:
    """The owner's word wins: a unit he named is the plugin, whatever containers look like one."""
    unit = plugin.unit(snapshot.boot.units, settings)
    return unit, () if settings.plugin_unit not in (
        "",
        "none",
    ) and unit is not None else snapshot.plugin.plugins


def _fault(snapshot: Snapshot, settings: Settings, listed: Listing) -> Fault:
    unit, sights = _candidates(snapshot, settings)
    rivals = _rivals(snapshot, settings)
    if rivals is not None:
        return rivals
    if not sights:
        if unit or settings.plugin_unit not in ("", "none"):
            return _unit_fault(snapshot, unit, settings, listed)
        if isinstance(snapshot.plugin.runtime, Seen) and (
            pod := plugin.unmade(snapshot.plugin.runtime.value, settings)
        ):
            return _unmade(*pod)
        if unit := plugin.down(snapshot.boot.units, settings):
            return _unit_fault(snapshot, unit, settings, listed)
        unable = (
            f"; {', '.join(snapshot.plugin.not_plugins[:4])} looks like it, and was not given the "
            "kubelet's folder of "
            "sockets"
            if snapshot.plugin.not_plugins
            else ""
        )
        return Fault(
            Reason.NO_PLUGIN,
            f"no container of this node looks like the device plugin{unable}" + _served(snapshot),
            Cure.WAIT,
            "kubectl get pods -A -o wide | grep device-plugin; [Plugin] Containers=, Images=",
        )
    return _not_to_be_removed(snapshot, _container_fault(snapshot, sights[0], listed), sights[0])


def _unmade(pod: Sandbox, inside: tuple[Container, ...]) -> Fault:
    company = ", ".join(f"{c.name} is {c.state.value}" for c in inside)
    step = f"crictl logs {plugin.short_id(inside[-1])}" if inside else "kubectl describe that pod"
    return Fault(
        Reason.PLUGIN_POD_WAITS,
        f"{pod.namespace}/{pod.name} is here, and its plugin's container was not made: "
        + (f"in it {company}" if company else "nothing is in it"),
        Cure.WAIT,
        f"{step}; journalctl -u kubelet | grep StartContainer",
    )


def _denied_while_listed(snapshot: Snapshot) -> Fault | None:
    """The kubelet lists everything and the plugin lost its own access since: it goes on offering
    what it saw at its start, and each Allocate() fails (UnexpectedAdmissionError). SIGHUP would
    take the GPUs away."""
    sight = snapshot.plugin.plugins[0] if len(snapshot.plugin.plugins) == 1 else None
    if sight is None or not isinstance(sight.access, Seen) or sight.access.value.allowed:
        return None
    return _not_to_be_removed(snapshot, _container_fault(snapshot, sight, NOTHING), sight)


def _older_than_driver(snapshot: Snapshot, sight: PluginSight) -> Fault | None:
    """Begun before the module's last load: SIGHUP never helps such a one, no device node and no
    library comes into it."""
    began_at = plugin.began_at(snapshot, sight)
    older_s = kernel_log.loaded_at(snapshot) - began_at
    if began_at <= 0.0 or older_s <= 0.0:
        return None
    denied = isinstance(sight.access, Seen) and not sight.access.value.allowed
    return Fault(
        OLDER,
        f"{_describe(sight)}: created {older_s:.0f} s before the nvidia module was loaded, and "
        "given "
        "what was there then",
        Cure.FRESH_START,
        REBUILD,
        access_denied=denied,
        sight=sight,
    )


def _not_to_be_removed(snapshot: Snapshot, found: Fault, sight: PluginSight) -> Fault:
    """Whatever is wrong: where a removal could not help, or would make it worse, it is barred."""
    if found.cure not in (Cure.FRESH_START, Cure.TIME):
        return found
    other = next((o for o in snapshot.plugin.socket_owners if plugin.is_anothers(o, sight)), None)
    if other is not None:
        return _served_by(snapshot, found, other)
    if sight.halted or sight.unread:
        return plugin_process.halted(found, sight)
    if sight.restart_policy in plugin.ENDS_FOR_GOOD:
        return replace(
            found,
            reason=Reason.NEVER_STARTED_AGAIN,
            barred=True,
            because=f"{found.because}; its pod's "
            f"restartPolicy is {sight.restart_policy}: a container that is stopped does not "
            "come back",
            next_step="make it restartPolicy: Always, as in a DaemonSet, and create the pod again",
        )
    if sight.restart_policy == plugin.NOT_READ:
        return replace(
            found,
            barred=True,
            because=f"{found.because}; the manifest of its pod could not be read, and "
            "with restartPolicy: Never a container that is stopped would not come back",
            next_step="grep restartPolicy in its manifest; then crictl stop "
            f"{sight.container.id[:12]} "
            f"&& crictl rm {sight.container.id[:12]}",
        )
    return found


def _served_by(snapshot: Snapshot, found: Fault, other: SocketOwner) -> Fault:
    return replace(
        found,
        reason=Reason.ANOTHER_SERVES,
        barred=True,
        because=f"{found.because}; but {other.socket} is "
        f"served by {plugin.owner_name(snapshot, other)}, pid {other.pid}",
        next_step="[Plugin] Containers= or Unit= names the right one; remove the other",
    )


def _served(snapshot: Snapshot) -> str:
    """Who serves the plugin's socket, where nothing that we know does."""
    names = [
        f"{o.socket} is served by {plugin.owner_name(snapshot, o)}"
        for o in snapshot.plugin.socket_owners
    ]
    return "; " + ", ".join(names) if names else ""


def _unit_fault(
    snapshot: Snapshot, unit: Unit | None, settings: Settings, listed: Listing
) -> Fault:
    name = unit.name if unit else settings.plugin_unit
    if unit is None or not unit.is_active:
        return Fault(
            Reason.PLUGIN_UNIT_DOWN,
            f"{name} is {unit.active if unit else 'unknown'}",
            Cure.WAIT,
            f"systemctl status {name}",
            unit=name,
        )
    if unit.active_since is not None and unit.active_since < kernel_log.loaded_at(snapshot):
        return Fault(
            OLDER,
            f"{name} was started before the nvidia module was loaded",
            Cure.FRESH_START,
            f"systemctl restart {name}",
            unit=name,
            invocation=unit.invocation_id,
        )
    because = listed.gone or "the kubelet lists no GPU of it"
    found = Fault(
        STALE if listed.gone else Reason.NOT_REGISTERED,
        f"{name} is active and {because}",
        Cure.FRESH_START if listed.is_stale else Cure.TIME,
        f"systemctl restart {name}",
        unit=name,
        invocation=unit.invocation_id,
    )
    other = next(
        (o for o in snapshot.plugin.socket_owners if plugin.is_not_of_unit(snapshot, o, name)), None
    )
    return found if other is None else _served_by(snapshot, found, other)


def _container_fault(snapshot: Snapshot, sight: PluginSight, listed: Listing) -> Fault:
    who = _describe(sight)
    state = sight.container.state
    if state is ContainerState.CREATED:
        return Fault(
            Reason.PLUGIN_NEVER_STARTED,
            f"{who}: created, and never started",
            Cure.TIME,
            "crictl rm makes the kubelet build it again",
            sight=sight,
        )
    if state is ContainerState.UNKNOWN:
        return Fault(
            Reason.PLUGIN_UNREAD,
            f"{who}: the runtime does not know its state",
            Cure.WAIT,
            f"crictl inspect {sight.container.id[:12]}; systemctl status containerd",
            sight=sight,
        )
    if state is not ContainerState.RUNNING:
        return _ended(sight, who)
    if not isinstance(sight.detail, Seen):
        return Fault(
            Reason.PLUGIN_UNREAD,
            f"{who}: its status could not be read ({sight.detail})",
            Cure.WAIT,
            "systemctl status containerd",
            sight=sight,
        )
    return _older_than_driver(snapshot, sight) or running.fault(snapshot, sight, who, listed)


def _ended(sight: PluginSight, who: str) -> Fault:
    """The kubelet's to start again. One that the runtime could not start has no words of its
    own."""
    detail = sight.detail.value_or(None)
    again = f" at its attempt {sight.container.attempt + 1}" if sight.container.attempt else ""
    if detail and plugin.never_began(detail):
        return Fault(
            Reason.PLUGIN_NEVER_STARTED,
            f"{who}: the runtime could not start it ({detail.reason or '?'}, exit "
            f"status {detail.exit_code}){again}; the kubelet tries again after its back-off",
            Cure.WAIT,
            f"crictl inspect {plugin.short_id(sight.container)} | grep message; journalctl -u "
            "kubelet | "
            "grep StartContainer",
            sight=sight,
        )
    log = plugin.log_of(sight)
    why = f" ({detail.reason})" if detail and detail.reason not in plugin.PLAIN_ENDS else ""
    words = f"; its last words: {log.last}" if log and log.last and log.last not in log.line else ""
    return Fault(
        Reason.PLUGIN_EXITED,
        f"{who}: exit status {detail.exit_code if detail else '?'}{why}{again}{words}; the "
        "kubelet starts it again after its back-off (10 s, doubled up to 300), which a removal "
        "does not "
        "shorten",
        Cure.WAIT,
        "crictl logs " + plugin.short_id(sight.container),
        sight=sight,
    )
