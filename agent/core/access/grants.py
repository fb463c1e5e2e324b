"""What a scope's device list must be given, so that its container loses nothing at a daemon-reload,
or gets back what it lost. Pure; docs/design.md §6, docs/access.md.

Every addition makes systemd put a device program of its own beside those that are there, and all
must allow. So one call names *every* device number, of any vendor, that the container may use now
and the list lacks, with every right it has; a short list would take the rest away at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...model.access import CurrentAccess, Device, Driver, Entitlement, GpuContainer, ReloadRisk
from ...model.actions import ScopeGrant
from ...model.reading import Seen
from .device_list import ANY, Number, entry_of, grants, rights_of

Rights = Mapping[Number, frozenset[str]]
OWN_CLAIMS = frozenset({Entitlement.ALLOCATED, Entitlement.SEEN, Entitlement.SPEC})
"""What is given back: allocated by the kubelet, seen allowed before, or ordered by the runtime's
own spec."""
AGAIN_S = 60.0
"what could not be told, or did not take, is tried again after so long"
EVERYTHING = (("c", ANY, ANY), ("b", ANY, ANY))


@dataclass(frozen=True, slots=True)
class Verified:
    """What an addition came to."""

    lost: tuple[Number, ...]
    "allowed before, and now not, or with fewer rights"
    missing: tuple[Number, ...]
    "should have been given back, and is still denied"


def guarded(holders: Iterable[GpuContainer]) -> tuple[ScopeGrant, ...]:
    """The containers whose scope may be added to, whether or not anything is to be done now.

    Only a scope that is named after the container, with a policy that restricts and a list that is
    not empty. "auto" is a privileged container or somebody's service: naming one device there would
    take all others away.
    """
    found = []
    for h in holders:
        if (
            h.driver is not Driver.SYSTEMD
            or not h.unit.endswith(".scope")
            or h.process is None
            or h.all_devices
        ):
            continue
        if not isinstance(h.scope, Seen) or not may_add(h.scope.value.policy, h.scope.value.allow):
            continue
        give = tuple((d.device, d.name) for d in h.devices if OWN_CLAIMS & set(d.claims))
        found.append(
            ScopeGrant(
                h.unit,
                h.id,
                h.process.pid,
                h.process.started,
                f"{h.namespace}/{h.pod} {h.name}",
                give,
            )
        )
    return tuple(found)


def exposed(holders: Iterable[GpuContainer]) -> tuple[ScopeGrant, ...]:
    """Of those, the ones that a reload may take something from: where the list names everything, it
    cannot."""
    return guarded(h for h in holders if any(d.risk is not ReloadRisk.NO for d in h.devices))


def may_add(policy: str, allow: Sequence[tuple[str, str]]) -> bool:
    return policy in ("strict", "closed") and bool(allow)


def due(
    holders: Iterable[GpuContainer], heal: bool, prevent: bool, now: float
) -> tuple[ScopeGrant, ...]:
    """Of those, the ones that lost something now (heal), or lose it at the next reload
    (prevent)."""
    holders = tuple(holders)
    wanting = {
        h.id
        for h in holders
        if not _in_vain(h, now)
        and (
            (
                heal
                and any(
                    d.access is CurrentAccess.DENIED and OWN_CLAIMS & set(d.claims)
                    for d in h.devices
                )
            )
            or (
                prevent
                and any(
                    d.access is CurrentAccess.ALLOWED and d.risk is ReloadRisk.YES
                    for d in h.devices
                )
            )
        )
    }
    return tuple(a for a in guarded(holders) if a.container_id in wanting)


def _in_vain(holder: GpuContainer, now: float) -> bool:
    """It was tried under the rules that govern it still, and did not take."""
    last = holder.added
    if last is None or (last.named and not (last.problem or last.still_denied)):
        return False
    same = holder.process is not None and bool(last.rules) and last.rules == holder.process.rules
    return same or now - last.at < AGAIN_S


def entries(
    policy: str,
    allow: Sequence[tuple[str, str]],
    now: Rights,
    give: Iterable[Device],
    majors: Mapping[str, int],
) -> tuple[tuple[str, str], ...]:
    """What one call must name: all that may be used now and the list lacks, and what is to be given
    back.

    An entry replaces one of the same path, so it carries the rights of that one as well.
    """
    granted = grants(policy, allow, majors)
    wanted: dict[Number, frozenset[str]] = dict(now)
    for device in give:
        number = (device.kind, device.major, device.minor)
        wanted[number] = rights_of(now, number) | {"r", "w"}
    listed = dict(allow)
    found = []
    for number, rights in sorted(wanted.items()):
        if rights - rights_of(granted, number):
            path = entry_of(number)
            found.append(
                (path, "".join(r for r in "rwm" if r in rights or r in listed.get(path, "")))
            )
    return tuple(found)


def verify(before: Rights, after: Rights, give: Iterable[Device]) -> Verified:
    """Compare two sweeps of the same container."""
    lost = tuple(
        number for number, rights in sorted(before.items()) if rights - rights_of(after, number)
    )
    numbers = [(d.kind, d.major, d.minor) for d in give]
    return Verified(lost, tuple(n for n in numbers if not {"r", "w"} <= rights_of(after, n)))


def may_all(now: Rights) -> bool:
    """It may open everything: nothing is named for it."""
    return any({"r", "w"} & now.get(number, frozenset()) for number in EVERYTHING)
