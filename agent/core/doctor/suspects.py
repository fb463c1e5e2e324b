"""Known faults: small rules in one place, pure. docs/faults is written from them
(tests/tools/fault_pages.py)."""

from __future__ import annotations

from ...model.diagnostics import NO_DIAGNOSTICS, DiagnosticData
from ...model.finding import Diagnosis
from ...model.snapshot import Snapshot
from ...model.suspect import Strength, Suspect
from ..access import faults as access
from ..common.known_fault import Evidence, KnownFault, Mark
from ..gpu import faults as hardware
from ..kubelet import faults as kubelet
from ..plugin import faults as plugin
from ..plugin import pod_faults as pod
from ..plugin.candidates import short_id

FAULTS: tuple[KnownFault, ...] = tuple(
    sorted(
        (*hardware.FAULTS, *access.FAULTS, *plugin.FAULTS, *pod.FAULTS, *kubelet.FAULTS),
        key=lambda f: f.link,
    )
)


def suspects(
    snapshot: Snapshot, diagnosis: Diagnosis, diagnostics: DiagnosticData = NO_DIAGNOSTICS
) -> tuple[Suspect, ...]:
    """Every known fault that this look shows, those that were confirmed first, then by link."""
    evidence = Evidence(snapshot, diagnosis, diagnostics)
    found = [_suspect(fault, mark, evidence) for fault in FAULTS if (mark := fault.judge(evidence))]
    return tuple(sorted(found, key=lambda s: (s.strength is not Strength.CONFIRMED, s.link)))


def _suspect(fault: KnownFault, mark: Mark, evidence: Evidence) -> Suspect:
    sight, unit = evidence.plugin, evidence.plugin_unit
    container, service = (
        short_id(sight.container) if sight else "CONTAINER",
        unit.name if unit else "UNIT",
    )

    def filled(words: str) -> str:
        if unit:  # what is said of a container is done to its unit
            words = words.replace(plugin.REBUILD, plugin.RESTART).replace(
                plugin.AGAIN, "restart its unit"
            )
        return words.replace("{plugin}", container).replace("{unit}", service)

    return Suspect(
        fault.id,
        fault.link,
        fault.title,
        Strength.CONFIRMED if mark.is_confirmed else Strength.CONSISTENT,
        mark.seen,
        "" if mark.is_confirmed else fault.decide,
        "" if mark.is_confirmed else filled(fault.capture),
        filled(fault.remedy),
        filled(fault.do),
        fault.is_not,
        fault.source,
        fault.is_cause,
    )
