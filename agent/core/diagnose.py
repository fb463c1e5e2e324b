"""The rules: one small function a condition, grouped by link. diagnose() puts them in the chain's
order."""

from __future__ import annotations

from typing import Any

from ..model.finding import Diagnosis, Scope, Verdict
from ..model.reading import Seen
from ..model.settings import Settings
from ..model.snapshot import ProbeState, Scene
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


def diagnose(scene: Scene, settings: Settings) -> Diagnosis:
    """What this scene means. The same for a live node, a tape and a simulated world."""
    settings = effective(settings, scene.plugins)
    gpus = pci.sort_out(scene, settings)
    judged = nvml.judge(scene, settings, gpus)
    listed = listing(scene, settings, judged.gpus)
    registered = (
        kubelet.registered(scene, settings, listed) if gpus.scope is not Scope.NONE else None
    )
    short = bool(registered and registered.verdict is Verdict.FAILS)
    fault = plugin.fault(scene, settings, short, listed)
    cdi, paused = toolkit.judge(scene, gpus, judged), pause.find(scene, settings)
    held = holders(of := containers.view(scene, settings))
    shown = (
        *pci.findings(scene, settings, gpus),
        *driver.findings(scene, gpus),
        *device_nodes.findings(scene, gpus, judged),
        *driver.service_findings(scene, gpus),
        *nvml.findings(scene, gpus, judged),
        *of_holding(scene, settings, gpus, judged),
        *pause.findings(scene, paused),
        *toolkit.findings(scene, cdi),
        *mig.findings(judged, listed),
        *kubelet.findings(scene, settings, short),
        *launch.findings(scene, settings, gpus),
        *access.findings(scene, settings, held),
        *(
            (
                *plugin.findings(scene, settings, fault),
                registered,
                *kubelet.allocation(scene, listed, judged),
                *node_object.findings(scene, settings),
            )
            if registered
            else ()
        ),
    )
    probe = scene.probe.value_or(ProbeState())
    return Diagnosis(
        findings=tuple(sorted(shown, key=lambda f: f.link)),
        scope=gpus.scope,
        scope_because=gpus.because,
        expected=judged.expected,
        may_probe=driver.is_live(scene),
        report=probe.last,
        probe_busy=probe.running_since is not None or probe.remains is not None,
        fingerprint=judged.fingerprint,
        mig_instances=" ".join(("mig", *scene.mig_instances.value))
        if isinstance(scene.mig_instances, Seen)
        else "",
        **held_parts(
            scene,
            settings,
            gpus,
            judged,
            shown,
            max(driver.disturbed_at(scene), kubelet.listed_anew_at(scene, listed)),
        ),
        kubelet_active=kubelet.is_active(scene, settings),
        paused=paused,
        **_marks(scene),
        registered=registered,
        registered_at=scene.allocatable.at if isinstance(scene.allocatable, Seen) else 0.0,
        mending=kubelet.mending(scene, settings, fault, listed) if registered else None,
        **access.parts(of, settings, held),
        additive=device_nodes.additive(scene, settings, gpus, judged)
        + driver.additive(scene, settings, gpus),
        refresh=toolkit.refresh(scene, cdi),
        launch=launch.wanted(scene, settings, kubelet.is_active(scene, settings)),
    )


def _marks(scene: Scene) -> dict[str, Any]:
    """What earlier moments left behind."""
    return {
        "released_before": scene.released.value.reason if isinstance(scene.released, Seen) else "",
        "waiting_since": scene.waiting.value.at if isinstance(scene.waiting, Seen) else None,
        "control_plane": scene.control_plane,
        "learned": scene.learned.value_or(()),
    }
