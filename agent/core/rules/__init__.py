"""The rules: one small function a condition, grouped by link. diagnose() puts them in the chain's order."""

from __future__ import annotations

from typing import Any

from ...model.finding import Diagnosis, Scope, Verdict
from ...model.reading import Seen
from ...model.scene import Scene
from ...model.settings import Settings
from ..holders import holders
from ..plugin import effective
from . import access, device_nodes, driver, kubelet, launch, node_object, nvml, pause, pci, plugin, toolkit


def diagnose(scene: Scene, settings: Settings) -> Diagnosis:
    """What this scene means. The same for a live node, a tape and a simulated world."""
    settings = effective(settings, scene.plugins)
    gpus = pci.sort_out(scene, settings)
    judged = nvml.judge(scene, settings, gpus)
    registered = kubelet.registered(scene, settings, judged) if gpus.scope is not Scope.NONE else None
    fault = plugin.fault(scene, settings, registered is not None and registered.verdict is Verdict.FAILS)
    cdi = toolkit.judge(scene, gpus, judged)
    paused = pause.find(scene, settings)
    held = holders(scene, settings)
    shown = (*pci.findings(scene, settings, gpus), *driver.findings(scene, gpus),
             *device_nodes.findings(scene, gpus, judged), *driver.service_findings(scene, gpus),
             *nvml.findings(scene, gpus, judged), *pause.findings(scene, paused), *toolkit.findings(scene, cdi),
             *kubelet.findings(scene, settings), *launch.findings(scene, settings, gpus),
             *access.findings(scene, settings, held),
             *((*plugin.findings(scene, fault), registered, *node_object.findings(scene, settings))
               if registered else ()))
    probe = scene.probe.value if isinstance(scene.probe, Seen) else None
    return Diagnosis(
        findings=tuple(sorted(shown, key=lambda f: f.link)),
        scope=gpus.scope,
        scope_because=gpus.because,
        expected=judged.expected,
        may_probe=driver.is_live(scene),
        report=probe.last if probe else None,
        probe_busy=bool(probe and (probe.running_since is not None or probe.remains)),
        fingerprint=judged.fingerprint,
        disturbed_at=driver.disturbed_at(scene),
        kubelet_active=kubelet.is_active(scene, settings),
        paused=paused,
        **_marks(scene),
        registered=registered,
        registered_at=scene.allocatable.at if isinstance(scene.allocatable, Seen) else 0.0,
        mending=kubelet.mending(scene, settings, fault) if registered else None,
        **access.parts(scene, settings, held),
        additive=device_nodes.additive(scene, settings, gpus, judged) + driver.additive(scene, settings, gpus),
        refresh=toolkit.refresh(scene, cdi),
        launch=launch.wanted(scene, settings, kubelet.is_active(scene, settings)),
    )


def _marks(scene: Scene) -> dict[str, Any]:
    """What earlier moments left behind."""
    return {
        "released_before": scene.released.value.reason if isinstance(scene.released, Seen) else "",
        "waiting_since": scene.waiting.value.at if isinstance(scene.waiting, Seen) else None,
        "control_plane": scene.control_plane,
        "learned": scene.learned.value if isinstance(scene.learned, Seen) else (),
    }
