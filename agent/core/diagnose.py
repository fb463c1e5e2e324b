"""The rules: one small function a condition, grouped by link. diagnose() puts them in the chain's
order."""

from __future__ import annotations

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
from .gpu.unhealable import disturbance
from .gpu.unhealable import findings as of_holding
from .kubelet import findings as kubelet
from .kubelet import node_findings as node_object
from .plugin import findings as plugin
from .plugin import launch_findings as launch
from .plugin import mig
from .plugin.candidates import effective
from .plugin.resources import listing


def diagnose(snapshot: Snapshot, settings: Settings) -> Diagnosis:
    """What this snapshot means. The same for a live node, a tape and a simulated world."""
    settings = effective(settings, snapshot.plugin.plugins)
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
    disturbed = disturbance(
        snapshot,
        settings,
        gpus,
        assessment,
        shown,
        max(driver.disturbed_at(snapshot), kubelet.listed_anew_at(snapshot, listed)),
    )
    boot, allocatable = snapshot.boot, snapshot.kubelet.allocatable
    probe = snapshot.hardware.probe.value_or(ProbeState())
    return Diagnosis(
        findings=tuple(sorted(shown, key=lambda f: f.link)),
        scope=gpus.scope,
        scope_because=gpus.because,
        expected=assessment.expected,
        may_probe=driver.is_live(snapshot),
        report=probe.last,
        probe_busy=probe.running_since is not None or probe.remains is not None,
        fingerprint=assessment.fingerprint,
        mig_instances=" ".join(("mig", *snapshot.hardware.mig_instances.value))
        if isinstance(snapshot.hardware.mig_instances, Seen)
        else "",
        disturbed_at=disturbed.at,
        disturbed_by=disturbed.by,
        driver_loaded_at=disturbed.driver_loaded_at,
        held=disturbed.held,
        fabric=disturbed.fabric,
        rests_until=disturbed.rests_until,
        kubelet_active=kubelet.is_active(snapshot, settings),
        paused=paused,
        released_before=boot.released.value.reason if isinstance(boot.released, Seen) else "",
        waiting_since=boot.waiting.value.at if isinstance(boot.waiting, Seen) else None,
        control_plane=snapshot.kubelet.control_plane,
        learned=boot.learned.value_or(()),
        registered=registered,
        registered_at=allocatable.at if isinstance(allocatable, Seen) else 0.0,
        repair_facts=kubelet.repair_facts(snapshot, settings, fault, listed)
        if registered
        else None,
        gpu_containers=held,
        allow=access.device_lists(of, settings, held),
        guarded=access.guarded(of, settings, held),
        access_check=access.check(of, held),
        access_due=access.due_at(of, held, driver.disturbed_at(snapshot)),
        additive=device_nodes.additive(snapshot, settings, gpus, assessment)
        + driver.additive(snapshot, settings, gpus),
        refresh=toolkit.refresh(snapshot, cdi),
        launch=launch.wanted(snapshot, settings, kubelet.is_active(snapshot, settings)),
    )
