"""The stand-in kubelet's pod worker: static pods on a real container runtime, kept as the manifests
say.

Once a second it lists what is there and compares, as the kubelet's relist does; it remembers
nothing about containers, so it finds its own again after a restart.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import grpc

from sim import containers, manifests, rpc
from sim.devices import DeviceManager, Rejected
from sim.klog import Klog
from sim.manifests import Pod
from sim.wire import cri

RUNNING, EXITED = 1, 2
READY = 0


class Backoff:
    """CrashLoopBackOff: the first restart is free, then 10 s, 20 s … 300 s after the container's
    end."""

    def __init__(self, factor: float = 1.0) -> None:
        self.first_s, self.most_s = 10.0 * factor, 300.0 * factor
        self.held: dict[str, tuple[float, float]] = {}

    def remaining(self, key: str, ended_at: float) -> tuple[float, float]:
        """Seconds still to wait, and the whole delay. ``ended_at`` is realtime, as the runtime says
        it."""
        delay_s, since = self.held.get(key, (0.0, 0.0))
        if not delay_s or ended_at - since > 2 * self.most_s:
            return 0.0, delay_s
        return max(0.0, ended_at + delay_s - time.time()), delay_s

    def next(self, key: str, ended_at: float) -> None:
        delay_s, since = self.held.get(key, (0.0, 0.0))
        expired = ended_at - since > 2 * self.most_s
        self.held[key] = (
            self.first_s if not delay_s or expired else min(2 * delay_s, self.most_s),
            time.time(),
        )


@dataclass
class Admission:
    phase: str
    reason: str = ""
    message: str = ""


class Runtime:
    """The container runtime, call by call; every one may raise grpc.RpcError."""

    def __init__(self, socket: Path) -> None:
        self.channel = rpc.open_channel(socket)

    def ask(self, name: str, timeout_s: float = 120.0, service: str = "RuntimeService", **fields):
        request = getattr(cri, f"{name}Request")(**fields)
        return rpc.call(
            self.channel,
            f"/runtime.v1.{service}/{name}",
            request,
            getattr(cri, f"{name}Response"),
            timeout_s,
        )

    def image_id(self, image: str) -> str:
        """Empty where the image is not on the node."""
        spec = cri.ImageSpec(image=image)
        return self.ask("ImageStatus", service="ImageService", image=spec).image.id


class PodWorker:
    def __init__(
        self,
        log: Klog,
        runtime: Runtime,
        devices: DeviceManager,
        manifest_dir: Path,
        node: str,
        kubelet_dir: Path = Path("/var/lib/kubelet"),
        log_root: Path = Path("/var/log/pods"),
        cgroup_driver: str = "systemd",
        backoff: Backoff | None = None,
        on_change=lambda: None,
    ) -> None:
        self.log, self.runtime, self.devices = log, runtime, devices
        self.manifest_dir, self.node, self.on_change = manifest_dir, node, on_change
        self.kubelet_dir, self.log_root, self.cgroup_driver = kubelet_dir, log_root, cgroup_driver
        self.backoff = backoff or Backoff()
        self.pods: dict[str, Pod] = {}
        self.admissions: dict[str, Admission] = {}
        self.ending: dict[str, str] = {}
        """uid → full name of pods being stopped: their successors wait."""
        self.complained: set[str] = set()

    def active(self) -> list[tuple[str, str, list]]:
        """What pod-resources lists: admitted pods with what their containers were given."""
        return [
            (
                pod.name,
                pod.namespace,
                [(c["name"], self.devices.given(pod.uid, c["name"])) for c in pod.containers],
            )
            for pod in list(self.pods.values())
            if self.admissions.get(pod.uid, Admission("")).phase in ("Pending", "Running")
        ]

    def sync(self) -> None:
        """One relist. A runtime that does not answer is logged and asked again the next time."""
        wanted = {
            p.uid: p for p in manifests.read_all(self.manifest_dir, self.node, self._complain)
        }
        for uid in set(wanted) - set(self.pods):
            self.log.say(
                "kubelet.go:2460", "SyncLoop ADD", source="file", pods=[wanted[uid].full_name]
            )
        for uid in set(self.pods) - set(wanted):
            self.log.say(
                "kubelet.go:2470", "SyncLoop REMOVE", source="file", pods=[self.pods[uid].full_name]
            )
            self.admissions.pop(uid, None)
        self.pods = wanted
        try:
            sandboxes = [
                s
                for s in self.runtime.ask("ListPodSandbox").items
                if "io.kubernetes.pod.uid" in s.labels
            ]
            found = [
                c
                for c in self.runtime.ask("ListContainers").containers
                if "io.kubernetes.pod.uid" in c.labels
            ]
        except grpc.RpcError as exc:
            self.log.say(
                "generic.go:238",
                "GenericPLEG: Unable to retrieve pods",
                "E",
                err=f"rpc error: code = {exc.code().name.title()} desc = {exc.details()}",
            )
            return
        self._end_orphans(sandboxes, found)
        for pod in wanted.values():
            if pod.full_name in self.ending.values():
                continue
            mine = [c for c in found if c.labels["io.kubernetes.pod.uid"] == pod.uid]
            self._sync_pod(pod, [s for s in sandboxes if s.metadata.uid == pod.uid], mine)

    def _complain(self, path: Path, exc: Exception) -> None:
        if str(exc) not in self.complained:
            self.complained.add(str(exc))
            self.log.say(
                "file.go:187", "Could not process manifest file", "E", path=str(path), err=str(exc)
            )

    # One pod

    def _sync_pod(self, pod: Pod, sandboxes: list, found: list) -> None:
        admission = self.admissions.get(pod.uid)
        if admission is None:
            admission = self._admit(pod, any(c.state == RUNNING for c in found))
        if admission.phase == "Failed":
            return
        try:
            sandbox, config = self._ensure_sandbox(pod, sandboxes)
            for container in pod.containers:
                mine = [c for c in found if c.metadata.name == container["name"]]
                self._sync_container(pod, container, sandbox, config, mine)
        except grpc.RpcError as exc:
            self._sync_error(
                pod, f"rpc error: code = {exc.code().name.title()} desc = {exc.details()}"
            )
        except containers.MountFailed as exc:
            self._sync_error(pod, f"MountVolume.SetUp failed for volume: {exc}")

    def _sync_error(self, pod: Pod, text: str) -> None:
        self.log.say(
            "pod_workers.go:1301",
            "Error syncing pod, skipping",
            "E",
            err=text,
            pod=pod.full_name,
            podUID=pod.uid,
        )

    def _admit(self, pod: Pod, is_running: bool) -> Admission:
        """Once per pod and kubelet: what is rejected stays Failed. What runs already is not asked
        again."""
        admission = Admission("Running" if is_running else "Pending")
        try:
            for container in pod.containers if not is_running else []:
                for name, count in pod.asked(container).items():
                    self.devices.allocate(pod.uid, container["name"], name, count)
        except Rejected as exc:
            admission = Admission("Failed", "UnexpectedAdmissionError", f"Pod was rejected: {exc}")
            self.devices.release(pod.uid)
            self.log.say(
                "kubelet.go:2404",
                "Pod admission denied",
                podUID=pod.uid,
                pod=pod.full_name,
                reason=admission.reason,
                message=admission.message,
            )
        self.admissions[pod.uid] = admission
        self.on_change()
        return admission

    def _ensure_sandbox(self, pod: Pod, sandboxes: list):
        newest = max(sandboxes, key=lambda s: s.created_at, default=None)
        attempt = newest.metadata.attempt if newest else 0
        if newest is not None and newest.state == READY:
            return newest.id, containers.sandbox_config(
                pod, attempt, self.log_root, self.cgroup_driver
            )
        if newest is not None:
            self.log.say(
                "util.go:48",
                "No ready sandbox for pod can be found. Need to start a new one",
                pod=pod.full_name,
            )
            attempt += 1
        config = containers.sandbox_config(pod, attempt, self.log_root, self.cgroup_driver)
        Path(config.log_directory).mkdir(parents=True, exist_ok=True)
        return self.runtime.ask("RunPodSandbox", config=config).pod_sandbox_id, config

    def _sync_container(self, pod: Pod, container: dict, sandbox: str, config, found: list) -> None:
        """``found`` are all containers of this name and pod, dead ones and other sandboxes' too."""
        newest = max(found, key=lambda c: c.created_at, default=None)
        if newest is not None and newest.pod_sandbox_id == sandbox and newest.state == RUNNING:
            self._mark_running(pod)
            return
        attempt = max((c.metadata.attempt + 1 for c in found), default=0)
        key = f"{pod.uid}/{container['name']}"
        if newest is not None and newest.state == EXITED:
            status = self.runtime.ask("ContainerStatus", container_id=newest.id).status
            if pod.spec.get("restartPolicy", "Always") == "Never" or (
                pod.spec.get("restartPolicy") == "OnFailure" and status.exit_code == 0
            ):
                self.admissions[pod.uid].phase = "Succeeded" if status.exit_code == 0 else "Failed"
                return
            ended_at = status.finished_at / 1e9
            remaining_s, delay_s = self.backoff.remaining(key, ended_at)
            if remaining_s > 0:
                self._sync_error(
                    pod,
                    f'failed to "StartContainer" for "{container["name"]}" with CrashLoopBackOff: '
                    f'"back-off {delay_s:g}s '
                    f"restarting failed container={container['name']} "
                    f'pod={pod.name}_{pod.namespace}({pod.uid})"',
                )
                return
            self.backoff.next(key, ended_at)
        self._run_container(pod, container, attempt, sandbox, config)
        for dead in sorted((c for c in found if c.state == EXITED), key=lambda c: c.created_at)[
            :-1
        ]:
            self.runtime.ask("RemoveContainer", container_id=dead.id)

    def _run_container(self, pod: Pod, container: dict, attempt: int, sandbox: str, config) -> None:
        image = self.runtime.image_id(container["image"])
        if not image:
            self._sync_error(
                pod,
                f'failed to "StartContainer" for "{container["name"]}" with ErrImageNeverPull: '
                f'"Container image \\"{container["image"]}\\" is not present with pull policy '
                'of Never"',
            )
            return
        entries = self.devices.given(pod.uid, container["name"])
        (Path(config.log_directory) / container["name"]).mkdir(parents=True, exist_ok=True)
        made = containers.container_config(
            pod, container, attempt, image, entries, self.kubelet_dir
        )
        container_id = self.runtime.ask(
            "CreateContainer", pod_sandbox_id=sandbox, config=made, sandbox_config=config
        ).container_id
        self.runtime.ask("StartContainer", container_id=container_id)
        self.log.say(
            "kuberuntime_container.go:230",
            "Started container",
            pod=pod.full_name,
            containerName=container["name"],
            containerID=container_id,
        )
        self._mark_running(pod)

    def _mark_running(self, pod: Pod) -> None:
        if self.admissions[pod.uid].phase != "Running":
            self.admissions[pod.uid].phase = "Running"
            self.on_change()

    # Pods whose manifest is gone

    def _end_orphans(self, sandboxes: list, found: list) -> None:
        for uid in {s.metadata.uid for s in sandboxes} - set(self.pods) - set(self.ending):
            mine = [s for s in sandboxes if s.metadata.uid == uid]
            self.ending[uid] = f"{mine[0].metadata.namespace}/{mine[0].metadata.name}"
            args = (
                uid,
                [s.id for s in mine],
                [c for c in found if c.labels["io.kubernetes.pod.uid"] == uid],
            )
            threading.Thread(target=self._end, args=args, daemon=True).start()

    def _end(self, uid: str, sandboxes: list[str], found: list) -> None:
        try:
            for container in found:
                grace_s = int(
                    container.annotations.get("io.kubernetes.pod.terminationGracePeriod", "30")
                )
                if container.state == RUNNING:
                    self.log.say(
                        "kuberuntime_container.go:808",
                        "Killing container with a grace period",
                        podUID=uid,
                        containerName=container.metadata.name,
                        gracePeriod=grace_s,
                    )
                    self.runtime.ask("StopContainer", container_id=container.id, timeout=grace_s)
                self.runtime.ask("RemoveContainer", container_id=container.id)
            for sandbox in sandboxes:
                self.runtime.ask("StopPodSandbox", pod_sandbox_id=sandbox)
                self.runtime.ask("RemovePodSandbox", pod_sandbox_id=sandbox)
            self.devices.release(uid)
            self.on_change()
        except grpc.RpcError as exc:
            self.log.say(
                "kubelet.go:2008", "Failed to kill pod", "E", podUID=uid, err=exc.details()
            )
        finally:
            self.ending.pop(uid, None)
            with contextlib.suppress(KeyError):
                del self.admissions[uid]
