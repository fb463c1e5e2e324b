"""Lines of the journal: each form once, and similar ones."""

from __future__ import annotations

import json

import pytest

from agent.core.doctor.journal import words
from agent.host.diagnostics import line_of
from agent.model.diagnostics import JournalEvent, JournalLine
from agent.model.snapshot import Clock

from .snapshots import NOW

FM = "nvidia-fabricmanager.service"
KUBELET, K3S, RUNTIME = "kubelet.service", "k3s-agent.service", "containerd.service"


@pytest.mark.parametrize(
    ("source", "text", "says"),
    [
        ("systemd", "Reloading.", JournalEvent.RELOAD),
        (
            FM,
            "fabric manager NVIDIA GPU driver interface version 530.30.02 don't match with "
            "driver version 530.41.03. "
            "Please update with matching NVIDIA driver package.",
            JournalEvent.FABRIC_VERSION,
        ),
        (
            FM,
            "fabric manager NVIDIA GPU driver interface version 550.127.05 doesn\u2019t match "
            "with driver version "
            "550.120.",
            JournalEvent.FABRIC_VERSION,
        ),
        (
            FM,
            "Connected to 1 node. Fabric manager NVIDIA GPU driver interface version 550.54.15",
            None,
        ),
        (
            "systemd",
            "Reloading requested from client PID 2553912 ('systemctl') (unit snapd.service)...",
            JournalEvent.RELOAD,
        ),
        (
            "systemd",
            "Reexecuting requested from client PID 7 ('systemctl') (unit session-1.scope)...",
            JournalEvent.RELOAD,
        ),
        ("systemd", "Started kubelet.service - kubelet.", None),
        (KUBELET, "Reloading.", None),
        (
            K3S,
            'I1227 18:17:42.2 21527 server.go:142] "Got registration request from device '
            'plugin with resource" '
            'resourceName="nvidia.com/gpu"',
            JournalEvent.REGISTERED,
        ),
        (
            K3S,
            'I1227 18:17:42.2 21527 server.go:142] "Got registration request from device '
            'plugin with resource" '
            'resourceName="intel.com/qat"',
            None,
        ),
        (
            KUBELET,
            'E1017 12:05:33 1655 client.go:90] "ListAndWatch ended unexpectedly for device '
            'plugin" err="rpc error: '
            'code = Unavailable desc = error reading from server: EOF" resource="nvidia.com/gpu"',
            JournalEvent.LIST_ENDED,
        ),
        (
            KUBELET,
            "Allocate failed due to no healthy devices present; cannot allocate unhealthy "
            "devices nvidia.com/gpu, "
            "which is unexpected",
            JournalEvent.UNEXPECTED,
        ),
        (
            KUBELET,
            "Update plugin resources failed due to requested number of devices unavailable for "
            "nvidia.com/gpu. "
            "Requested: 1, Available: 0, which is unexpected.",
            JournalEvent.UNEXPECTED,
        ),
        (
            KUBELET,
            "Allocate failed due to device plugin GetPreferredAllocation rpc failed with err: "
            "rpc error: code = "
            "Unknown desc = Unable to retrieve list of available devices: error creating "
            "nvml.Device 5: nvml: GPU is lost",
            JournalEvent.UNEXPECTED,
        ),
        (KUBELET, 'reason="OutOfnvidia.com/gpu"', JournalEvent.OUT_OF),
        (
            KUBELET,
            "Node didn't have enough resource: nvidia.com/gpu, requested: 1, used: 0, capacity: 0",
            JournalEvent.OUT_OF,
        ),
        (
            KUBELET,
            "Node didn't have enough resource: memory, requested: 1, used: 0, capacity: 0",
            None,
        ),
        (
            KUBELET,
            '"Continue after failing to read checkpoint file. Device allocation info may NOT '
            'be up-to-date" '
            'err="unexpected end of JSON input"',
            JournalEvent.CHECKPOINT,
        ),
        (
            RUNTIME,
            'failed to get sandbox runtime: no runtime for "nvidia" is configured',
            JournalEvent.NO_HANDLER,
        ),
        (RUNTIME, 'msg="no runtime for \\"nvidia\\" is configured"', JournalEvent.NO_HANDLER),
        (
            KUBELET,
            r"with CreateContainerError: \"no runtime for \\\"nvidia\\\" is configured\"",
            JournalEvent.NO_HANDLER,
        ),
        (
            "crio.service",
            "failed to find runtime handler nvidia from runtime list map[runc:0xc0]",
            JournalEvent.NO_HANDLER,
        ),
        (
            RUNTIME,
            "CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=0",
            JournalEvent.NO_CDI_DEVICE,
        ),
        (
            RUNTIME,
            "nvidia-container-cli: error parsing IMEX info: unsupported IMEX channel value: all",
            JournalEvent.HOOK_FAILED,
        ),
        (
            RUNTIME,
            "nvidia-container-cli: initialization error: nvml error: driver not loaded: unknown",
            JournalEvent.HOOK_FAILED,
        ),
        (
            KUBELET,
            r'"Error syncing pod, skipping" err="failed to \"StartContainer\" for '
            r"\"nvidia-device-plugin-ctr\" "
            r"with ImagePullBackOff: \"Back-off pulling image "
            r'\\\"nvcr.io/nvidia/k8s-device-plugin:v0.17.1\\\"\""',
            JournalEvent.NOT_STARTED,
        ),
        (
            KUBELET,
            'failed to "StartContainer" for "nvidia-device-plugin" with '
            'CreateContainerConfigError: "secret"',
            JournalEvent.NOT_STARTED,
        ),
        (
            KUBELET,
            r"failed to \"StartContainer\" for \"nvidia-device-plugin-ctr\" with "
            r"CrashLoopBackOff: \"5m\"",
            None,
        ),
        (
            KUBELET,
            r"failed to \"StartContainer\" for \"app\" with ImagePullBackOff: \"nvidia\"",
            None,
        ),
        (
            KUBELET,
            r'failed to \"StartContainer\" for \"config-manager-init\" with ErrImagePull: \"x\"" '
            'pod="gpu-operator/nvidia-device-plugin-daemonset-x"',
            JournalEvent.NOT_STARTED,
        ),
        (
            KUBELET,
            r"failed to \"StartContainer\" for \"toolkit-validation\" with CrashLoopBackOff: "
            r'\"5m\"" '
            'pod="gpu-operator/nvidia-device-plugin-daemonset-x"',
            None,
        ),
        (
            KUBELET,
            '"Bad registration request from device plugin with resource" err="x" '
            'resourceName="nvidia.com/gpu"',
            JournalEvent.NOT_REACHED,
        ),
        (
            KUBELET,
            '"CreatePodSandbox for pod failed" err="rpc error: code = Unknown desc = x" '
            'pod="kube-system/nvidia-device-plugin-x"',
            JournalEvent.NO_SANDBOX,
        ),
        (KUBELET, '"CreatePodSandbox for pod failed" err="rpc error" pod="ml/app-nvidia"', None),
        (
            KUBELET,
            '"Unable to attach or mount volumes for pod; skipping pod" err="unmounted '
            'volumes=[config]" '
            'pod="kube-system/hami-device-plugin-x"',
            JournalEvent.NO_SANDBOX,
        ),
        (
            KUBELET,
            '"network is not ready" pod="kube-system/nvidia-device-plugin-mps-control-daemon-x"',
            None,
        ),
        (
            KUBELET,
            "eviction manager: pod nvidia-device-plugin-daemonset-x_kube-system(1) is evicted "
            "successfully",
            JournalEvent.TURNED_OUT,
        ),
        (
            KUBELET,
            '"Predicate failed on Pod" pod="kube-system/nvidia-gpu-device-plugin-x" err="x"',
            JournalEvent.TURNED_OUT,
        ),
        (KUBELET, '"Eviction manager: pod is evicted successfully" pod="ml/train-gpu"', None),
        (
            KUBELET,
            '"Unable to connect to device plugin client with socket path" err="failed to dial '
            "device plugin: "
            'context deadline exceeded" path="/var/lib/kubelet/device-plugins/nvidia-gpu.sock"',
            JournalEvent.NOT_REACHED,
        ),
        (
            KUBELET,
            '"Unable to connect to device plugin client with socket path" '
            'path="/x/kubevirt-kvm.sock"',
            None,
        ),
        (
            KUBELET,
            "Update plugin resources failed due to failed to write checkpoint file "
            '"kubelet_internal_checkpoint": '
            "write /var/lib/kubelet/device-plugins/.288934392: no space left on device, which "
            "is unexpected.",
            JournalEvent.NOT_WRITTEN,
        ),
        (
            "nvidia-persistenced.service",
            "device 0000:01:00.0 - persistence mode enabled.",
            JournalEvent.GPU_UP,
        ),
        ("nvidia-persistenced.service", "device 0000:01:00.0 - registered", None),
        (
            "kernel",
            "NVRM: Xid (PCI:0000:0f:00): 79, GPU has fallen off the bus.",
            JournalEvent.KERNEL,
        ),
        ("kernel", "NVRM: Xid (PCI:0000:0f:00): 31, a program's own", None),
        ("kernel", "usb 1-1: new device", None),
    ],
)
def test_lines(source: str, text: str, says: JournalEvent | None) -> None:
    assert [w.says for w in words([JournalLine(NOW, source, text)])] == ([says] if says else [])


def test_a_long_line_is_cited_from_its_relevant_part() -> None:
    told = "nvidia-container-cli: ldcache error: process /sbin/ldconfig terminated with signal 9"
    assert told in words([JournalLine(NOW, KUBELET, "x" * 300 + told)])[0].line[:150]
    assert words([JournalLine(NOW, KUBELET, f"E1017 {told}")])[0].line == f"E1017 {told}"


def test_the_requester_of_a_reload_is_recorded() -> None:
    line = "Reloading requested from client PID 7 ('systemctl') (unit session-1.scope)..."
    assert (
        words([JournalLine(NOW, "systemd", line)])[0].who
        == "client PID 7 ('systemctl') (unit session-1.scope)"
    )


@pytest.mark.parametrize(
    ("entry", "line"),
    [
        (
            {
                "MESSAGE": "a",
                "__MONOTONIC_TIMESTAMP": "5000000",
                "_SYSTEMD_UNIT": KUBELET,
                "_PID": "77",
            },
            JournalLine(15.0, KUBELET, "a"),
        ),
        (
            {
                "MESSAGE": "a",
                "__MONOTONIC_TIMESTAMP": "5000000",
                "_SYSTEMD_UNIT": "init.scope",
                "_PID": "1",
            },
            JournalLine(15.0, "systemd", "a"),
        ),
        (
            {"MESSAGE": "a", "__MONOTONIC_TIMESTAMP": "5000000", "_TRANSPORT": "kernel"},
            JournalLine(15.0, "kernel", "a"),
        ),
        ({"MESSAGE": [97], "__MONOTONIC_TIMESTAMP": "5000000"}, None),
        ({"MESSAGE": "a", "__MONOTONIC_TIMESTAMP": "soon"}, None),
        ({"MESSAGE": "a"}, None),
        ([], None),
    ],
)
def test_entries(entry: object, line: JournalLine | None) -> None:
    assert line_of(json.dumps(entry).encode(), Clock(110.0, 100.0, 1.7e9)) == line
