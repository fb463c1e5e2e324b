#!/usr/bin/python3
"""A kubelet without an API server: device manager, static pods over CRI, pod-resources.

Every option may also be given as KUBELET_<NAME> in the environment. What the node would be told
(capacity,
allocatable, pods) is written to --state as JSON, for tests to read; the product does not know of
it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import grpc
from sim.devices import DeviceManager
from sim.klog import Klog
from sim.podresources import PodResources, RateLimit
from sim.pods import Backoff, PodWorker, Runtime

log = Klog()

OPTIONS = (
    ("root", "/var/lib/kubelet", "the kubelet's own directory"),
    ("manifests", "/etc/kubernetes/manifests", "static pods"),
    ("cri", "/run/containerd/containerd.sock", "the runtime's socket; 'none': no pods at all"),
    ("log-root", "/var/log/pods", "container logs"),
    ("node", os.uname().nodename, "node name, the end of every static pod's name"),
    ("cgroup-driver", "systemd", "systemd or cgroupfs"),
    ("grace-s", "300", "endpoint stop grace period"),
    (
        "status-s",
        "10",
        "seconds between node status updates (an expired endpoint is noticed there)",
    ),
    ("relist-s", "1", "seconds between two looks at the runtime"),
    ("backoff-factor", "1", "of 10 s, 20 s … 300 s"),
    ("qps", "100", "pod-resources calls a second"),
    ("burst", "10", "pod-resources calls at once"),
    (
        "faults",
        "/run/simgpu/kubelet.faults",
        "what to break, read at every use: see podresources.py",
    ),
    ("state", "/run/simgpu/kubelet.state", "JSON for tests; empty: none"),
    ("start-delay-s", "0", "before anything is done"),
)


def parse_options(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default, words in OPTIONS:
        environment = os.environ.get("KUBELET_" + name.upper().replace("-", "_"), default)
        parser.add_argument(f"--{name}", default=environment, help=f"{words} ({default})")
    return parser.parse_args(argv)


def notify(text: str) -> None:
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.connect("\0" + address[1:] if address[0] == "@" else address)
            out.send(text.encode())


def connect_runtime(path: Path) -> Runtime:
    """The kubelet ends where the runtime does not answer; systemd starts it again."""
    runtime, deadline = Runtime(path), time.monotonic() + 10
    while True:
        try:
            runtime.ask("Version", timeout_s=2.0)
            return runtime
        except grpc.RpcError as exc:
            if time.monotonic() > deadline:
                log.say(
                    "run.go:72",
                    "command failed",
                    "E",
                    err=f"failed to run Kubelet: validate service connection: {exc.details()}",
                )
                os._exit(1)
            time.sleep(0.1)


class Node:
    """What ties the parts together, and says aloud what the API server would be told."""

    def __init__(self, options: argparse.Namespace) -> None:
        root = Path(options.root)
        self.options = options
        self.lock = threading.Lock()
        self.devices = DeviceManager(
            log, root / "device-plugins", float(options.grace_s), self.report
        )
        self.pods: PodWorker | None = None
        if options.cri != "none":
            self.pods = PodWorker(
                log,
                connect_runtime(Path(options.cri)),
                self.devices,
                Path(options.manifests),
                options.node,
                root,
                Path(options.log_root),
                options.cgroup_driver,
                Backoff(float(options.backoff_factor)),
                self.report,
            )
        self.resources = PodResources(
            root / "pod-resources/kubelet.sock",
            Path(options.faults),
            self.devices.allocatable,
            self.pods.active if self.pods else list,
            RateLimit(float(options.qps), int(options.burst)),
        )

    def report(self) -> None:
        if not self.options.state:
            return
        pods = self.pods
        state = {
            "capacity": self.devices.capacity(),
            "allocatable": {name: len(ids) for name, ids in self.devices.allocatable().items()},
            "registrations": self.devices.registrations,
            "pods": {
                pod.full_name: vars(pods.admissions[uid])
                for uid, pod in list(pods.pods.items())
                if uid in pods.admissions
            }
            if pods
            else {},
        }
        path = Path(self.options.state)
        with self.lock, contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            new = path.with_suffix(".new")
            new.write_text(json.dumps(state, indent=1) + "\n")
            os.replace(new, path)

    def start(self) -> None:
        self.devices.start()
        self.resources.start()
        self.report()
        self._repeat(self.devices.expire, float(self.options.status_s))
        if self.pods:
            log.say("kubelet.go:390", "Adding static pod path", path=self.options.manifests)
            self._repeat(self.pods.sync, float(self.options.relist_s))

    def _repeat(self, what, every_s: float) -> None:
        def loop() -> None:
            while True:
                try:
                    what()
                except (
                    Exception
                ) as exc:  # a stand-in that falls silent would be a lie nobody asked for
                    log.say("kubelet.go:1", "The stand-in itself failed", "E", err=repr(exc))
                time.sleep(every_s)

        threading.Thread(target=loop, daemon=True).start()


def main() -> None:
    options = parse_options(sys.argv[1:])
    # The kubelet removes nothing when it ends: neither its own sockets nor the plugins'.
    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, lambda number, frame: os._exit(0))
    time.sleep(float(options.start_delay_s))
    log.say("server.go:530", "Kubelet version", kubeletVersion="v1.31.14")
    node = Node(options)
    node.start()
    log.say("server.go:190", "Started kubelet")
    notify("READY=1")
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
