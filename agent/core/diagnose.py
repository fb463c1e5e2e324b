"""The rules: one small function a condition, grouped by link. diagnose() puts them in the chain's
order."""

from __future__ import annotations

from typing import Any

from ..model.finding import Diagnosis, Scope, Verdict
from ..model.reading import Seen
from ..model.settings import Settings
from ..model.snapshot import ProbeState, Snapshot
from .access import containers
from .access import findings as access
from .access.holders import holders
from .cdi import findings as toolkit
from .gate import pause
from .gpu import device_nodes, driver, nvml, pci
from .gpu.unhealable import findings as of_holding
from .gpu.unhealable import parts as held_parts
from .kubelet import findings as kubelet
from .kubelet import node_findings as node_object
from .plugin import findings as plugin
from .plugin import launch_findings as launch
from .plugin import mig
from .plugin.candidates import effective
from .plugin.resources import listing


def diagnose(snapshot: Snapshot, settings: Settings) -> Diagnosis:
    """What this scene means. The same for a live node, a tape and a simulated world."""
    settings = effective(settings, snapshot.plugins)
    gpus = pci.classify_gpus(snapshot, settings)
    assessment = nvml.judge(snapshot, settings, gpus)
    listed = listing(snapshot, settings, assessment.gpus)
    registered = (
        kubelet.registered(snapshot, settings, listed) if gpus.scope is not Scope.NONE else None
    )
    short = bool(registered and registered.verdict is Verdict.FAILS)
    fault = plugin.fault(snapshot, settings, short, listed)
    cdi, paused = toolkit.judge(snapshot, gpus, assessment), pause.find(snapshot, settings)
    held = holders(of := containers.view(snapshot, settings))
    shown = (
        *pci.findings(snapshot, settings, gpus),
        *driver.findings(snapshot, gpus),
        *device_nodes.findings(snapshot, gpus, assessment),
        *driver.service_findings(snapshot, gpus),
        *nvml.findings(snapshot, gpus, assessment),
        *of_holding(snapshot, settings, gpus, assessment),
        *pause.findings(snapshot, paused),
        *toolkit.findings(snapshot, cdi),
        *mig.findings(assessment, listed),
        *kubelet.findings(snapshot, settings, short),
        *launch.findings(snapshot, settings, gpus),
        *access.findings(snapshot, settings, held),
        *(
            (
                *plugin.findings(snapshot, settings, fault),
                registered,
                *kubelet.allocation(snapshot, listed, assessment),
                *node_object.findings(snapshot, settings),
            )
            if registered
            else ()
        ),
    )
    probe = snapshot.probe.value_or(ProbeState())
    return Diagnosis(
        findings=tuple(sorted(shown, key=lambda f: f.link)),
        scope=gpus.scope,
        scope_because=gpus.because,
        expected=assessment.expected,
        may_probe=driver.is_live(snapshot),
        report=probe.last,
        probe_busy=probe.running_since is not None or probe.remains is not None,
        fingerprint=assessment.fingerprint,
        mig_instances=" ".join(("mig", *snapshot.mig_instances.value))
        if isinstance(snapshot.mig_instances, Seen)
        else "",
        **held_parts(
            snapshot,
            settings,
            gpus,
            assessment,
            shown,
            max(driver.disturbed_at(snapshot), kubelet.listed_anew_at(snapshot, listed)),
        ),
        kubelet_active=kubelet.is_active(snapshot, settings),
        paused=paused,
        **_marks(snapshot),
        registered=registered,
        registered_at=snapshot.allocatable.at if isinstance(snapshot.allocatable, Seen) else 0.0,
        repair_facts=kubelet.repair_facts(snapshot, settings, fault, listed)
        if registered
        else None,
        **access.parts(of, settings, held),
        additive=device_nodes.additive(snapshot, settings, gpus, assessment)
        + driver.additive(snapshot, settings, gpus),
        refresh=toolkit.refresh(snapshot, cdi),
        launch=launch.wanted(snapshot, settings, kubelet.is_active(snapshot, settings)),
    )


def _marks(snapshot: Snapshot) -> dict[str, Any]:
    """What earlier moments left behind."""
    return {
        "released_before": snapshot.released.value.reason
        if isinstance(snapshot.released, Seen)
        else "",
        "waiting_since": snapshot.waiting.value.at if isinstance(snapshot.waiting, Seen) else None,
        "control_plane": snapshot.control_plane,
        "learned": snapshot.learned.value_or(()),
    }
