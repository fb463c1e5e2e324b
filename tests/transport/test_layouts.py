"""Nodes of layouts that no distribution here packages, as a folder: the runtime and the kubelet
answer over real gRPC on the sockets of that layout, and gpu-gate's own LiveHost reads them. The
peers are stand-ins."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.core.collect import collect
from agent.core.diagnose import diagnose
from agent.host.live import LiveHost
from agent.model.fault import Cure
from agent.model.reading import Seen, Why
from agent.model.settings import Settings
from agent.model.snapshot import Unit
from tests.unit.snapshots import changed

from .grpc_peers import CRI, POD_RESOURCES, message, serving

BUS, UUID = "0000:07:00.0", "GPU-00000000-0000-4000-8000-000000000000"
FAILED = (
    "2026-11-29T12:46:07.1Z stderr F 2026/11/29 12:46:07 Failed to initialize NVML: "
    "Unknown Error.\n"
)
SERVER = """
import socket, sys, time
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen(1)
print("listening", flush=True)
time.sleep(60)
"""


class UnitsHost(LiveHost):
    """A node that is a folder has no systemd."""

    kubelet = "kubelet.service"

    async def units(self, names: Any) -> Seen[tuple[Unit, ...]]:
        known = {
            self.kubelet: Unit(self.kubelet, "loaded", "active", "running", "1", 1.0, "enabled")
        }
        return Seen(tuple(known[name] for name in names if name in known), 1.0)


@pytest.fixture
def root() -> Iterator[Path]:
    """Short: a unix socket's path has 107 bytes."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


def furnish(root: Path) -> None:
    """A GPU on PCI, and the log of a plugin that gave up."""
    gpu = root / f"sys/bus/pci/devices/{BUS}"
    gpu.mkdir(parents=True)
    (gpu / "vendor").write_text("0x10de\n")
    (gpu / "class").write_text("0x030200\n")
    (gpu / "driver").symlink_to("../../../bus/pci/drivers/nvidia")
    log = root / "var/log/pods/p/0.log"
    log.parent.mkdir(parents=True)
    log.write_text(FAILED)


def pod(labels: dict[str, str], *containers: tuple[str, str]) -> dict[str, bytes]:
    """CRI's answers for one pod of these labels, with (name, image) for each of its containers."""
    box = message(
        (1, "box"),
        (2, message((1, "plugin-7x"), (2, "uid"), (3, "kube-system"))),
        (4, 1),
        (5, labels),
    )
    listed = [
        message(
            (1, f"id-{name}"),
            (2, "box"),
            (3, message((1, name))),
            (4, message((1, "sha256:" + "6" * 64), (18, image))),
            (6, 1),
            (7, 10**18),
            (8, {"io.kubernetes.pod.uid": "uid"}),
        )
        for name, image in containers
    ]
    status = message(
        (1, "id"),
        (3, 1),
        (5, 10**18),
        (8, message((1, containers[0][1]))),
        (15, "/var/log/pods/p/0.log"),
    )
    return {
        "ListPodSandbox": message((1, box)),
        "ListContainers": message(*((1, c) for c in listed)),
        "ContainerStatus": message((1, status)),
    }


LAYOUTS = {
    "CRI-O": ("kubelet.service", "run/crio/crio.sock", "var/lib/kubelet"),
    "k3s": ("k3s-agent.service", "run/k3s/containerd/containerd.sock", "var/lib/kubelet"),
    "microk8s": (
        "snap.microk8s.daemon-kubelite.service",
        "var/snap/microk8s/common/run/containerd.sock",
        "var/snap/microk8s/common/var/lib/kubelet",
    ),
    "k0s": ("k0sworker.service", "run/k0s/containerd.sock", "var/lib/k0s/kubelet"),
    "docker": ("kubelet.service", "run/cri-dockerd.sock", "var/lib/kubelet"),
    "GKE": ("kubelet.service", "run/containerd/containerd.sock", "var/lib/kubelet"),
}
NVIDIA = ("nvidia-device-plugin-ctr", "nvcr.io/nvidia/k8s-device-plugin:v0.17.1")
HAMI = (
    {"app.kubernetes.io/component": "hami-device-plugin"},
    ("device-plugin", "projecthami/hami:v2.7.0"),
    ("vgpu-monitor", "projecthami/hami:v2.7.0"),
)
GKE = (
    {"k8s-app": "nvidia-gpu-device-plugin"},
    ("nvidia-gpu-device-plugin", "gke.gcr.io/x@sha256:1"),
    ("fluentbit", "gke.gcr.io/fluent"),
)
MIRROR: tuple[dict[str, str], tuple[str, str]] = (
    {},
    ("dp", "mirror.local/k8s-device-plugin:v0.16.2"),
)


@pytest.mark.parametrize(
    ("layout", "plugin", "found"),
    [
        ("CRI-O", ({"name": "nvidia-device-plugin-ds"}, NVIDIA), "id-nvidia-device-plugin-ctr"),
        ("CRI-O", HAMI, "id-device-plugin"),
        (
            "k3s",
            ({"app.kubernetes.io/name": "nvidia-device-plugin"}, NVIDIA),
            "id-nvidia-device-plugin-ctr",
        ),
        (
            "microk8s",
            ({"app": "nvidia-device-plugin-daemonset"}, ("nvidia-device-plugin", "x")),
            "id-nvidia-device-plugin",
        ),
        ("k0s", HAMI, "id-device-plugin"),
        ("docker", MIRROR, "id-dp"),  # by its image, which only newer kubelets say
        ("GKE", GKE, "id-nvidia-gpu-device-plugin"),
    ],
)
def test_a_plugin_is_found_in_its_layout(
    run: Any, root: Path, layout: str, plugin: Any, found: str
) -> None:
    kubelet, runtime, kubelet_root = LAYOUTS[layout]
    furnish(root)
    (root / "run/containerd").mkdir(parents=True)  # Docker's, without a pod, beside the others
    for folder in ((root / runtime).parent, root / kubelet_root / "pod-resources"):
        folder.mkdir(parents=True, exist_ok=True)
    host = UnitsHost(root=str(root))
    host.kubelet = kubelet
    labels, *containers = plugin
    bare = {"ListPodSandbox": b"", "ListContainers": b""}
    with contextlib.ExitStack() as peers:
        if layout != "GKE":
            peers.enter_context(serving(root / "run/containerd/containerd.sock", CRI, bare))
        peers.enter_context(serving(root / runtime, CRI, pod(labels, *containers)))
        peers.enter_context(
            serving(
                root / kubelet_root / "pod-resources/kubelet.sock",
                POD_RESOURCES,
                {"GetAllocatableResources": b""},
            )
        )
        snapshot = run(collect(host, Settings()))
    assert snapshot.plugin.runtime_socket == f"/{runtime}"
    assert (
        isinstance(snapshot.kubelet.allocatable, Seen) and snapshot.kubelet.allocatable.value == ()
    )
    (sight,) = snapshot.plugin.plugins
    assert sight.container.id == found
    fault = diagnose(changed(snapshot, driver_version=Seen("550", 1.0)), Settings()).repair_facts
    assert fault is not None and fault.fault is not None
    assert (fault.fault.reason, fault.fault.cure) == ("PluginInitFailed", Cure.FRESH_START)


def test_the_listener_of_a_socket(run: Any, root: Path) -> None:
    """Reported by the kernel: also for a process in another mount and network namespace, and with a
    full backlog."""
    path = root / "nvidia-gpu.sock"
    words = ["unshare", "-mn", "--"] if os.geteuid() == 0 else []
    with subprocess.Popen(
        [*words, sys.executable, "-c", SERVER, str(path)], stdout=subprocess.PIPE
    ) as server:
        assert server.stdout is not None and server.stdout.readline()
        host = LiveHost(root=str(root))
        try:
            # Each is closed at once, and fills a place of a backlog that nobody empties: the last
            # finds none.
            found = [run(host.listener("/nvidia-gpu.sock")) for _ in range(4)]
            assert found[0].value == server.pid
            assert found[-1].why is Why.FAILED
        finally:
            server.kill()
    assert run(host.listener("/nvidia-gpu.sock")).why is Why.FAILED, (
        "it is there, and nobody listens"
    )


@pytest.mark.parametrize(
    "make", [lambda path: None, lambda path: path.write_text("x"), lambda path: path.mkdir()]
)
def test_a_file_that_is_no_socket_has_no_listener(run: Any, root: Path, make: Any) -> None:
    make(root / "x.sock")
    assert not isinstance(run(LiveHost(root=str(root)).listener("/x.sock")), Seen)


def test_a_path_that_is_too_long_is_a_refusal(run: Any, root: Path) -> None:
    assert not isinstance(run(LiveHost(root=str(root)).listener("/" + "x" * 200)), Seen)


def test_the_listener_receives_no_data(run: Any, root: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(root / "x.sock"))
        listener.listen()
        assert run(LiveHost(root=str(root)).listener("/x.sock")).value == os.getpid()
        peer, _ = listener.accept()
        with peer:
            assert peer.recv(1) == b"", "closed, and not a byte was sent"
