"""The stand-in kubelet's device manager: registration, endpoints, capacity and allocatable, lies
included."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from sim import checkpoint, rpc
from sim.klog import Klog
from sim.wire import plugin_api as api


class Rejected(Exception):
    """The pod is not admitted; the text is the kubelet's."""


@dataclass
class Client:
    """The kubelet's end of one registered plugin."""

    resource: str
    channel: grpc.Channel
    prefers: bool = False


@dataclass
class Resource:
    """Sets, not lists, in the real one: no order may be relied on."""

    healthy: list[str] = field(default_factory=list)
    unhealthy: list[str] = field(default_factory=list)
    stopped_at: float | None = None
    """When its endpoint stopped (monotonic); None while it is connected."""


class DeviceManager:
    def __init__(
        self, log: Klog, directory: Path, grace_s: float = 300.0, on_change=lambda: None
    ) -> None:
        self.log, self.directory, self.grace_s, self.on_change = log, directory, grace_s, on_change
        self.lock = threading.RLock()
        self.resources: dict[str, Resource] = {}
        self.clients: dict[str, Client] = {}
        self.entries: list[checkpoint.Entry] = []
        self.known: set[str] = set()
        """Every resource of this kubelet's life: an expired one is reported as 0, never dropped."""
        self.registrations = 0

    def start(self) -> None:
        """Reads the checkpoint, deletes all sockets, listens on kubelet.sock."""
        self.log.say(
            "manager.go:143",
            "Creating Device Plugin manager",
            path=str(self.directory / "kubelet.sock"),
        )
        self.directory.mkdir(parents=True, exist_ok=True)
        try:
            self.entries, registered = checkpoint.read(self.directory)
            for name in registered:
                # A stopped endpoint with no devices: capacity stays 0 until its plugin registers
                # again.
                self.resources[name] = Resource(stopped_at=time.monotonic())
                self.known.add(name)
        except FileNotFoundError:
            self.log.say(
                "manager.go:490",
                "Failed to read data from checkpoint",
                checkpoint=checkpoint.NAME,
                err="checkpoint is not found",
            )
        except checkpoint.Corrupt as exc:
            self.log.say(
                "manager.go:351",
                "Continue after failing to read checkpoint file. Device allocation info may "
                "NOT be up-to-date",
                "E",
                err=str(exc),
            )
        checkpoint.remove_sockets(self.directory)
        self.server = rpc.serve(
            self.directory / "kubelet.sock",
            "v1beta1.Registration",
            {"Register": rpc.unary(self._register, api.RegisterRequest)},
        )
        self.log.say(
            "server.go:80",
            "Serving device plugin registration server on socket",
            path=str(self.directory / "kubelet.sock"),
        )

    # Registration and the life of an endpoint

    def _register(self, request, context):
        name = request.resource_name
        self.log.say(
            "server.go:144",
            "Got registration request from device plugin with resource",
            resourceName=name,
        )
        if request.version != "v1beta1":
            context.abort(
                grpc.StatusCode.UNKNOWN,
                f'requested API version "{request.version}" is not supported by kubelet. '
                'Supported version is ["v1beta1"]',
            )
        client = Client(name, rpc.open_channel(self.directory / request.endpoint))
        try:
            options = rpc.call(
                client.channel,
                "/v1beta1.DevicePlugin/GetDevicePluginOptions",
                api.Empty(),
                api.DevicePluginOptions,
            )
        except grpc.RpcError as exc:
            client.channel.close()
            context.abort(grpc.StatusCode.UNKNOWN, f"failed to dial device plugin: {exc.details()}")
        client.prefers = options.get_preferred_allocation_available
        with self.lock:
            self.clients[name] = client
            self.resources.setdefault(name, Resource()).stopped_at = None
            self.known.add(name)
            self.registrations += 1
        self.log.say("manager.go:245", "Device plugin connected", resourceName=name)
        threading.Thread(target=self._watch, args=(client,), daemon=True).start()
        return api.Empty()

    def _watch(self, client: Client) -> None:
        try:
            for answer in rpc.stream(
                client.channel,
                "/v1beta1.DevicePlugin/ListAndWatch",
                api.Empty(),
                api.ListAndWatchResponse,
            ):
                self._receive(client.resource, answer)
        except (grpc.RpcError, ValueError) as exc:  # ValueError: the channel was closed under us
            said = (
                exc.details()
                if isinstance(exc, grpc.RpcError)
                else "the client connection is closing"
            )
            self.log.say(
                "client.go:88",
                "ListAndWatch ended unexpectedly for device plugin",
                "E",
                err=f"rpc error: code = Unavailable desc = {said}",
                resource=client.resource,
            )
        with self.lock:
            # The lie of the overlap: looked up by resource name, so when an old instance ends after
            # a new one has registered, it is the NEW one's client that is found, closed and marked
            # stopped.
            current = self.clients.pop(client.resource, None)
            if current is None:
                return
            resource = self.resources[client.resource]
            resource.unhealthy, resource.healthy = resource.unhealthy + resource.healthy, []
            resource.stopped_at = time.monotonic()
        current.channel.close()
        self.log.say("manager.go:262", "Endpoint became unhealthy", resourceName=client.resource)
        self.on_change()

    def _receive(self, name: str, answer) -> None:
        devices = list(answer.devices)
        turn = random.randrange(len(devices)) if devices else 0
        devices = devices[turn:] + devices[:turn]
        with self.lock:
            resource = self.resources.setdefault(name, Resource())
            resource.healthy = [d.ID for d in devices if d.health == "Healthy"]
            resource.unhealthy = [d.ID for d in devices if d.health != "Healthy"]
            self._write()
        self.log.say(
            "manager.go:305",
            "Processed device updates for resource",
            resourceName=name,
            totalCount=len(devices),
            healthyCount=len(resource.healthy),
        )
        self.on_change()

    def _write(self) -> None:
        checkpoint.write(
            self.directory, self.entries, {name: r.healthy for name, r in self.resources.items()}
        )
        self.log.say("manager.go:514", "Checkpoint file written", checkpoint=checkpoint.NAME)

    # What the node is said to have

    def expire(self) -> None:
        """Once per node status update: forgets what has been stopped for the grace period."""
        with self.lock:
            late = [
                name
                for name, r in self.resources.items()
                if r.stopped_at is not None and time.monotonic() - r.stopped_at > self.grace_s
            ]
            for name in late:
                del self.resources[name]
            if late:
                self._write()
        if late:
            self.on_change()

    def capacity(self) -> dict[str, int]:
        with self.lock:
            held = {name: len(r.healthy) + len(r.unhealthy) for name, r in self.resources.items()}
            return {name: held.get(name, 0) for name in sorted(self.known)}

    def allocatable(self) -> dict[str, list[str]]:
        with self.lock:
            return {
                name: list(self.resources[name].healthy if name in self.resources else [])
                for name in sorted(self.known)
            }

    # What containers are given

    def given(self, pod_uid: str, container: str) -> list[checkpoint.Entry]:
        with self.lock:
            return [e for e in self.entries if (e.pod_uid, e.container) == (pod_uid, container)]

    def allocate(self, pod_uid: str, container: str, name: str, count: int) -> None:
        """Raises Rejected. A container that has its devices keeps them."""
        with self.lock:
            if any(e.resource == name for e in self.given(pod_uid, container)):
                return
            resource = self.resources.get(name, Resource())
            client = self.clients.get(name)
            taken = {i for e in self.entries for i in e.device_ids}
            free = [i for i in resource.healthy if i not in taken]
        if not resource.healthy or client is None:
            raise Rejected(
                "Allocate failed due to no healthy devices present; "
                f"cannot allocate unhealthy devices {name}, which is unexpected"
            )
        if len(free) < count:
            raise Rejected(
                f"Allocate failed due to requested number of devices unavailable for {name}. "
                f"Requested: {count}, Available: {len(free)}, which is unexpected"
            )
        try:
            chosen = self._choose(client, free, count)
            request = api.AllocateRequest()
            request.container_requests.add().devices_ids.extend(chosen)
            answer = rpc.call(
                client.channel, "/v1beta1.DevicePlugin/Allocate", request, api.AllocateResponse
            )
        except grpc.RpcError as exc:
            raise Rejected(
                f"Allocate failed due to rpc error: code = {exc.code().name.title()} desc = "
                f"{exc.details()}, "
                "which is unexpected"
            ) from exc
        response = answer.container_responses[0].SerializeToString()
        with self.lock:
            self.entries.append(checkpoint.Entry(pod_uid, container, name, tuple(chosen), response))
            self._write()
        self.on_change()

    @staticmethod
    def _choose(client: Client, free: list[str], count: int) -> list[str]:
        if not client.prefers:
            return free[:count]
        request = api.PreferredAllocationRequest()
        request.container_requests.add(available_deviceIDs=free, allocation_size=count)
        answer = rpc.call(
            client.channel,
            "/v1beta1.DevicePlugin/GetPreferredAllocation",
            request,
            api.PreferredAllocationResponse,
        )
        return list(answer.container_responses[0].deviceIDs)[:count]

    def release(self, pod_uid: str) -> None:
        with self.lock:
            if any(e.pod_uid == pod_uid for e in self.entries):
                self.entries = [e for e in self.entries if e.pod_uid != pod_uid]
                self._write()
