"""The agent dies, hangs, is stopped or exchanged: the kubelet starts when it should, and is never
started twice."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import gate
import pytest
import tree
from nspawn import Node

NEVER = "simgpu nvml init=999"
SOON = gate.QUICK + "DeadlineSec=12s\n"
"""Time to see the kubelet wait, and then its agent fail."""
CRASHES = "/run/systemd/system/gpu-gate.service.d/crash.conf"


BOTH = pytest.mark.parametrize("node", tree.SUITES, indirect=True)
ONE = pytest.mark.parametrize("node", ["bookworm"], indirect=True)
"""Where systemd's version plays no part."""


@pytest.fixture(scope="module")
def node(request: pytest.FixtureRequest, make_module_node) -> Node:
    node = make_module_node(request.param, boot=False)
    gate.prepare(node, "plug --gpus 8\n", gate.QUICK)
    return node.boot()


@pytest.fixture(autouse=True)
def _nothing_stays(node: Node) -> Iterator[None]:
    yield
    thaw(node)
    node.run(f"rm -f {CRASHES}; systemctl daemon-reload")


@BOTH
def test_agent_killed_while_the_kubelet_waits(node: Node) -> None:
    gate.start_over(node, sim=NEVER)
    gate.wait_held(node)
    pid, waits = gate.agent_pid(node), node.show("gpu-gate-wait.service", "InvocationID")
    node.systemctl("kill", "--signal=KILL", "gpu-gate.service")
    gate.until(lambda: gate.agent_pid(node) not in (pid, "0"), "not started again")
    gate.wait_first_cycle(node)
    assert gate.is_held(node)
    assert node.show("gpu-gate-wait.service", "InvocationID") == waits
    node.run("simgpu nvml ok")
    gate.wait_kubelet(node)
    assert gate.released(node)["kind"] == "Open"


@ONE
def test_a_restart_of_the_agent_does_not_extend_the_deadline(node: Node) -> None:
    gate.start_over(node, sim=NEVER, settings=gate.QUICK + "DeadlineSec=600s\n")
    gate.wait_held(node)
    began = gate.status(node)["gate"]["deadline_in_s"]
    node.systemctl("restart", "gpu-gate.service")
    gate.wait_first_cycle(node)
    assert gate.status(node)["gate"]["deadline_in_s"] < began


def stop(node: Node) -> None:
    node.systemctl("stop", "gpu-gate.service")


def freeze(node: Node) -> None:
    node.systemctl("kill", "--signal=STOP", "--kill-who=main", "gpu-gate.service")


def thaw(node: Node) -> None:
    node.systemctl("kill", "--signal=CONT", "gpu-gate.service", check=False)


def crash_loop(node: Node) -> None:
    node.put(CRASHES, "[Service]\nExecStart=\nExecStart=/bin/false\nRestartSec=100ms\n")
    node.run("systemctl daemon-reload; systemctl kill --signal=KILL gpu-gate.service")


@pytest.mark.parametrize(
    ("node", "trouble"),
    [("bookworm", stop), ("bookworm", freeze), ("bookworm", crash_loop), ("trixie", crash_loop)],
    indirect=["node"],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_without_an_agent_the_wait_ends_at_the_deadline(node: Node, trouble) -> None:
    gate.start_over(node, sim=NEVER, settings=SOON)
    gate.wait_held(node)
    trouble(node)
    assert gate.is_held(node)
    gate.wait_kubelet(node)
    reason = gate.released(node)["reason"]
    assert reason.startswith("the deadline is over; the agent does not answer"), reason
    assert node.show("gpu-gate-wait.service", "Result") == "success"
    kubelet = gate.kubelet_start(node)

    # And back: the agent takes the mark for what it is, and leaves the kubelet alone.
    node.run(f"rm -f {CRASHES}; simgpu nvml ok; systemctl daemon-reload")
    thaw(node)
    node.systemctl("reset-failed", "gpu-gate.service", check=False)
    node.systemctl("restart", "gpu-gate.service")
    gate.wait_phase(node, "OPEN")
    assert gate.kubelet_start(node) == kubelet
    assert gate.released(node)["reason"].startswith("the deadline is over")


@ONE
def test_the_watchdog_restarts_a_stopped_agent(node: Node) -> None:
    """WatchdogSec is 90 s; 6 s for the test. The kubelet is held all the while, and then let go by
    the new one."""
    node.put("/run/systemd/system/gpu-gate.service.d/watchdog.conf", "[Service]\nWatchdogSec=6s\n")
    node.systemctl("daemon-reload")
    try:
        gate.start_over(node, sim=NEVER, settings=gate.QUICK + "[Agent]\nHeartbeatSec=1s\n")
        gate.wait_held(node)
        pid = gate.agent_pid(node)
        freeze(node)
        gate.until(lambda: gate.agent_pid(node) not in (pid, "0"), "not started again")
        assert gate.is_held(node)
        node.run("simgpu nvml ok")
        gate.wait_kubelet(node)
    finally:
        node.run("rm /run/systemd/system/gpu-gate.service.d/watchdog.conf; systemctl daemon-reload")


@BOTH
def test_agent_restarted_killed_and_stopped_after_the_release(node: Node) -> None:
    gate.start_over(node)
    gate.wait_ready(node)
    kubelet, target = (
        gate.kubelet_start(node),
        node.show("gpu-gate.target", "ActiveEnterTimestampMonotonic"),
    )
    for command in ("restart gpu-gate", "kill --signal=KILL gpu-gate", "stop gpu-gate"):
        node.run(f"systemctl {command}")
        assert gate.kubelet_start(node) == kubelet
    node.systemctl("restart", "kubelet.service", timeout=60)  # not held, though no agent lives
    assert node.show("gpu-gate.target", "ActiveEnterTimestampMonotonic") == target
    node.systemctl("start", "gpu-gate.service")
    gate.wait_ready(node)


# --- emergency exits


def stop_the_target(node: Node) -> None:
    node.systemctl("stop", "gpu-gate.target")


def touch_the_mark(node: Node) -> None:
    node.run("touch /run/gpu-gate/released")


def pause(node: Node) -> None:
    node.run("gpu-gate pause")


@pytest.mark.parametrize(
    ("node", "way_out"),
    [
        ("bookworm", stop_the_target),
        ("bookworm", touch_the_mark),
        ("bookworm", pause),
        ("trixie", stop_the_target),
    ],
    indirect=["node"],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_emergency_exits(node: Node, way_out) -> None:
    gate.start_over(node, sim=NEVER)
    gate.wait_held(node)
    way_out(node)
    gate.wait_kubelet(node)
    node.wait_for("test -e /run/gpu-gate/released")
    node.run("rm -f /run/gpu-gate/paused")
    # For the rest of this boot, as the person meant it.
    node.systemctl("restart", "kubelet.service", timeout=60)
    gate.until(lambda: gate.gate(node).get("released"), lambda: gate.gate(node))
    assert not gate.gate(node)["ready"]


# --- another version


@pytest.fixture(scope="module")
def newer(deb: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same package, as the next version."""
    folder = tmp_path_factory.mktemp("newer")
    subprocess.run(["dpkg-deb", "--raw-extract", deb, folder / "tree"], check=True)
    for path in ("DEBIAN/control", "usr/share/gpu-gate/gpu_gate/__init__.py"):
        file = folder / "tree" / path
        file.write_text(file.read_text().replace("0.1.0", "99.0.0"))
    made = folder / "gpu-gate_99.0.0_all.deb"
    subprocess.run(
        ["dpkg-deb", "--build", "-Znone", "--root-owner-group", folder / "tree", made],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    shutil.rmtree(folder / "tree")
    return made


@BOTH
def test_upgrade_while_the_kubelet_waits_and_while_open(node: Node, newer: Path, deb: Path) -> None:
    gate.start_over(node, sim=NEVER)
    gate.wait_held(node)
    waits, pid = node.show("gpu-gate-wait.service", "InvocationID"), gate.agent_pid(node)
    tree.install_deb(node, newer)
    gate.wait_first_cycle(node)
    assert gate.status(node)["agent"]["version"] == "99.0.0"
    assert gate.agent_pid(node) != pid
    assert gate.is_held(node)
    assert node.show("gpu-gate-wait.service", "InvocationID") == waits

    node.run("simgpu nvml ok")
    gate.wait_kubelet(node)
    gate.wait_ready(node)
    kubelet, plugins = gate.kubelet_start(node), gate.plugins(node)
    node.run(["dpkg", "--install", f"/var/cache/{deb.name}"], timeout=120)
    gate.until(
        lambda: gate.status(node).get("agent", {}).get("version", "99.0.0") != "99.0.0",
        lambda: gate.status(node),
    )
    gate.wait_ready(node)
    assert gate.kubelet_start(node) == kubelet
    assert gate.plugins(node) == plugins
    assert node.show("gpu-gate-wait.service", "InvocationID") == waits, "no second wait"
    node.systemctl("restart", "kubelet.service", timeout=60)
    gate.wait_ready(node)
