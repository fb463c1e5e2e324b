"""Every setting: its default, its unit, and why the default is what it is.

A setting is a field of Settings; its section and key in gpu-gate.conf(5) and its sentence are the
field's metadata, so that `gpu-gate config`, the parser and the manual cannot tell different
stories.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


def _key(section: str, key: str, default: Any, why: str) -> Any:
    return field(default=default, metadata={"section": section, "key": key, "why": why})


@dataclass(frozen=True, slots=True)
class Settings:
    """The effective settings. Spans are seconds."""

    expected_gpus: tuple[str, ...] = _key(
        "Gate",
        "ExpectedGPUs",
        (),
        "a number, or GPU UUIDs; empty: the GPUs on PCI that are not given to another driver",
    )
    exclude_gpus: tuple[str, ...] = _key(
        "Gate", "ExcludeGPUs", (), "PCI bus ids that are not for containers (a display card)"
    )
    stable_probes: int = _key(
        "Gate", "StableProbes", 3, "fresh probes in a row that must see the same, complete set"
    )
    stable_interval_s: float = _key(
        "Gate", "StableIntervalSec", 1.0, "between the starts of two probes"
    )
    deadline_s: float = _key(
        "Gate",
        "DeadlineSec",
        180.0,
        "below kubeadm's 4 minutes for the kubelet and the 5 minutes after which pods are evicted",
    )
    on_deadline: str = _key(
        "Gate",
        "OnDeadline",
        "open",
        "open: the kubelet starts and the node is not ready; hold: it goes on waiting, up to "
        "HoldSec",
    )
    hold_s: float = _key(
        "Gate", "HoldSec", 1800.0, "the longest a kubelet is ever held; at most 30 minutes"
    )
    control_plane_deadline_s: float = _key(
        "Gate",
        "ControlPlaneDeadlineSec",
        20.0,
        "caps DeadlineSec where a control plane runs as static pods: its kubelet must not wait "
        "for GPUs",
    )
    fabric: str = _key(
        "Gate",
        "Fabric",
        "prefer",
        "of GPUs with NVSwitch. prefer: the gate waits FabricWithinSec for it, then opens and "
        "warns; require: no GPU "
        "work without it; ignore. In Progress is the resting state where NVSwitches are shared",
    )
    fabric_within_s: float = _key(
        "Gate",
        "FabricWithinSec",
        60.0,
        "the fabric manager takes some seconds after the GPUs are up",
    )
    pause_while: tuple[str, ...] = _key(
        "Gate",
        "PauseWhile",
        ("nvidia-mig-manager.service",),
        "no probe and no repair while one of these is starting: a oneshot that changes MIG or "
        "resets GPUs fails "
        "where somebody holds a GPU",
    )
    probe_timeout_s: float = _key(
        "Probe",
        "TimeoutSec",
        60.0,
        "NVML may take 1-3 s a GPU without persistence (NVIDIA, driver-persistence); 8 GPUs on "
        "a busy node 45 s",
    )
    probe_interval_s: float = _key(
        "Probe",
        "IntervalSec",
        600.0,
        "between probes of an open gate when nothing happened: without persistence each one "
        "wakes every GPU",
    )
    driver_root: str = _key(
        "Probe",
        "DriverRoot",
        "",
        "where the driver's libraries are; empty: looked up in /, /run/nvidia/driver, "
        "/home/kubernetes/bin/nvidia",
    )
    load_driver: str = _key(
        "Driver",
        "Load",
        "no",
        "auto: modprobe -b nvidia when the module is installed but not loaded",
    )
    additive: bool = _key(
        "Driver", "MakeNodes", True, "add missing /dev/char links and control device nodes"
    )
    kubelet_unit: str = _key(
        "Kubelet", "Unit", "", "empty: found among the known ones; none: this host runs no kubelet"
    )
    resources: tuple[str, ...] = _key(
        "Kubelet",
        "Resources",
        (),
        "patterns of the resource names that the device plugin registers; empty: those of the "
        "plugin that is found, "
        "nvidia.com/* of NVIDIA's and of most",
    )
    pod_resources_socket: str = _key(
        "Kubelet",
        "PodResourcesSocket",
        "",
        "follows the kubelet's --root-dir; empty: the one that is there, "
        "/var/lib/kubelet/pod-resources/kubelet.sock "
        "but for k0s and microk8s",
    )
    device_plugins_dir: str = _key(
        "Kubelet",
        "DevicePluginsDir",
        "/var/lib/kubelet/device-plugins",
        "fixed in the kubelet, whatever its --root-dir (kubernetes pkg/kubelet/cm/devicemanager)",
    )
    runtime_socket: str = _key(
        "Plugin",
        "RuntimeSocket",
        "",
        "the CRI endpoint; empty: of the known ones the first that lists a pod, this kubelet's "
        "own first",
    )
    plugin_containers: tuple[str, ...] = _key(
        "Plugin",
        "Containers",
        (),
        "names of the device plugin's container, as patterns: then nothing else is it; empty: "
        "found by pod's labels, "
        "image or name (docs/plugins.md)",
    )
    plugin_images: tuple[str, ...] = _key(
        "Plugin", "Images", (), "patterns of its image, beside or instead of Containers="
    )
    plugin_unit: str = _key(
        "Plugin",
        "Unit",
        "",
        "the device plugin's systemd unit, where it is no container; empty: a known one "
        "(Bottlerocket, AKS) that "
        "runs; none: it is no unit",
    )
    launch: str = _key(
        "Plugin",
        "Launch",
        "none",
        "none: the plugin is started by others; unit: [Plugin] Unit= is started once the gate "
        "is open; manifest: "
        "LaunchManifest= is then given to the kubelet as a static pod, and taken away at the "
        "next boot",
    )
    launch_manifest: str = _key(
        "Plugin",
        "LaunchManifest",
        "/etc/gpu-gate/plugin.yaml",
        "the static pod's manifest, for Launch=manifest",
    )
    manifest_dir: str = _key(
        "Plugin",
        "ManifestDir",
        "",
        "the kubelet's staticPodPath; empty: found by the node's layout",
    )
    repair: str = _key(
        "Plugin",
        "Repair",
        "yes",
        "yes: a plugin that did not register is started afresh; report: it is only said what "
        "would be done",
    )
    repair_partial: bool = _key(
        "Plugin",
        "RepairPartial",
        False,
        "also where the kubelet lists some: with the registry away, imagePullPolicy: Always "
        "turns 7 into 0",
    )
    register_within_s: float = _key(
        "Plugin",
        "RegisterWithinSec",
        30.0,
        "a plugin whose log shows no failure is given so long after its own, the kubelet's and "
        "NVML's start; "
        "the slowest that was seen took 3 s, on a busy node 15",
    )
    verify_within_s: float = _key(
        "Plugin",
        "VerifyWithinSec",
        60.0,
        "after a repair the kubelet must list the GPUs within this",
    )
    repairs_per_hour: int = _key("Plugin", "RepairsPerHour", 3, "disruptive actions in one hour")
    repairs_per_boot: int = _key("Plugin", "RepairsPerBoot", 6, "disruptive actions in one boot")
    prevent: str = _key(
        "Access",
        "Prevent",
        "on",
        "on: what a container may open is named in its scope's DeviceAllow= before a "
        "daemon-reload can take it away; "
        "report: it is only said who would lose; off: not even that",
    )
    heal: bool = _key(
        "Access",
        "Heal",
        True,
        "what a running container has lost is given back in place, by the same call",
    )
    strict_access: bool = _key(
        "Access",
        "StrictAccess",
        False,
        "yes: the node is not ready while a container may not open the GPUs it was given, or "
        "is older than the "
        "loaded driver; no: it is only said, since one container's loss says nothing about the "
        "next one's start",
    )
    listen: str = _key(
        "Http",
        "Listen",
        "127.0.0.1:9477",
        "address:port of /healthz, /readyz, /status; empty: none",
    )
    node_kubeconfig: str = _key(
        "Node",
        "Kubeconfig",
        "/etc/gpu-gate/node.kubeconfig",
        "the credential of gpu-gate-node.service, the one unit that reads this section",
    )
    node_name: str = _key(
        "Node", "Name", "", "of the Node object; empty: the host's name in small letters"
    )
    node_condition: str = _key(
        "Node", "Condition", "GpuReady", "the Node condition that is kept; empty: none"
    )
    node_label: str = _key(
        "Node",
        "Label",
        "gpu-gate.io/ready",
        "set to true while GPU work may start, else absent; empty: none",
    )
    node_taint: str = _key(
        "Node",
        "StartupTaint",
        "",
        "key of the taint that is removed when GPU work may start and put back when it may "
        "not; empty: none",
    )
    node_ready_for_s: float = _key(
        "Node",
        "ReadyForSec",
        5.0,
        "ready without a break before the barrier opens: a flapping link stays outside",
    )
    node_withdraw_after_s: float = _key(
        "Node",
        "WithdrawAfterSec",
        20.0,
        "how long the last word stands while the agent restarts or does not know; a broken "
        "link closes at once",
    )
    prometheus: str = _key(
        "Cluster",
        "Prometheus",
        "",
        "Prometheus or VictoriaMetrics, for gpu-gate doctor --cluster alone",
    )
    alertmanager: str = _key("Cluster", "Alertmanager", "", "Alertmanager, for the same")
    n9e: str = _key("Cluster", "N9e", "", "Nightingale, where it evaluates the alerts itself")
    n9e_token_file: str = _key(
        "Cluster", "N9eTokenFile", "", "a file with a user's token for Nightingale"
    )
    alert_names: tuple[str, ...] = _key(
        "Cluster",
        "Alerts",
        ("*gpu*", "*Gpu*", "*GPU*"),
        "patterns of the names of alerts about GPUs",
    )
    heartbeat_s: float = _key(
        "Agent",
        "HeartbeatSec",
        30.0,
        "look again when nothing happened; the watchdog (90 s) needs a cycle well within it",
    )
    revalidate_s: float = _key(
        "Agent",
        "RevalidateSec",
        15.0,
        "how long the last verdict stands while a reload or restart is looked into",
    )
