"""Link 8, where gpu-gate launches the plugin itself (Launch=): once in a boot, and never against
its owner.

What an admin stopped or removed in this boot stays so: the mark `launched` says that it was
launched.
"""

from __future__ import annotations

from ...model.actions import LaunchUnit, PlaceManifest
from ...model.condition import Condition, Link
from ...model.finding import Finding, Scope, Verdict
from ...model.reading import Refusal, Seen
from ...model.reason import Reason
from ...model.settings import Settings
from ...model.snapshot import Snapshot, Unit
from ..common import paths
from ..common.layouts import manifest_folders
from ..gpu.inventory import GpuInventory


def wanted(
    snapshot: Snapshot, settings: Settings, kubelet_active: bool | None
) -> LaunchUnit | PlaceManifest | None:
    """How the plugin is launched once the gate is open; None where it was, where nobody asked for
    it, or where it cannot be known whether it was."""
    if settings.launch == "none" or not (
        isinstance(snapshot.boot.launched, Refusal) and snapshot.boot.launched.is_missing
    ):
        return None
    if settings.launch == "manifest":
        target = f"{snapshot.kubelet.manifest_dir}/{paths.MANIFEST_NAME}"
        return (
            PlaceManifest(settings.launch_manifest, target)
            if snapshot.kubelet.manifest_dir
            else None
        )
    unit = _unit(snapshot, settings)
    if unit is None or unit.load != "loaded" or unit.active == "failed":
        return None
    # A plugin that starts before the kubelet's socket is there ends, and systemd's start limit with
    # it.
    return LaunchUnit(unit.name) if kubelet_active or settings.kubelet_unit == "none" else None


def findings(snapshot: Snapshot, settings: Settings, gpus: GpuInventory) -> tuple[Finding, ...]:
    if settings.launch == "none" or gpus.scope is Scope.NONE:
        return ()
    if isinstance(snapshot.boot.launched, Seen):
        return (
            Finding(
                Link.PLUGIN,
                Condition.PLUGIN_LAUNCHED,
                Verdict.HOLDS,
                f"launched in this boot: {snapshot.boot.launched.value.reason}",
                blocks=False,
            ),
        )
    if not snapshot.boot.launched.is_missing:
        return (
            Finding(
                Link.PLUGIN,
                Condition.PLUGIN_LAUNCHED,
                Verdict.UNKNOWN,
                f"{paths.RUN}/launched was not read ({snapshot.boot.launched})",
                Reason.LAUNCH_UNKNOWN,
                blocks=False,
                next_step=f"ls -l {paths.RUN}",
            ),
        )
    unit = _unit(snapshot, settings) if settings.launch == "unit" else None
    if unit is not None and (unit.load != "loaded" or unit.active == "failed"):
        state = unit.active if unit.load == "loaded" else unit.load
        return (
            Finding(
                Link.PLUGIN,
                Condition.PLUGIN_LAUNCHED,
                Verdict.FAILS,
                f"{unit.name} is {state}, and is left so",
                Reason.LAUNCH_REFUSED,
                blocks=False,
                next_step=f"systemctl status {unit.name}; systemctl reset-failed {unit.name}",
            ),
        )
    if settings.launch == "manifest" and not snapshot.kubelet.manifest_dir:
        return (
            Finding(
                Link.PLUGIN,
                Condition.PLUGIN_LAUNCHED,
                Verdict.FAILS,
                "no folder of static pods is there: " + ", ".join(manifest_folders(settings)),
                Reason.LAUNCH_REFUSED,
                blocks=False,
                next_step="[Plugin] ManifestDir= is the kubelet's staticPodPath",
            ),
        )
    return (
        Finding(
            Link.PLUGIN,
            Condition.PLUGIN_LAUNCHED,
            Verdict.FAILS,
            f"not launched yet in this boot (Launch={settings.launch}, once the gate is open)",
            Reason.NOT_LAUNCHED,
            blocks=False,
        ),
    )


def _unit(snapshot: Snapshot, settings: Settings) -> Unit | None:
    units = snapshot.boot.units.value_or(())
    return next((u for u in units if u.name == settings.plugin_unit), None)
