"""CRI against real containerd, 1.6 and 1.7: the state of the plugin's container, and how to stop
it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import tree
from nspawn import Node
from remains import poll

REPO = Path(__file__).resolve().parents[2]
PLUGIN = "nvidia-device-plugin-ctr"
# Asks what its argument says, and prints what the product's own functions answered; see `ask`.
PROGRAM = r"""
import asyncio, json, sys
import grpc  # which takes longer than some of the deadlines
sys.path.insert(0, "/opt/cri")
from gpu_gate.host import cri
from gpu_gate.host.codec import encode
from gpu_gate.host.live import LiveHost
from gpu_gate.model.errors import RpcError
SOCKET = "/run/containerd/containerd.sock"
async def main():
    print(json.dumps(encode(await eval(sys.argv[1]))))
try:
    asyncio.run(main())
except RpcError as exc:
    print(json.dumps({"kind": exc.kind.value, "code": exc.code, "detail": exc.sentence}))
"""


@pytest.fixture(scope="module", params=tree.SUITES)
def node(request, make_module_node) -> Node:
    node = make_module_node(request.param, deb=False, standins=True)
    node.copy(REPO / "agent", "/opt/cri/gpu_gate")
    node.put("/opt/cri/ask.py", PROGRAM)
    registered(node)
    return node


def ask(node: Node, what: str):
    """The value of an awaitable expression over cri, SOCKET and LiveHost, on the node, by Debian's
    own gRPC."""
    return json.loads(node.run(["python3", "/opt/cri/ask.py", what]).stdout)


def registered(node: Node) -> None:
    node.wait_for("simgpu node | grep -q '\"nvidia.com/gpu\": [1-9]'")


def running(node: Node) -> dict | None:
    found = ask(node, "cri.runtime(SOCKET, 5)")["containers"]
    return next((c for c in found if c["name"] == PLUGIN and c["state"] == "running"), None)


def plugin(node: Node) -> dict:
    """The plugin's container that runs now."""
    found = running(node)
    assert found is not None
    return found


def test_running_containers(node: Node) -> None:
    found = ask(node, "cri.runtime(SOCKET, 5)")
    container = plugin(node)
    sandbox = next(s for s in found["sandboxes"] if s["id"] == container["sandbox_id"])
    assert sandbox["name"].startswith("nvidia-device-plugin")
    assert (sandbox["namespace"], sandbox["is_ready"]) == ("kube-system", True)
    assert sandbox["labels"]["app"] == "nvidia-device-plugin"
    assert container["labels"]["io.kubernetes.pod.uid"] == sandbox["uid"]
    assert "app" not in container["labels"], "the pod's own labels are not on its containers"
    now = time.time()
    assert now - 300 < sandbox["created_at"] <= container["created_at"] <= now


def test_status_of_one_container(node: Node) -> None:
    container = plugin(node)
    found = ask(node, f"cri.container(SOCKET, {container['id']!r}, 5)")
    assert (found["state"], found["exit_code"]) == ("running", 0)
    assert found["image"].startswith("localhost/sim/base")
    assert found["args"] == ["/opt/gpu-gate-sim/nvidia-device-plugin"] or found["args"][
        -1
    ].endswith("plugin")
    assert found["env"]["FAIL_ON_INIT_ERROR"] == "false"
    assert found["env"]["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert all(name.startswith(("NVIDIA_", "FAIL_ON")) for name in found["env"])
    assert 0 <= found["started_at"] - container["created_at"] < 60
    assert found["finished_at"] == 0
    assert "/var/lib/kubelet/device-plugins" in found["mounts"]
    assert container["id"] in node.read(f"/proc/{found['pid']}/cgroup")
    assert "Registered device plugin" in node.read(found["log_path"])


def test_the_live_host_gives_the_same_answers(node: Node) -> None:
    container = plugin(node)
    host = ask(node, f"LiveHost().container(SOCKET, {container['id']!r})")
    assert host["is"] == "Seen"
    assert host["value"] == ask(node, f"cri.container(SOCKET, {container['id']!r}, 5)")
    tail = ask(node, f"LiveHost().tail({host['value']['log_path']!r}, 64)")
    assert tail["is"] == "Seen"


def test_missing_containers_and_sockets(node: Node) -> None:
    assert ask(node, "cri.container(SOCKET, 'f' * 64, 5)")["kind"] == "not-found"
    assert ask(node, "LiveHost().container(SOCKET, 'f' * 64)")["why"] == "missing"
    assert ask(node, "LiveHost().runtime('/run/crio/crio.sock')")["why"] == "missing"
    assert ask(node, "cri.stop_container(SOCKET, 'f' * 64, 10, 15)") is None
    assert ask(node, "cri.remove_container(SOCKET, 'f' * 64, 5)") is None


def test_the_kubelet_recreates_a_container_after_stop_and_remove(node: Node) -> None:
    before = plugin(node)
    ask(node, f"cri.stop_container(SOCKET, {before['id']!r}, 10, 15)")
    ended = ask(node, f"cri.container(SOCKET, {before['id']!r}, 5)")
    assert (ended["state"], ended["exit_code"], ended["pid"]) == ("exited", 0, 0), (
        "SIGTERM, and time to obey"
    )
    assert ended["finished_at"] >= ended["started_at"] > 0
    assert ask(node, f"cri.stop_container(SOCKET, {before['id']!r}, 10, 15)") is None, (
        "again: nothing to do"
    )
    assert ask(node, f"cri.remove_container(SOCKET, {before['id']!r}, 5)") is None
    assert ask(node, f"cri.container(SOCKET, {before['id']!r}, 5)")["kind"] == "not-found"
    assert poll(lambda: running(node), 90)
    after = plugin(node)
    assert after["id"] != before["id"]
    assert (after["sandbox_id"], after["name"]) == (before["sandbox_id"], before["name"])


def test_a_frozen_containerd(node: Node) -> None:
    pid = node.show("containerd.service", "MainPID")
    node.run(f"kill -STOP {pid}")
    try:
        assert ask(node, "cri.runtime(SOCKET, 1)")["kind"] == "timed-out"
        assert ask(node, "LiveHost().runtime(SOCKET)")["why"] == "timed-out"
    finally:
        node.run(f"kill -CONT {pid}")
    assert plugin(node)


def test_a_stopped_containerd(node: Node) -> None:
    node.systemctl("stop", "containerd")
    try:
        assert ask(node, "cri.runtime(SOCKET, 5)")["kind"] == "missing"
    finally:
        node.systemctl("start", "containerd")
    node.wait_for(["python3", "/opt/cri/ask.py", "cri.runtime(SOCKET, 5)"])
    assert plugin(node)["state"] == "running", "containers outlive their runtime"
