"""The stand-in kubelet and plugin together: the observed behaviour of the real ones, misleading
state included."""

from __future__ import annotations

import json
import signal
import time

import grpc
import pytest
from sim import checkpoint, rpc
from sim.wire import plugin_api, pod_resources_api
from sim_programs import Programs, text_of, wait_for

pytest.importorskip("pynvml")


def ask(programs: Programs, method: str = "GetAllocatableResources", timeout_s: float = 2.0):
    names = {
        "GetAllocatableResources": ("AllocatableResourcesRequest", "AllocatableResourcesResponse"),
        "List": ("ListPodResourcesRequest", "ListPodResourcesResponse"),
    }[method]
    request, answer = (getattr(pod_resources_api, name) for name in names)
    with rpc.open_channel(programs.pod_resources) as channel:
        return rpc.call(channel, f"/v1.PodResourcesLister/{method}", request(), answer, timeout_s)


def registered(programs: Programs) -> dict[str, list[str]]:
    return json.loads((programs.plugins / checkpoint.NAME).read_text())["Data"]["RegisteredDevices"]


def test_registration(programs):
    programs.kubelet()
    plugin = programs.plugin()
    wait_for(lambda: programs.allocatable() == 8)
    answer = ask(programs)
    assert len(answer.devices) == 8
    assert all(
        d.resource_name == "nvidia.com/gpu" and len(d.device_ids) == 1 for d in answer.devices
    )
    assert len(registered(programs)["nvidia.com/gpu"]) == 8
    assert text_of(plugin).count("Registered device plugin for 'nvidia.com/gpu' with Kubelet") == 1


def test_grace_period_and_the_lying_checkpoint(programs):
    programs.kubelet("--grace-s", "0.8", "--status-s", "0.1")
    plugin = programs.plugin()
    wait_for(lambda: programs.allocatable() == 8)
    plugin.send_signal(signal.SIGTERM)
    assert plugin.wait(3) == 0
    assert not (programs.plugins / "nvidia-gpu.sock").exists()
    wait_for(lambda: programs.allocatable() == 0)
    assert programs.capacity() == 8
    assert not ask(programs).devices
    assert len(registered(programs)["nvidia.com/gpu"]) == 8
    wait_for(lambda: programs.capacity() == 0)
    assert registered(programs) == {}


def test_a_killed_plugin_leaves_its_socket_and_restarts(programs):
    programs.kubelet()
    plugin = programs.plugin()
    wait_for(lambda: programs.allocatable() == 8)
    plugin.kill()
    wait_for(lambda: programs.allocatable() == 0)
    assert (programs.plugins / "nvidia-gpu.sock").exists()
    programs.plugin()
    wait_for(lambda: programs.allocatable() == 8)


def test_a_kubelet_restart_is_detected_by_the_sockets_creation(programs):
    kubelet = programs.kubelet()
    plugin = programs.plugin()
    wait_for(lambda: programs.allocatable() == 8)
    kubelet.send_signal(signal.SIGTERM)
    kubelet.wait(3)
    assert (programs.plugins / "kubelet.sock").exists()
    programs.kubelet()
    wait_for(lambda: programs.node().get("registrations") == 1 and programs.allocatable() == 8)
    assert "kubelet.sock created, restarting." in text_of(plugin)


@pytest.mark.parametrize("deaf", ["1", "socket"])
def test_deaf_plugin(programs, deaf):
    kubelet = programs.kubelet()
    plugin = programs.plugin(DEAF=deaf)
    wait_for(lambda: programs.allocatable() == 8)
    kubelet.kill()
    kubelet.wait()
    programs.kubelet()
    time.sleep(0.7)
    assert programs.allocatable() == 0 and programs.capacity() == 0
    assert not (programs.plugins / "nvidia-gpu.sock").exists()
    plugin.send_signal(signal.SIGHUP)
    if deaf == "socket":
        wait_for(lambda: programs.allocatable() == 8)
    else:
        time.sleep(0.5)
        assert programs.allocatable() == 0


def test_overlap_of_old_and_new_instance(programs):
    """The old one's exit removes the new one's endpoint, although all hints show a registration;
    SIGHUP helps."""
    programs.kubelet()
    old = programs.plugin()
    wait_for(lambda: programs.node().get("registrations") == 1)
    new = programs.plugin()
    wait_for(lambda: programs.node().get("registrations") == 2 and programs.allocatable() == 8)
    old.send_signal(signal.SIGTERM)
    old.wait(3)
    wait_for(lambda: programs.allocatable() == 0)
    time.sleep(0.3)
    assert programs.allocatable() == 0 and new.poll() is None
    assert "Registered device plugin" in text_of(new)
    assert len(registered(programs)["nvidia.com/gpu"]) == 8
    new.send_signal(signal.SIGHUP)
    wait_for(lambda: programs.allocatable() == 8)


@pytest.mark.parametrize("hups", [1, 4])
def test_sighup_in_place(programs, hups):
    programs.kubelet()
    plugin = programs.plugin()
    wait_for(lambda: programs.allocatable() == 8)
    for n in range(hups):
        plugin.send_signal(signal.SIGHUP)
        wait_for(lambda n=n: programs.node()["registrations"] == n + 2)
    time.sleep(0.3)
    assert programs.allocatable() == 8 and plugin.poll() is None


def test_incident_and_sighup(programs):
    programs.simgpu("nvml", "init=999")
    programs.kubelet()
    plugin = programs.plugin(FAIL_ON_INIT_ERROR="false")
    wait_for(lambda: "No devices found. Waiting indefinitely." in text_of(plugin))
    assert "Failed to initialize NVML: Unknown Error." in text_of(plugin)
    programs.simgpu("nvml", "reset", "check-devices=off")
    time.sleep(0.5)
    assert plugin.poll() is None and programs.allocatable() is None
    plugin.send_signal(signal.SIGHUP)
    wait_for(lambda: programs.allocatable() == 8)


def test_failing_on_init_error(programs):
    programs.simgpu("nvml", "init=999")
    programs.kubelet()
    assert programs.plugin().wait(5) == 1


@pytest.mark.parametrize("signal_", [signal.SIGHUP, signal.SIGTERM])
def test_old_plugin_after_failed_init(programs, signal_):
    programs.simgpu("nvml", "init=999")
    programs.kubelet()
    plugin = programs.plugin(OLD="1", FAIL_ON_INIT_ERROR="false")
    wait_for(lambda: "this is not a GPU node" in text_of(plugin))
    assert (
        text_of(plugin).splitlines()[1].endswith("Failed to initialize NVML: nvml: Unknown Error.")
    )
    plugin.send_signal(signal_)
    assert plugin.wait(3) == 2


def test_old_plugin_registers(programs):
    programs.kubelet()
    plugin = programs.plugin(OLD="1")
    wait_for(lambda: programs.allocatable() == 8)
    assert "Retreiving plugins." in text_of(plugin)


def test_no_devices_waits_whatever_the_settings(programs):
    programs.simgpu("nvml", "show=0")
    programs.kubelet()
    plugin = programs.plugin(FAIL_ON_INIT_ERROR="true")
    wait_for(lambda: "No devices found. Waiting indefinitely." in text_of(plugin))
    assert plugin.poll() is None


def test_seven_of_eight_for_good(programs):
    programs.simgpu("nvml", "show=7")
    programs.kubelet()
    programs.plugin()
    wait_for(lambda: programs.allocatable() == 7)
    programs.simgpu("nvml", "ok")
    time.sleep(0.4)
    assert programs.allocatable() == 7


def test_a_lost_gpu_ends_the_plugin_whatever_its_settings(programs):
    programs.simgpu("nvml", "gpu=3", "error=15")
    programs.kubelet()
    assert programs.plugin(FAIL_ON_INIT_ERROR="false").wait(5) == 1
    assert programs.plugin(FAIL_ON_INIT_ERROR="false", OLD="1").wait(5) == 2


def test_hang_in_nvml(programs):
    programs.simgpu("nvml", "hang=init")
    programs.kubelet()
    plugin = programs.plugin()
    wait_for(lambda: "Retrieving plugins." in text_of(plugin))
    time.sleep(0.3)
    plugin.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    assert plugin.poll() is None
    assert text_of(plugin).rstrip().endswith("Retrieving plugins.")


def test_limited_to_some_gpus(programs):
    programs.kubelet()
    programs.plugin(NVIDIA_VISIBLE_DEVICES="2,5")
    wait_for(lambda: programs.allocatable() == 2)


GPU = "nvidia.com/gpu"


def allocatables(programs) -> dict[str, int]:
    return {name: count for name, count in programs.node().get("allocatable", {}).items() if count}


@pytest.mark.parametrize(
    ("env", "offered"),
    [
        ({"MIG_STRATEGY": "none"}, {GPU: 8}),
        (
            {"MIG_STRATEGY": "mixed"},
            {GPU: 7, "nvidia.com/mig-1g.10gb": 2, "nvidia.com/mig-3g.40gb.me": 1},
        ),
        (
            {"MIG_STRATEGY": "mixed", "NVIDIA_VISIBLE_DEVICES": "MIG-b,3"},
            {GPU: 1, "nvidia.com/mig-1g.10gb": 1},
        ),
        ({"MIG_STRATEGY": "single", "NVIDIA_VISIBLE_DEVICES": "0"}, {GPU: 3}),
        ({"REPLICAS": "4"}, {GPU: 32}),
        (
            {"REPLICAS": "3", "RENAME": "yes", "NVIDIA_VISIBLE_DEVICES": "1"},
            {"nvidia.com/gpu.shared": 3},
        ),
    ],
)
def test_mig_strategies_and_replicas(programs, env, offered):
    programs.simgpu("nvml", "mig=on", "gpu=0")
    for uuid, profile in (("MIG-a", "1g.10gb"), ("MIG-b", "1g.10gb"), ("MIG-c", "3g.40gb+me")):
        programs.simgpu("nvml", "mig-device=0", f"uuid={uuid}", f"profile={profile}", "gi=1")
    programs.kubelet()
    programs.plugin(**env)
    wait_for(lambda: allocatables(programs) == offered)


def test_single_wants_all_gpus_alike(programs):
    programs.simgpu("nvml", "mig=on", "gpu=0")
    programs.simgpu("nvml", "mig-device=0", "uuid=MIG-a", "profile=1g.10gb", "gi=1")
    programs.kubelet()
    plugin = programs.plugin(MIG_STRATEGY="single")
    assert plugin.wait(5) == 1 and "same migEnabled value" in text_of(plugin)


def test_xid_takes_back_one_replica(programs):
    programs.kubelet()
    programs.plugin(REPLICAS="4")
    wait_for(lambda: programs.allocatable() == 32)
    time.sleep(0.3)
    programs.simgpu("nvml", "xid=79", "gpu=3")
    wait_for(lambda: programs.allocatable() == 31)


def test_xid_makes_one_unhealthy(programs):
    programs.kubelet()
    programs.plugin()
    wait_for(lambda: programs.allocatable() == 8)
    time.sleep(0.3)
    programs.simgpu("nvml", "xid=79", "gpu=3")
    wait_for(lambda: programs.allocatable() == 7)
    assert programs.capacity() == 8


def test_second_list_and_watch_swallows_an_update(programs):
    programs.kubelet()
    programs.plugin()
    wait_for(lambda: programs.allocatable() == 8)
    with rpc.open_channel(programs.plugins / "nvidia-gpu.sock") as channel:
        stream = rpc.stream(
            channel,
            "/v1beta1.DevicePlugin/ListAndWatch",
            plugin_api.Empty(),
            plugin_api.ListAndWatchResponse,
        )
        assert len(next(stream).devices) == 8
        time.sleep(1.0)  # until the plugin's handler waits for its next update
        stream.cancel()
    for gpu, expected in (
        (1, 7),
        (2, 7),
        (3, 5),
    ):  # the second update went to the stream that was closed
        programs.simgpu("nvml", "xid=79", f"gpu={gpu}")
        time.sleep(0.5)
        assert programs.allocatable() == expected


def test_preferred_allocation_needs_all_gpus(programs):
    programs.kubelet()
    programs.plugin()
    wait_for(lambda: programs.allocatable() == 8)
    with rpc.open_channel(programs.plugins / "nvidia-gpu.sock") as channel:
        request = plugin_api.PreferredAllocationRequest()
        request.container_requests.add(available_deviceIDs=["a", "b"], allocation_size=1)
        method = "/v1beta1.DevicePlugin/GetPreferredAllocation"
        answer = rpc.call(channel, method, request, plugin_api.PreferredAllocationResponse)
        assert list(answer.container_responses[0].deviceIDs) == ["a"]
        programs.simgpu("lose", "3")
        with pytest.raises(grpc.RpcError) as caught:
            rpc.call(channel, method, request, plugin_api.PreferredAllocationResponse)
        assert "GPU is lost" in caught.value.details()


def test_rate_limit(programs):
    programs.kubelet()
    seen = []
    with rpc.open_channel(programs.pod_resources) as channel:
        for _ in range(60):
            try:
                rpc.call(
                    channel,
                    "/v1.PodResourcesLister/List",
                    pod_resources_api.ListPodResourcesRequest(),
                    pod_resources_api.ListPodResourcesResponse,
                )
            except grpc.RpcError as exc:
                seen.append((exc.code(), exc.details()))
    assert seen and set(seen) == {(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")}
    time.sleep(0.15)
    ask(programs, "List")


FAULTS = {
    "hang": grpc.StatusCode.DEADLINE_EXCEEDED,
    "unavailable": grpc.StatusCode.UNAVAILABLE,
    "unimplemented": grpc.StatusCode.UNIMPLEMENTED,
    "garbage": grpc.StatusCode.INTERNAL,
    "refuse": grpc.StatusCode.UNAVAILABLE,
    "absent": grpc.StatusCode.UNAVAILABLE,
}


def test_pod_resources_faults(programs):
    programs.kubelet()
    for fault, code in FAULTS.items():
        programs.simgpu("kubelet", f"podresources={fault}")
        if fault in ("refuse", "absent"):
            time.sleep(0.4)
        assert programs.pod_resources.exists() == (fault != "absent")
        with pytest.raises(grpc.RpcError) as caught:
            ask(programs, timeout_s=0.3)
        assert caught.value.code() == code, fault
    programs.simgpu("kubelet", "ok")
    time.sleep(0.5)
    ask(programs)


def test_sockets_go_and_the_checkpoint_stays(programs):
    programs.kubelet().kill()
    programs.plugins.joinpath("old").write_text("kept")
    checkpoint.write(programs.plugins, [], {"nvidia.com/gpu": ["GPU-a"]})
    programs.kubelet()
    assert registered(programs) == {"nvidia.com/gpu": ["GPU-a"]}
    assert programs.capacity() == 0 and programs.allocatable() == 0
    assert (programs.plugins / "old").exists()


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"Data":{"PodDev',
        '{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":1}',
    ],
)
def test_bad_checkpoint_is_survived_and_rewritten(programs, text):
    programs.plugins.mkdir(parents=True)
    (programs.plugins / checkpoint.NAME).write_text(text)
    kubelet = programs.kubelet()
    programs.plugin()
    wait_for(lambda: programs.allocatable() == 8)
    assert "Continue after failing to read checkpoint file" in text_of(kubelet)
    assert len(registered(programs)["nvidia.com/gpu"]) == 8
