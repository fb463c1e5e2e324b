"""The gRPC half of the stand-in device plugin: what a kubelet may ask, answered as NVIDIA's plugin
does."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

import grpc

from sim import rpc
from sim.klog import Klog
from sim.wire import plugin_api as api

NvmlCheck = Callable[[], None]
"""Initialises NVML and walks all GPUs; raises where one of them does not answer."""


class Channel:
    """Go's unbuffered channel as NVIDIA's plugin has one for all ListAndWatch streams: first come,
    first served.

    So a second client, even a closed one, takes an update away from the kubelet.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.waiting: deque[queue.SimpleQueue[str]] = deque()
        self.backlog: deque[str] = deque()
        self.is_closed = False

    def put(self, item: str) -> None:
        with self.lock:
            if self.waiting:
                self.waiting.popleft().put(item)
            else:
                self.backlog.append(item)

    def get(self) -> str:
        """Empty once it is closed."""
        mine: queue.SimpleQueue[str] = queue.SimpleQueue()
        with self.lock:
            if self.is_closed:
                return ""
            if self.backlog:
                return self.backlog.popleft()
            self.waiting.append(mine)
        return mine.get()

    def close(self) -> None:
        with self.lock:
            self.is_closed = True
            for one in self.waiting:
                one.put("")


class PluginServer:
    """Serves and registers one resource. One instance per start: a restart makes a new one."""

    def __init__(
        self,
        log: Klog,
        directory: Path,
        resource: str,
        minors: dict[str, int],
        check_all_gpus: NvmlCheck,
        passes_device_specs: bool = False,
    ) -> None:
        self.log, self.directory, self.resource = log, directory, resource
        self.socket = directory / f"nvidia-{resource.rpartition('/')[2]}.sock"
        self.health = dict.fromkeys(minors, "Healthy")
        self.minors = minors
        self.check_all_gpus = check_all_gpus
        self.passes_device_specs = passes_device_specs
        self.updates = Channel()
        self.is_stopped = threading.Event()
        self.server: grpc.Server | None = None

    def start(self) -> None:
        """Raises grpc.RpcError or RuntimeError where it cannot bind or register."""
        self.log.plain("server.go:198", f"Starting GRPC server for '{self.resource}'")
        with contextlib.suppress(FileNotFoundError):
            self.socket.unlink()
        self.server = rpc.serve(
            self.socket,
            "v1beta1.DevicePlugin",
            {
                "GetDevicePluginOptions": rpc.unary(self._options, api.Empty),
                "ListAndWatch": rpc.streaming(self._list_and_watch, api.Empty),
                "Allocate": rpc.unary(self._allocate, api.AllocateRequest),
                "GetPreferredAllocation": rpc.unary(self._prefer, api.PreferredAllocationRequest),
                "PreStartContainer": rpc.unary(lambda request, context: api.Empty(), api.Empty),
            },
        )
        self.log.plain("server.go:142", f"Starting to serve '{self.resource}' on {self.socket}")
        self._register()
        self.log.plain(
            "server.go:149", f"Registered device plugin for '{self.resource}' with Kubelet"
        )

    def _register(self) -> None:
        request = api.RegisterRequest(
            version="v1beta1", endpoint=self.socket.name, resource_name=self.resource
        )
        request.options.get_preferred_allocation_available = True
        with rpc.open_channel(self.directory / "kubelet.sock") as channel:
            rpc.call(channel, "/v1beta1.Registration/Register", request, api.Empty)

    def stop(self) -> None:
        if self.server is None:
            return
        self.log.plain("server.go:167", f"Stopping to serve '{self.resource}' on {self.socket}")
        self.is_stopped.set()
        self.updates.close()
        # Removes the socket by name, whoever has bound it since: so does the real one.
        self.server.stop(None).wait()
        with contextlib.suppress(FileNotFoundError):
            self.socket.unlink()
        self.server = None

    def sees_xid(self, xid: int, minor: int) -> None:
        """Of a GPU's replicas it takes one back: its map of parents to devices holds but one
        (health.go)."""
        device_id = next((i for i, m in reversed(self.minors.items()) if m == minor), "")
        if device_id:
            self.log.plain(
                "health.go:169",
                f"XidCriticalError: Xid={xid} on Device={device_id}; marking device as unhealthy.",
            )
            self.mark_unhealthy(device_id)

    def mark_unhealthy(self, device_id: str) -> None:
        self.updates.put(device_id)

    def _options(self, request, context):
        return api.DevicePluginOptions(get_preferred_allocation_available=True)

    def _devices(self):
        answer = api.ListAndWatchResponse()
        for uuid, health in self.health.items():
            answer.devices.add(ID=uuid, health=health)
        return answer

    def _list_and_watch(self, request, context):
        yield self._devices()
        # The context is not asked whether the client is still there: see Channel.
        while uuid := self.updates.get():
            self.health[uuid] = "Unhealthy"
            self.log.plain("server.go:279", f"'{self.resource}' device marked unhealthy: {uuid}")
            yield self._devices()

    def _allocate(self, request, context):
        answer = api.AllocateResponse()
        for container in request.container_requests:
            unknown = [uuid for uuid in container.devices_ids if uuid not in self.health]
            if unknown:
                context.abort(
                    grpc.StatusCode.UNKNOWN,
                    f"invalid allocation request for '{self.resource}': unknown device: "
                    f"{unknown[0]}",
                )
            one = answer.container_responses.add()
            behind = dict.fromkeys(i.partition("::")[0] for i in container.devices_ids)
            one.envs["NVIDIA_VISIBLE_DEVICES"] = ",".join(behind)
            if self.passes_device_specs:
                names = ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"]
                for name in names + sorted(
                    {f"nvidia{self.minors[i]}" for i in container.devices_ids}
                ):
                    one.devices.add(
                        container_path=f"/dev/{name}", host_path=f"/dev/{name}", permissions="rw"
                    )
        return answer

    def _prefer(self, request, context):
        try:
            self.check_all_gpus()
        except Exception as exc:
            context.abort(
                grpc.StatusCode.UNKNOWN,
                f"error getting list of preferred allocation devices: {exc}",
            )
        answer = api.PreferredAllocationResponse()
        for container in request.container_requests:
            must = list(container.must_include_deviceIDs)
            rest = [uuid for uuid in container.available_deviceIDs if uuid not in must]
            answer.container_responses.add().deviceIDs.extend(
                (must + rest)[: container.allocation_size]
            )
        return answer
