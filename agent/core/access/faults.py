"""Links 6 and 12: how containers are given their GPUs, and how they lose them.

The border of evidence: only an observed loss of device access may be called the toolkit's cgroup
problem.
"""

from __future__ import annotations

import re

from ...model.access import Driver, GpuContainer, LossCause
from ...model.condition import Link
from ...model.diagnostics import JournalEvent
from ...model.reading import Seen
from ...model.reason import Reason
from ...model.runtime import PluginLogState
from ..common.known_fault import Evidence, Judge, KnownFault, Mark, cited, either, said, when
from ..plugin import candidates as plugin
from ..plugin import log as plugin_log

WORKED = (
    PluginLogState.REGISTERED,
    PluginLogState.SERVING,
    PluginLogState.UNHEALTHY,
    PluginLogState.UNWATCHED,
)


def _reload_took_it(evidence: Evidence) -> Mark | None:
    lost = evidence.lost(LossCause.RELOAD)
    if lost:
        return Mark(
            True,
            f"{lost.namespace}/{lost.pod} {lost.name} could open {lost.denied[0].name} before, "
            "and may "
            f"not now; {lost.loss_why}",
        )
    denied = (
        None
        if _no_reload_touches_the_plugin(evidence)
        else evidence.finding(Reason.PLUGIN_ACCESS_DENIED)
    )
    sight, manager = evidence.plugin, evidence.snapshot.boot.manager
    reload_at = manager.value.last_reload_at if isinstance(manager, Seen) else None
    log = evidence.plugin_log
    if (
        denied
        and sight
        and log
        and log.says in WORKED
        and reload_at
        and reload_at > plugin.began_at(evidence.snapshot, sight)
    ):
        return Mark(
            True,
            f"{denied.because}; it could, for its log says that it served its GPUs, and units were "
            f"loaded anew {evidence.ago(reload_at)}, after its start",
        )
    never = evidence.lost(LossCause.NEVER_HAD)
    if (
        never
        and never.driver is not Driver.CGROUPFS
        and not (never.is_plugin and evidence.finding(Reason.PLUGIN_GIVEN_NOTHING))
    ):
        return Mark(False, _may_not(never))
    if denied:
        return Mark(False, f"{denied.because}; that it ever could was not seen")
    return _unknown_error_inside(evidence)


def _may_not(never: GpuContainer) -> str:
    return (
        f"{never.namespace}/{never.pod} {never.name} may not open "
        f"{never.denied[0].name}; {never.loss_why}"
    )


def _no_reload_touches_the_plugin(evidence: Evidence) -> bool:
    """No unit of systemd carries its container."""
    return any(
        c.is_plugin and c.driver is Driver.CGROUPFS for c in evidence.diagnosis.gpu_containers
    )


def _unknown_error_inside(evidence: Evidence) -> Mark | None:
    """The plugin's NVML failed, and whether it may open its devices is not known: 999 is what EPERM
    looks like."""
    failed, sight = evidence.finding(Reason.PLUGIN_INIT_FAILED), evidence.plugin
    log = evidence.plugin_log
    if (
        not failed
        or not sight
        or isinstance(sight.access, Seen)
        or not log
        or "unknown" not in log.error.lower()
    ):
        return None
    return Mark(
        False,
        f"the plugin's NVML said {log.error}, which is also what a denied device looks like; "
        "whether "
        "it may open /dev/nvidiactl was not captured",
    )


def _updated(evidence: Evidence) -> Mark | None:
    never = evidence.lost(LossCause.NEVER_HAD)
    lost = evidence.lost(LossCause.UPDATE)
    if not lost and never and never.driver is Driver.CGROUPFS:
        return Mark(
            False, f"{_may_not(never)}; no unit of systemd carries it, which a reload could touch"
        )
    if not lost:
        return None
    policy = evidence.diagnostics.cpu_policy
    is_static = isinstance(policy, Seen) and policy.value == "static"
    which = (
        f"the kubelet's cpu manager is {policy.value}"
        if isinstance(policy, Seen)
        else f"its cpu manager's policy was not read ({policy})"
    )
    return Mark(is_static, f"{lost.namespace}/{lost.pod} {lost.name}: {lost.loss_why}; {which}")


def _no_handler(evidence: Evidence) -> Mark | None:
    hint = evidence.finding(Reason.NO_RUNTIME_HANDLER)
    return (
        Mark(False, hint.because)
        if hint and evidence.finding(Reason.NOT_REGISTERED, Reason.PLUGIN_LACKS_LIBRARY)
        else None
    )


def _ended_without(evidence: Evidence) -> Mark | None:
    """With fail-on-init-error, which is the default, it does not run on without the library."""
    found, log = evidence.finding(Reason.PLUGIN_EXITED), evidence.plugin_log
    return (
        Mark(True, found.because) if found and log and plugin_log.lacks_the_library(log) else None
    )


def _hook(is_library: bool) -> Judge:
    """The NVIDIA runtime's hook refused a container: for want of the driver's libraries, or for
    something else."""

    def judge(evidence: Evidence) -> Mark | None:
        line = evidence.journal(JournalEvent.HOOK_FAILED)
        if line is None:
            return None
        means = next((means for form, means in HOOK if form.search(line.line)), "")
        if (means in LIBRARIES) is not is_library:
            return None
        return Mark(True, cited(evidence, line) + (f"; it means: {means}" if means else ""))

    return judge


LIBRARIES = (
    "the driver's libraries are not where the toolkit looks for them ([nvidia-container-cli] "
    "root=)",
    "ldconfig of the host failed: its memory, or ldconfig= in the toolkit's configuration",
)
HOOK = (
    (
        re.compile("version mismatch", re.I),
        "the driver was upgraded under the loaded module: reboot the drained node",
    ),
    (re.compile("driver not loaded", re.I), "the nvidia module was not loaded then"),
    (re.compile("libnvidia-ml|load library failed", re.I), LIBRARIES[0]),
    (re.compile("ldcache|ldconfig", re.I), LIBRARIES[1]),
    (
        re.compile("requirement error|unsatisfied condition", re.I),
        "its image wants a newer driver (NVIDIA_REQUIRE_CUDA)",
    ),
    (
        re.compile("unknown device", re.I),
        "it asks for a GPU that NVML does not show (NVIDIA_VISIBLE_DEVICES)",
    ),
    (
        re.compile("device rules|device filters|bpf_prog|devices.allow", re.I),
        "the hook may not write the cgroup's device rules: a "
        "kernel before 5.6 (no BPF_F_REPLACE), bpf_jit_harden, or a host that is itself a "
        "container: CDI does without",
    ),
    (
        re.compile("IMEX", re.I),
        "nvidia-container-toolkit and libnvidia-container are of different versions: both of "
        "one, after 1.17.0",
    ),
)
"""What its words mean. libnvidia-container #151, #154, #176; nvidia-container-toolkit #797,
awslabs/amazon-eks-ami #2062 (IMEX); src/cli/configure.c and src/nvc*.c of libnvidia-container 1.17
(the kinds of error)."""
KEPT_AWAY = ("NoNvidiaHandler", "PluginWithoutLibrary", "HookRefused")
"""Faults whose own mark is a container that the runtime would not make or start. A CDI spec that is
merely wrong is none: where something depends on it, that is link 6's own finding."""
GENERATE = "nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml"
CDI = "NVIDIA/nvidia-container-toolkit, nvidia-cdi-refresh; CNCF CDI SPEC.md"
NOT_ITS_AGE = "told by the file's age"


def _unresolved(evidence: Evidence) -> Mark | None:
    line = evidence.journal(JournalEvent.NO_CDI_DEVICE)
    return Mark(False, cited(evidence, line)) if line else None


FAULTS = (
    KnownFault(
        "NoNvidiaHandler",
        Link.RUNTIME,
        "The container runtime has no handler nvidia",
        "NVIDIA/nvidia-container-toolkit, nvidia-ctk runtime configure",
        "the runtime's or the kubelet's line that it has no such handler",
        judge=either((said(JournalEvent.NO_HANDLER), _no_handler)),
        consistent="no configuration file that we know names one: a hint, the runtime may have "
        "others",
        decide="what the runtime itself has loaded",
        capture="crictl info | grep -A3 nvidia",
        remedy="write the handler and restart the runtime (its containers go on)",
        do="nvidia-ctk runtime configure --runtime=containerd && systemctl restart containerd",
        is_not="needed where containers are given GPUs by CDI alone",
    ),
    KnownFault(
        "PluginWithoutLibrary",
        Link.RUNTIME,
        "The plugin's container was made without the driver's libraries",
        "NVIDIA/k8s-device-plugin README, prerequisites",
        "its log says that NVML's library is not to be found",
        judge=either((when(Reason.PLUGIN_LACKS_LIBRARY), _ended_without, _hook(is_library=True))),
        remedy="its pod wants the nvidia runtime: RuntimeClass nvidia, the default runtime, or "
        "a CDI spec",
        do="crictl inspect {plugin} | grep -E 'runtimeType|NVIDIA_'",
        is_not="cured by starting the same container afresh",
    ),
    KnownFault(
        "HookRefused",
        Link.RUNTIME,
        "The NVIDIA runtime's hook refused a container",
        "NVIDIA/libnvidia-container #151, #154, #176",
        "nvidia-container-cli's own error, as the runtime or the kubelet passed it on",
        judge=_hook(is_library=False),
        remedy="what its words mean is said beside them; CDI needs no hook",
        do="journalctl -b | grep nvidia-container-cli | tail -3; nvidia-container-cli -k info",
        is_not="cured by starting the same container afresh",
    ),
    KnownFault(
        "CdiSpecMissing",
        Link.RUNTIME,
        "There is no CDI spec, and containers are to be given GPUs by one",
        CDI,
        "no spec of kind nvidia.com/gpu in /etc/cdi and /run/cdi",
        judge=either((when(Reason.CDI_MISSING), _unresolved)),
        consistent="the runtime knows no device of a name that was handed out",
        decide="the specs it reads",
        capture="nvidia-ctk cdi list",
        remedy="have it written",
        do=GENERATE,
    ),
    KnownFault(
        "CdiSpecOld",
        Link.RUNTIME,
        "The CDI spec is of another driver, or of other GPUs",
        CDI,
        "it names libraries of another version, lacks a GPU, or fixes other device numbers",
        judge=when(Reason.CDI_OLDER_DRIVER, Reason.CDI_LACKS_GPU, Reason.CDI_OTHER_NUMBERS),
        remedy="have it written again",
        do=GENERATE,
        is_not=NOT_ITS_AGE,
    ),
    KnownFault(
        "CdiSpecPointsNowhere",
        Link.RUNTIME,
        "The CDI spec names files that are not there",
        CDI,
        "a path of the spec is missing on the host",
        judge=when(Reason.CDI_PATHS_MISSING),
        remedy="have it written again; containers with it fail to be created until then",
        do=GENERATE,
    ),
    KnownFault(
        "CdiSpecBroken",
        Link.RUNTIME,
        "A CDI spec cannot be read, or two define the same device",
        CDI,
        "a file that is no spec, or two files of one folder with one device",
        judge=when(Reason.CDI_UNREADABLE, Reason.CDI_CONFLICT),
        remedy="remove the wrong file",
        do="grep -l nvidia.com/gpu /etc/cdi/* /run/cdi/*",
    ),
    KnownFault(
        "ContainerToolkit251",
        Link.WORKLOADS,
        "A daemon-reload took the GPUs away from running containers",
        "NVIDIA/nvidia-container-toolkit #251, #192, #1227, #1744",
        "a container that could open its device nodes, and may not since units were loaded anew",
        judge=_reload_took_it,
        consistent="it may not open them, or NVML fails inside with Unknown Error, and it was "
        "never seen that it could",
        decide="the plugin's or workload's own access, and when it was lost",
        capture="gpu-gate access; journalctl -b _PID=1 | grep -i reload",
        remedy="make those containers again; for good: CDI, or PASS_DEVICE_SPECS=true and runc "
        "1.1.7 or later, or "
        "toolkit 1.18 or later",
        do="gpu-gate access",
        is_not="shown by /dev/char or by a host's nvidia-smi: both stay perfect; and a reload "
        "alone proves nothing",
    ),
    KnownFault(
        "ReloadWillTakeDevices",
        Link.WORKLOADS,
        "The next daemon-reload will take GPUs away from containers",
        "NVIDIA/nvidia-container-toolkit #1744",
        "the scope's DeviceAllow= lacks a node that its container may open",
        judge=when(Reason.ACCESS_AT_RISK),
        remedy="before the next reload: drain those pods, or make them again with CDI",
        do="gpu-gate access",
        is_not="a loss yet",
        is_cause=False,
    ),
    KnownFault(
        "CpuManagerUpdate",
        Link.WORKLOADS,
        "A container update took its GPUs away (static cpu manager, resize)",
        "kubernetes/kubernetes #77073, NVIDIA/k8s-device-plugin #145, #322",
        "device programs were replaced without a reload, and the kubelet's cpu manager is static",
        judge=_updated,
        consistent="they were replaced without a reload, and who did it is not known",
        decide="the cpu manager's policy",
        capture="cat /var/lib/kubelet/cpu_manager_state",
        remedy="give containers their nodes in their OCI spec: CDI, or PASS_DEVICE_SPECS=true",
        do="gpu-gate access",
        is_not="cured by writing devices.allow: the next update takes it back",
    ),
)
