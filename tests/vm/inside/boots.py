"""What a boot came to: the incident lived through, with the gate and without, and a way in whatever
the GPUs do."""

from __future__ import annotations

import json
from typing import Any

import gate
from here import Here

SLOW_S = 300.0
"""An emulated machine's own seconds; nothing here is measured by them."""
WAYS_IN = ("getty.target", "serial-getty@ttyS0.service", "systemd-logind.service", "dbus.service")


def incident_with_the_gate(node: Here) -> dict[str, Any]:
    """NVML returns 999 at first: the kubelet starts once it works, and the plugin registers at its
    first attempt."""
    gate.wait_ready(node, SLOW_S)
    before = [
        (float(at), result) for at, _, _, call, result in gate.nvml_calls(node) if call == "init"
    ]
    before = [result for at, result in before if at < gate.entered(node, "gpu-gate.target")]
    assert "999" in before and before[-3:] == ["0", "0", "0"], before
    assert gate.released(node)["kind"] == "Open"
    assert gate.entered(node, "kubelet.service") >= gate.entered(node, "gpu-gate.target")
    state = gate.kubelet_state(node)
    assert (gate.allocatable(node), state["registrations"]) == (8, 1), state
    (plugin,) = gate.plugins(node)
    assert (plugin["state"], plugin["attempt"]) == ("RUNNING", 0)
    return {"inits before the release": before, "agent": agent_said(node, restarts=1)}


def agent_killed_before_ready(node: Here) -> dict[str, Any]:
    """The first agent of this boot died while it was starting (killed.conf); the second released
    the kubelet."""
    said = node.journal("-u", "gpu-gate.service", "-o", "cat", "_PID=1").splitlines()
    ended = next(number for number, line in enumerate(said) if "status=9/KILL" in line)
    started = [number for number, line in enumerate(said) if line.startswith("Started ")]
    assert started and started[0] > ended, said
    assert node.show("gpu-gate.service", "NRestarts") == "1"
    assert node.show("gpu-gate-wait.service", "Result") == "success"
    return {"PID 1 said": said[:6]}


def incident_without_the_gate(node: Here) -> dict[str, Any]:
    """The same node without the gate: the plugin called NVML too early, runs, and registered
    nothing; NVML works now."""
    log = "cat /var/log/pods/*/nvidia-device-plugin-ctr/*.log"
    gate.until(
        lambda: "only deploy this plugin on GPU nodes" in node.run(log, check=False).stdout,
        lambda: node.run(log, check=False).stdout,
        SLOW_S,
    )
    count = "import pynvml as n; n.nvmlInit(); print(n.nvmlDeviceGetCount())"
    ask = ["python3", "-c", count]
    gate.until(
        lambda: node.run(ask, check=False, env={"PYTHONPATH": "/opt/gpu-gate-sim"}).stdout == "8\n",
        "NVML is not well yet",
        SLOW_S,
    )
    (plugin,) = gate.plugins(node)
    assert plugin["state"] == "RUNNING"
    assert not gate.allocatable(node) and gate.kubelet_state(node)["registrations"] == 0
    assert not node.exists("/run/gpu-gate")
    return {"kubelet": gate.kubelet_state(node)}


def held_and_reachable(node: Here) -> dict[str, Any]:
    """NVML always fails: while the kubelet waits the machine is reachable, and the boot is not
    over."""
    gate.until(lambda: gate.is_held(node), lambda: gate.status(node), SLOW_S)
    _way_in(node)
    assert gate.is_held(node) and not node.is_active("multi-user.target")
    return {"jobs": node.systemctl("list-jobs").splitlines()}


def deadline_over(node: Here) -> dict[str, Any]:
    """The kubelet starts at the deadline, with a reason; the node is not ready, and reachable."""
    gate.wait_kubelet(node, SLOW_S)
    mark = gate.released(node)
    assert mark["kind"] == "Deadline", mark
    assert node.wait_booted(SLOW_S) in ("running", "degraded")
    assert node.is_active("multi-user.target")
    assert node.is_active("nvidia-persistenced.service") and node.is_active("containerd.service")
    _way_in(node)
    assert gate.readyz(node)[0] == 503
    agent = agent_said(node)
    waited = (
        gate.entered(node, "kubelet.service") - json.loads(node.read("/run/gpu-gate/waiting"))["at"]
    )
    return {
        "mark": mark,
        "held for": round(waited, 1),
        "readyz": gate.readyz(node)[1],
        "settings": node.read(gate.CONF).split(),
        "agent": agent,
    }


def reachable(node: Here) -> dict[str, Any]:
    state = node.wait_booted(SLOW_S)
    assert node.is_active("multi-user.target")
    _way_in(node)
    return {"state": state, "failed": node.systemctl("--failed", "--plain", "--no-legend")}


def boot_time(node: Here) -> dict[str, Any]:
    """The output of systemd-analyze after the boot, for times.py."""
    node.wait_booted(SLOW_S)
    units = (
        "basic.target",
        "nvidia-persistenced.service",
        "gpu-gate.target",
        "kubelet.service",
        "multi-user.target",
    )
    usec = {unit: int(node.show(unit, "ActiveEnterTimestampMonotonic")) for unit in units}
    return {"analyze": node.run("systemd-analyze").stdout.splitlines()[0], **usec}


def agent_said(node: Here, restarts: int = 0) -> list[str]:
    """The agent's first log line in this boot; checks the number of its starts, and that none of
    its programs failed."""
    assert node.show("gpu-gate.service", "NRestarts") == str(restarts)
    said = node.journal(
        "-u", "gpu-gate.service", "-u", "gpu-gate-wait.service", "-o", "short-monotonic"
    )
    assert "Traceback" not in said and "core-dump" not in said, said
    return said.splitlines()[:20]


def _way_in(node: Here) -> None:
    for unit in WAYS_IN:
        assert node.is_active(unit), (unit, node.systemctl("status", unit, check=False))


SCENARIOS = {
    "gated": [incident_with_the_gate, agent_killed_before_ready, reachable],
    "ungated": [incident_without_the_gate, reachable],
    "deadline": [held_and_reachable, deadline_over],
    "time": [boot_time],
}
