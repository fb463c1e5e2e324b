"""NVML hangs, killable and not; seven of eight GPUs; the deadline and its settings."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gate
import pytest
import tree
from nspawn import Node, NodeError
from remains import poll

from agent.service import log

FREEZER = Path("/sys/fs/cgroup/freezer/cgroup.procs")
OVER = "DeadlineSec=1s\n"
HANGING = "[Probe]\nTimeoutSec=2s\n"
FROZEN = "[Probe]\nTimeoutSec=6s\n"
"""Time to freeze a probe before it is ended."""
LAST = gate.BUS_IDS[7]


@pytest.fixture(scope="module")
def node(make_module_node) -> Node:
    node = make_module_node(boot=False)
    gate.prepare(node, "plug --gpus 8\n", gate.QUICK)
    return node.boot()


@contextlib.contextmanager
def one_held_in_d(node: Node) -> Iterator[int]:
    """A probe that hangs, frozen: its pid. One that was ended meanwhile is followed by another."""
    with contextlib.ExitStack() as stack:

        def caught() -> int:
            for pid in gate.probe_pids(node)[:1]:
                with contextlib.suppress(NodeError, OSError):
                    stack.enter_context(node.uninterruptible(pid))
                    return pid
            return 0

        pid: int = gate.until(caught, lambda: gate.status(node))
        node.wait_for(f"grep -q '^State:.D' /proc/{pid}/status")
        yield pid


def probe(node: Node) -> dict[str, Any]:
    return dict(gate.status(node).get("probe", {}))


# --- seven of eight


def test_with_seven_of_eight_the_deadline_releases_and_names_the_gpu(node: Node) -> None:
    gate.start_over(node, sim="simgpu nvml show=7", settings=gate.QUICK)
    gate.wait_held(node)
    gate.wait_why(node, LAST)
    assert gate.is_held(node)
    gate.deadline_passes(node, gate.QUICK + OVER)
    gate.wait_kubelet(node)
    mark = gate.released(node)
    assert mark["kind"] == "Deadline"
    assert LAST in mark["reason"]
    code, why = gate.readyz(node)
    assert (code, "7 of 8" in why, LAST in why) == (503, True, True)
    doctor = node.run(["gpu-gate", "doctor"], check=False)
    assert doctor.returncode == 1
    assert doctor.stdout.startswith("Link 5 is broken:")
    assert LAST in " ".join(doctor.stdout.split())
    gate.until(lambda: gate.allocatable(node) == 7, lambda: gate.kubelet_state(node))
    assert LAST in gate.readyz(node)[1], "the first broken link is the one that is named"

    # The eighth comes late. The plugin registered seven and does not look again: open, and honestly
    # not ready.
    node.run("simgpu nvml ok")
    gate.wait_phase(node, "OPEN")
    assert "the kubelet lists 7 of 8 GPUs, not GPU-" in gate.wait_why(node, "7 of 8 GPUs")
    assert not gate.gate(node)["ready"]
    gate.plugin_hup(node)
    gate.wait_ready(node)


def test_on_deadline_hold_waits_up_to_hold_sec(node: Node) -> None:
    settings = gate.QUICK + "DeadlineSec=1s\nOnDeadline=hold\nHoldSec={}\n"
    gate.start_over(node, sim="simgpu nvml show=7", settings=settings.format("10min"))
    gate.wait_held(node)
    held = gate.uptime(node)
    gate.until(lambda: gate.uptime(node) > held + 3, "time stands still")
    assert gate.is_held(node)
    assert 500 < gate.gate(node)["deadline_in_s"] < 600
    gate.deadline_passes(node, settings.format("2s"))
    gate.wait_kubelet(node)
    assert gate.released(node)["kind"] == "Deadline"


# --- hangs


@pytest.mark.parametrize("how", ["hang=init", "hang=handle gpu=3 deaf"])
def test_a_hanging_probe_is_killed_reported_and_backed_off(node: Node, how: str) -> None:
    gate.start_over(node, sim=f"simgpu nvml {how}", settings=gate.QUICK + HANGING)
    gate.wait_held(node)
    pid = gate.agent_pid(node)
    why = gate.wait_why(node, "probe hung, pid ")
    assert "state S" in why or "state R" in why, (
        "R: Python itself was still starting, on a busy machine"
    )
    gate.until(lambda: not gate.probe_pids(node), "the hung probe was not ended")
    first, began = gate.status(node)["probe"]["last"]["number"], gate.uptime(node)
    gate.deadline_passes(node, gate.QUICK + OVER + HANGING)
    gate.wait_kubelet(node)
    assert gate.released(node)["kind"] == "Deadline"
    made = gate.status(node)["probe"]["last"]["number"] - first
    assert made <= 1 + (gate.uptime(node) - began) / 4, (
        "backs off: each takes 2 s, and the pause after it as long"
    )
    assert gate.agent_pid(node) == pid
    assert gate.readyz(node)[0] == 503
    hung = node.journal("-q", "-o", "cat", f"MESSAGE_ID={log.PROBE_HUNG}")
    assert "probe hung, pid" in hung
    node.run("simgpu nvml ok")
    gate.wait_phase(node, "OPEN")


@pytest.mark.skipif(
    not FREEZER.exists(), reason="no v1 freezer here, so no process can be held in state D"
)
@pytest.mark.parametrize("suite", tree.SUITES)
def test_a_probe_that_cannot_be_killed(make_node, suite: str) -> None:
    node = make_node(suite, boot=False)
    gate.prepare(node, "plug --gpus 8\nnvml hang=init\n", gate.QUICK + FROZEN)
    node.boot()
    gate.wait_held(node)
    agent = gate.agent_pid(node)
    with one_held_in_d(node) as pid:
        why = gate.wait_why(node, f"probe hung, pid {pid}, state D")
        gate.until(lambda: probe(node).get("remains"), lambda: probe(node))
        gate.deadline_passes(node, gate.QUICK + OVER + FROZEN)
        gate.wait_kubelet(node)
        assert gate.released(node)["kind"] == "Deadline"
        number = gate.status(node)["cycle"]["number"]
        for _ in range(3):
            node.systemctl("reload", "gpu-gate.service")
            gate.until(lambda: gate.status(node)["cycle"]["number"] > number, "no cycle")  # noqa: B023
            number = gate.status(node)["cycle"]["number"]
            assert gate.probe_pids(node) == [pid], (
                "none beside it: what holds it would hold the next one too"
            )
        assert gate.agent_pid(node) == agent
        assert node.run(["curl", "-sf", "http://127.0.0.1:9477/healthz"]).stdout == "ok\n"
        assert "probe hung" in why and "probe hung" in gate.readyz(node)[1]
        # TimeoutStopSec= for the agent, and once more for what SIGKILL left; systemd's own would be
        # 90 s each.
        node.run("systemctl stop gpu-gate.service", check=False, timeout=80)
        assert gate.probe_pids(node) == [pid]
        node.run("simgpu nvml ok")
    gate.until(lambda: not gate.probe_pids(node), "it outlived its thaw")
    node.systemctl("reset-failed", "gpu-gate.service", check=False)
    node.systemctl("start", "gpu-gate.service")
    gate.wait_ready(node)


@pytest.mark.skipif(
    not FREEZER.exists(), reason="no v1 freezer here, so no process can be held in state D"
)
def test_an_agent_recovers_by_itself_after_a_hang(node: Node) -> None:
    gate.start_over(
        node,
        sim="simgpu nvml hang=init",
        settings=gate.QUICK + FROZEN + "[Agent]\nHeartbeatSec=2s\n",
    )
    gate.wait_held(node)
    agent = gate.agent_pid(node)
    with one_held_in_d(node):
        gate.until(lambda: probe(node).get("remains"), lambda: probe(node))
        node.run("simgpu nvml ok")
    gate.wait_phase(node, "OPEN")
    assert gate.agent_pid(node) == agent


@pytest.mark.skipif(
    not FREEZER.exists(), reason="no v1 freezer here, so no process can be held in state D"
)
def test_nothing_remains_of_a_busy_node(make_node) -> None:
    """Closed with an agent, containers and a probe in state D: no process, no cgroup, no folder
    stays here."""
    node = make_node(boot=False)
    gate.prepare(node, "plug --gpus 8\n", gate.QUICK)
    node.boot()
    gate.wait_ready(node)
    node.run("simgpu nvml hang=init; systemctl daemon-reload")
    with one_held_in_d(node) as pid:
        host = node.host_pid(pid)
    node.close()
    assert poll(lambda: not Path(f"/proc/{host}").exists(), 60)
    assert not node.folder.exists()
    mounts = Path("/proc/self/mounts").read_text()
    cgroups = [
        path for top in Path("/sys/fs/cgroup").glob("*") for path in top.glob(f"*{node.name}*")
    ]
    assert node.name not in mounts
    assert cgroups == []
