"""Every setting: its default, its unit, and why the default is what it is.

A setting is a field of Settings. Its section and key in gpu-gate.conf(5) and its sentence are the
field's metadata, so that `gpu-gate config`, the parser and the manual cannot differ.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


def _key(section: str, key: str, default: Any, why: str) -> Any:
    return field(default=default, metadata={"section": section, "key": key, "why": why})


@dataclass(frozen=True, slots=True)
class Settings:
    """The effective settings. Durations are in seconds."""

    expected_gpus: tuple[str, ...] = _key(
        "Gate",
        "ExpectedGPUs",
        (),
        "a number, or GPU UUIDs; empty: the GPUs on PCI that no other driver has",
    )
    exclude_gpus: tuple[str, ...] = _key(
        "Gate", "ExcludeGPUs", (), "PCI bus ids that are not for containers (a display card)"
    )
    stable_probes: int = _key(
        "Gate", "StableProbes", 3, "probes in a row that must see the same, complete set of GPUs"
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
        "open: the kubelet starts, and the node is not ready; hold: the kubelet waits on, up to "
        "HoldSec",
    )
    hold_s: float = _key(
        "Gate", "HoldSec", 1800.0, "the longest time that a kubelet waits; at most 30 minutes"
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
        "warns; require: no GPU work without it; ignore. In Progress is the normal state where "
        "NVSwitches are shared",
    )
    fabric_within_s: float = _key(
        "Gate",
        "FabricWithinSec",
        60.0,
        "the fabric manager needs some seconds after the GPUs are initialised",
    )
    pause_while: tuple[str, ...] = _key(
        "Gate",
        "PauseWhile",
        ("nvidia-mig-manager.service",),
        "no probe and no repair while one of these is starting: a oneshot that changes MIG or "
        "resets GPUs fails while a process has a GPU open",
    )
    probe_timeout_s: float = _key(
        "Probe",
        "TimeoutSec",
        60.0,
        "NVML may take 1-3 s for each GPU without persistence (NVIDIA, driver-persistence); 8 "
        "GPUs on a busy node 45 s",
    )
    probe_interval_s: float = _key(
        "Probe",
        "IntervalSec",
        600.0,
        "between probes of an open gate while nothing happens: without persistence each one "
        "initialises every GPU",
    )
    driver_root: str = _key(
        "Probe",
        "DriverRoot",
        "",
        "where the driver's libraries are; empty: searched in /, /run/nvidia/driver, "
        "/home/kubernetes/bin/nvidia",
    )
    load_driver: str = _key(
        "Driver",
        "Load",
        "no",
        "auto: modprobe -b nvidia when the module is installed but not loaded",
    )
    additive: bool = _key(
        "Driver", "MakeNodes", True, "create missing /dev/char links and control device nodes"
    )
    kubelet_unit: str = _key(
        "Kubelet", "Unit", "", "empty: one of the known units; none: this host runs no kubelet"
    )
    resources: tuple[str, ...] = _key(
        "Kubelet",
        "Resources",
        (),
        "patterns of the resource names that the device plugin registers; empty: those of the "
        "plugin that is found, nvidia.com/* for NVIDIA's and most others",
    )
    pod_resources_socket: str = _key(
        "Kubelet",
        "PodResourcesSocket",
        "",
        "follows the kubelet's --root-dir; empty: the one that exists, "
        "/var/lib/kubelet/pod-resources/kubelet.sock except with k0s and microk8s",
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
        "the CRI endpoint; empty: the first known one that lists a pod, beginning with this "
        "kubelet's own",
    )
    plugin_containers: tuple[str, ...] = _key(
        "Plugin",
        "Containers",
        (),
        "patterns of the name of the device plugin's container, which then must match; empty: "
        "found by labels of the pod, image or name (docs/plugins.md)",
    )
    plugin_images: tuple[str, ...] = _key(
        "Plugin", "Images", (), "patterns of its image, in addition to Containers= or instead"
    )
    plugin_unit: str = _key(
        "Plugin",
        "Unit",
        "",
        "the device plugin's systemd unit, where it is not a container; empty: a known one "
        "(Bottlerocket, AKS) that runs; none: it is not a unit",
    )
    launch: str = _key(
        "Plugin",
        "Launch",
        "none",
        "none: others start the plugin; unit: gpu-gate starts [Plugin] Unit= once the gate is "
        "open; manifest: it then places LaunchManifest= as a static pod, and removes it at the "
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
        "the kubelet's staticPodPath; empty: that of the node's layout",
    )
    repair: str = _key(
        "Plugin",
        "Repair",
        "yes",
        "yes: restart a plugin that did not register; report: only report what a repair would do",
    )
    repair_partial: bool = _key(
        "Plugin",
        "RepairPartial",
        False,
        "also where the kubelet lists some GPUs: if the image registry is down, imagePullPolicy: "
        "Always turns 7 into 0",
    )
    register_within_s: float = _key(
        "Plugin",
        "RegisterWithinSec",
        30.0,
        "how long a plugin without a failure in its log may take after its own, the kubelet's "
        "and NVML's start; the slowest one observed took 3 s, on a busy node 15",
    )
    verify_within_s: float = _key(
        "Plugin",
        "VerifyWithinSec",
        60.0,
        "after a repair the kubelet must list the GPUs within this time",
    )
    repairs_per_hour: int = _key("Plugin", "RepairsPerHour", 3, "disruptive actions in one hour")
    repairs_per_boot: int = _key("Plugin", "RepairsPerBoot", 6, "disruptive actions in one boot")
    prevent: str = _key(
        "Access",
        "Prevent",
        "on",
        "on: list what a container may open in DeviceAllow= of its scope, before a daemon-reload "
        "takes it away; report: only report which containers would lose it; off: neither",
    )
    heal: bool = _key(
        "Access",
        "Heal",
        True,
        "give a running container back what it lost, by the same call, without a restart",
    )
    strict_access: bool = _key(
        "Access",
        "StrictAccess",
        False,
        "yes: the node is not ready while a container may not open its GPUs, or is older than "
        "the loaded driver; no: only report it, because one container's loss does not affect "
        "the start of the next one",
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
        "the credential of gpu-gate-node.service, the only unit that reads this section",
    )
    node_name: str = _key(
        "Node", "Name", "", "of the Node object; empty: the host name in lower case"
    )
    node_condition: str = _key(
        "Node", "Condition", "GpuReady", "the Node condition to set; empty: none"
    )
    node_label: str = _key(
        "Node",
        "Label",
        "gpu-gate.io/ready",
        "true while GPU work may start, otherwise absent; empty: none",
    )
    node_taint: str = _key(
        "Node",
        "StartupTaint",
        "",
        "key of the taint to remove when GPU work may start, and to put back when it may not; "
        "empty: none",
    )
    node_ready_for_s: float = _key(
        "Node",
        "ReadyForSec",
        5.0,
        "how long the node must be ready before the barrier opens, so that it does not flap",
    )
    node_withdraw_after_s: float = _key(
        "Node",
        "WithdrawAfterSec",
        20.0,
        "how long the last status stays while the agent restarts or cannot tell; a broken link "
        "closes the barrier at once",
    )
    prometheus: str = _key(
        "Cluster",
        "Prometheus",
        "",
        "Prometheus or VictoriaMetrics, only for gpu-gate doctor --cluster",
    )
    alertmanager: str = _key(
        "Cluster", "Alertmanager", "", "Alertmanager, only for gpu-gate doctor --cluster"
    )
    n9e: str = _key("Cluster", "N9e", "", "Nightingale, if it evaluates the alerts itself")
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
        "a cycle when nothing happens; the watchdog (90 s) needs one well within that time",
    )
    revalidate_s: float = _key(
        "Agent",
        "RevalidateSec",
        15.0,
        "how long the last verdict stays while a reload or restart is checked",
    )
