#!/usr/bin/python3
"""A device plugin that behaves, and misbehaves, as NVIDIA's does; NVML comes through nvidia-ml-py.

Environment:
  FAIL_ON_INIT_ERROR   true (default): NVML failure ends it with 1; false: Running for ever, nothing
  registered
  OLD=1                as v0.9: the old log form; after a failed init deaf to kubelet restarts,
  SIGHUP ends it with 2
  DEAF=1               never registers again, whatever happens; DEAF=socket: only SIGHUP makes it
  NVIDIA_VISIBLE_DEVICES   "all", or the indices or UUIDs (of MIG devices, too) that it may see
  MIG_STRATEGY         none (default), single, mixed
  REPLICAS=4           time-slicing: every device so many times, ids with ::N; RENAME=yes: as
  RESOURCE.shared
  PASS_DEVICE_SPECS=true   Allocate answers with device nodes
  LINGER_S=5           on SIGTERM serves on for that long (an old instance that outlives a new one)
  RETRY_S=30           after a failed registration
  SOCKET_DIR, RESOURCE
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time
from pathlib import Path

import grpc
import pynvml
from sim.inotify import created_names
from sim.klog import Klog
from sim.offers import RESOURCE, STRATEGY, Invalid, Offers, enumerate_devices
from sim.plugin_server import PluginServer


def is_true(value: str) -> bool:
    return value.lower() in ("1", "t", "true")


FAILS_ON_INIT = is_true(os.environ.get("FAIL_ON_INIT_ERROR", "true"))
IS_OLD = is_true(os.environ.get("OLD", ""))
DEAF = os.environ.get("DEAF", "")
DIRECTORY = Path(os.environ.get("SOCKET_DIR", "/var/lib/kubelet/device-plugins"))
RETRY_S = float(os.environ.get("RETRY_S", "30"))
LINGER_S = float(os.environ.get("LINGER_S", "0"))
PREREQUISITES = (
    "If this is a GPU node, did you set the docker default runtime to `nvidia`?",
    "You can check the prerequisites at: https://github.com/NVIDIA/k8s-device-plugin#prerequisites",
    "You can learn how to set the runtime at: "
    "https://github.com/NVIDIA/k8s-device-plugin#quick-start",
    "If this is not a GPU node, you should set up a toleration or nodeSelector to only deploy "
    "this plugin"
    " on GPU nodes",
)

log = Klog(pid=1, is_old_form=IS_OLD)
wakes: queue.SimpleQueue[str] = queue.SimpleQueue()
"""``created``, or the name of a signal; filled by signal handlers and the inotify thread."""


class InitFailed(Exception):
    """NVML did not initialise: FAIL_ON_INIT_ERROR decides what that means."""


class Broken(Exception):
    """NVML initialised and then failed: the plugin ends, whatever FAIL_ON_INIT_ERROR says."""


def words(exc: pynvml.NVMLError) -> str:
    return (
        "could not load NVML library"
        if exc.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
        else str(exc)
    )


def config_text() -> str:
    flags = {
        "migStrategy": STRATEGY,
        "failOnInitError": FAILS_ON_INIT,
        "mpsRoot": "",
        "nvidiaDriverRoot": "/",
        "nvidiaDevRoot": "/",
        "gdrcopyEnabled": False,
        "gdsEnabled": False,
        "mofedEnabled": False,
        "useNodeFeatureAPI": None,
        "deviceDiscoveryStrategy": "auto",
        "plugin": {
            "passDeviceSpecs": is_true(os.environ.get("PASS_DEVICE_SPECS", "")),
            "deviceListStrategy": ["envvar"],
            "deviceIDStrategy": "uuid",
            "cdiAnnotationPrefix": "cdi.k8s.io/",
            "nvidiaCTKPath": "/usr/bin/nvidia-ctk",
            "containerDriverRoot": "/driver-root",
            "sharedDevicesAllocationPolicy": "distributed",
        },
    }
    resources = {"gpus": [{"pattern": "*", "name": RESOURCE}]}
    config = {
        "version": "v1",
        "flags": flags,
        "resources": resources,
        "sharing": {"timeSlicing": {}},
        "imex": {},
    }
    return "\nRunning with config:\n" + json.dumps(config, indent=2)


def enumerate_gpus() -> Offers:
    """What is offered, NVML left initialised."""
    try:
        return enumerate_devices()
    except Invalid as exc:
        raise Broken(f"unable to validate flags: {exc}") from exc
    except pynvml.NVMLError as exc:
        raise Broken(f"error visiting device: error getting device handle: {words(exc)}") from exc


def check_all_gpus() -> None:
    pynvml.nvmlInit()
    try:
        for index in range(pynvml.nvmlDeviceGetCount()):
            pynvml.nvmlDeviceGetHandleByIndex(index)
    finally:
        pynvml.nvmlShutdown()


def complain(first: str, rest: tuple[str, ...]) -> None:
    for number, line in enumerate((first, *rest)):
        log.plain(f"factory.go:{99 + number}", line, "E")


def init_nvml() -> None:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as exc:
        prefix = "nvml: " if IS_OLD and exc.value != pynvml.NVML_ERROR_LIBRARY_NOT_FOUND else ""
        complain(f"Failed to initialize NVML: {prefix}{words(exc)}.", PREREQUISITES)
        raise InitFailed(words(exc)) from exc


def platform_unknown(why: str) -> Offers:
    """A container without the driver's library: no GPU node at all, as far as the plugin can
    see."""
    log.plain("plugin-manager.go:101", f"Detected non-NVML platform: {why}")
    complain(
        "Incompatible strategy detected auto",
        (
            "If this is a GPU node, did you configure the NVIDIA Container Toolkit?",
            *PREREQUISITES[1:],
        ),
    )
    if FAILS_ON_INIT:
        raise Broken("unable to create plugin manager: invalid device discovery strategy")
    return {}


def retrieve_gpus() -> Offers:
    """Reads the configuration and asks NVML; the log's order is the real one's."""
    if IS_OLD:
        log.plain("main.go", "Retreiving plugins.")
        return enumerate_gpus()
    log.plain("main.go:294", "Starting Plugins.")
    log.plain("main.go:351", "Loading configuration.")
    log.plain("main.go:377", "Updating config with default resource matching patterns.")
    log.plain("main.go:388", config_text())
    log.plain("main.go:391", "Retrieving plugins.")
    try:  # the platform is found out by trying NVML: a hang shows no line after the one above
        pynvml.nvmlInit()
        pynvml.nvmlShutdown()
    except pynvml.NVMLError as exc:
        if exc.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
            return platform_unknown(words(exc))
    log.plain("plugin-manager.go:101", "Detected platform: nvml")
    log.plain("plugin-manager.go:50", "Using device discovery strategy: nvml")
    try:
        init_nvml()
    except InitFailed as exc:
        if FAILS_ON_INIT:
            raise Broken(f"error creating plugin manager: nvml init failed: {exc}") from exc
        log.plain("factory.go:107", f"nvml init failed: {exc}", "W")
        return {}
    return enumerate_gpus()


def watch_health(servers: list[PluginServer]) -> None:
    """Waits for critical events until the servers stop; runs in a thread of its own."""
    log.plain(
        "health.go:64",
        "Ignoring the following XIDs for health checks: map[13:true 31:true 43:true 45:true "
        "68:true 109:true]",
    )
    try:
        events = pynvml.nvmlEventSetCreate()
        while not servers[0].is_stopped.is_set():
            try:
                event = pynvml.nvmlEventSetWait_v2(events, 500)
            except pynvml.NVMLError as exc:
                if exc.value == pynvml.NVML_ERROR_TIMEOUT:
                    continue
                raise
            if event.eventData in (13, 31, 43, 45, 68, 109):
                continue
            minor = pynvml.nvmlDeviceGetMinorNumber(event.device)
            for server in servers:
                server.sees_xid(event.eventData, minor)
    except pynvml.NVMLError as exc:
        log.plain(
            "health.go:121",
            f"Error waiting for event: {exc}; Marking all devices as unhealthy",
            "E",
        )
        for server in servers:
            for device_id in server.health:
                server.mark_unhealthy(device_id)


def start() -> tuple[list[PluginServer], float | None]:
    """The running servers, one a resource; and when to try again (monotonic), if a registration
    failed."""
    offers = retrieve_gpus()
    if not offers:
        log.plain("main.go:416", "No devices found. Waiting indefinitely.")
        return [], None
    specs = is_true(os.environ.get("PASS_DEVICE_SPECS", ""))
    servers = [
        PluginServer(log, DIRECTORY, name, ids, check_all_gpus, specs)
        for name, ids in offers.items()
    ]
    try:
        for server in servers:
            server.start()
    except (grpc.RpcError, RuntimeError) as exc:
        said = exc.details() if isinstance(exc, grpc.RpcError) else exc
        log.plain(
            "server.go:145",
            f"Could not register device plugin: rpc error: code = Unavailable desc = {said}",
            "E",
        )
        stop(servers)
        log.plain("main.go:303", "Failed to start one or more plugins. Retrying in 30s...")
        return [], time.monotonic() + RETRY_S
    threading.Thread(target=watch_health, args=(servers,), daemon=True).start()
    return servers, None


def stop(servers: list[PluginServer]) -> None:
    for server in servers:
        server.stop()


def watch_kubelet_socket() -> None:
    def watch(names) -> None:
        for name in names:
            if name == "kubelet.sock":
                wakes.put("created")

    threading.Thread(target=watch, args=(created_names(DIRECTORY),), daemon=True).start()


def listen_to_signals() -> None:
    for one in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
        signal.signal(one, lambda number, frame: wakes.put(signal.Signals(number).name))


def next_wake(retry_at: float | None) -> str:
    try:
        return wakes.get(timeout=max(0.0, retry_at - time.monotonic()) if retry_at else None)
    except queue.Empty:
        return "retry"


def restarts(wake: str) -> bool:
    if wake == "created" and not DEAF:
        log.plain("main.go:319", f"inotify: {DIRECTORY}/kubelet.sock created, restarting.")
        return True
    if wake == "SIGHUP" and DEAF not in ("1", "true"):
        log.plain("main.go:333", "Received SIGHUP, restarting.")
        return True
    return wake == "retry"


def run() -> int:
    if IS_OLD:
        log.plain("main.go", "Loading NVML")
        try:
            init_nvml()
        except InitFailed as exc:
            if FAILS_ON_INIT:
                log.plain("main.go", f"Error: failed to initialize NVML: {exc}")
                return 1
            # Neither watcher nor handler exists yet: Go's own handling of a signal is exit 2.
            for one in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
                signal.signal(one, lambda number, frame: os._exit(2))
            while True:
                signal.pause()
        log.plain("main.go", "Starting FS watcher.")
        watch_kubelet_socket()
        log.plain("main.go", "Starting OS watcher.")
        listen_to_signals()
    else:
        log.say("main.go:269", "Starting NVIDIA Device Plugin", version="v0.20.0")
        log.plain("main.go:272", f"Starting FS watcher for {DIRECTORY}")
        watch_kubelet_socket()
        log.plain("main.go:279", "Starting OS watcher.")
        listen_to_signals()
    while True:
        servers, retry_at = start()
        while not restarts(wake := next_wake(retry_at)):
            if wake in ("SIGINT", "SIGTERM", "SIGQUIT"):
                said = {"SIGTERM": "terminated", "SIGINT": "interrupt", "SIGQUIT": "quit"}[wake]
                log.plain("main.go:336", f'Received signal "{said}", shutting down.')
                time.sleep(LINGER_S)
                log.plain("main.go:423", "Stopping plugins.")
                stop(servers)
                return 0
        log.plain("main.go:423", "Stopping plugins.")
        stop(servers)
        # Python is slower to be heard than Go: let the kubelet see this stream end before the next
        # registration.
        time.sleep(0.02)


def main() -> int:
    try:
        return run()
    except Broken as exc:
        if IS_OLD:
            log.plain("main.go", f"panic: Fatal: {exc}")
            return 2
        log.plain("main.go:173", f"error starting plugins: error getting plugins: {exc}", "E")
        return 1


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    # gRPC's threads may still hold a stream: do not wait for them.
    os._exit(code)
