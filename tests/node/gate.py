"""Helpers for tests of the gate on a node: its status, its kubelet, its plugin, and a fresh start.

start_over() makes a running node forget that it was released and asks for the kubelet's start
again, as its boot did: many gate stories fit into one boot that way. Stories about the boot itself
boot.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from nspawn import Node
from remains import poll

PLUGIN = "nvidia-device-plugin-ctr"
MANIFEST = "/etc/kubernetes/manifests/nvidia-device-plugin.yaml"
CONF = "/etc/gpu-gate/gpu-gate.conf.d/90-test.conf"
QUICK = "[Gate]\nStableIntervalSec=0.2s\n"
"""Three good probes within a second, for tests that do not measure time."""
SOCKETS = "/var/lib/kubelet/device-plugins"
PATIENCE_S = 300.0
"""For events that must happen, on a slow machine; no test passes because this time is over."""
BEFORE_A_HEARTBEAT_S = 25.0
"""For changes that a signal must report: the timer would find them after 30 s."""
BUS_IDS = [f"0000:{bus}:00.0" for bus in ("07", "0f", "47", "4e", "87", "90", "b7", "bd")]


def until(
    condition: Callable[[], Any], what: Callable[[], Any] | str, timeout: float = PATIENCE_S
) -> Any:
    """Wait until the condition is true and return its value. Raises AssertionError with `what` (or
    its result, if it is a function) after `timeout` seconds."""
    found: list[Any] = [None]

    def holds() -> Any:
        found[0] = condition()
        return found[0]

    if not poll(holds, timeout, 0.1):
        raise AssertionError(f"in vain for {timeout:g} s: {what() if callable(what) else what}")
    return found[0]


# --- the agent


def status(node: Node) -> dict[str, Any]:
    """The agent's /status, over its socket; {} where no agent answers."""
    words = [
        "curl",
        "-sS",
        "-m",
        "20",
        "--unix-socket",
        "/run/gpu-gate/agent.sock",
        "http://localhost/status",
    ]
    said = node.run(words, check=False).stdout
    return json.loads(said) if said.startswith("{") else {}


def gate(node: Node) -> dict[str, Any]:
    return status(node).get("gate", {})


def readyz(node: Node) -> tuple[int, str]:
    said = node.run(
        ["curl", "-s", "-m", "20", "-w", "\n%{http_code}", "http://127.0.0.1:9477/readyz"],
        check=False,
    )
    body, _, code = said.stdout.rpartition("\n")
    return int(code or 0), body.strip()


def wait_gate(node: Node, timeout: float = PATIENCE_S, **wanted: str) -> dict[str, Any]:
    """Wait until one answer has these values of the gate; return it."""

    def held() -> dict[str, Any]:
        now = gate(node)
        return now if wanted.items() <= now.items() else {}

    return dict(until(held, lambda: f"{wanted}, but {status(node)}", timeout))


def wait_phase(node: Node, phase: str, timeout: float = PATIENCE_S) -> dict[str, Any]:
    return wait_gate(node, timeout, phase=phase)


def wait_ready(node: Node, timeout: float = PATIENCE_S) -> None:
    def settled() -> bool:
        now = gate(node)
        return bool(now.get("phase") == "OPEN" and now["ready"])

    until(settled, lambda: f"OPEN and ready, but {gate(node)}", timeout)


def wait_why(node: Node, part: str, timeout: float = PATIENCE_S) -> str:
    """Wait until the reason for not being ready contains `part`; return the reason."""

    def said() -> str:
        why = str(gate(node).get("ready_why", ""))
        return why if part in why else ""

    return str(until(said, lambda: f"“{part}”, but {gate(node)}", timeout))


def agent_pid(node: Node) -> str:
    return node.show("gpu-gate.service", "MainPID")


def released(node: Node) -> dict[str, Any]:
    """The mark; {} if there is none, {"reason": text} if a user or a unit wrote it."""
    said = node.run("cat /run/gpu-gate/released", check=False)
    if said.returncode:
        return {}
    return (
        json.loads(said.stdout) if said.stdout.startswith("{") else {"reason": said.stdout.strip()}
    )


def agent_log(node: Node, *words: str) -> str:
    """The agent's journal lines of this boot."""
    return node.journal("-u", "gpu-gate.service", "-t", "gpu-gate", "-o", "cat", *words)


# --- the kubelet and its plugin


def kubelet_start(node: Node) -> str:
    """The InvocationID of the running kubelet."""
    assert node.is_active("kubelet.service"), "the kubelet does not run"
    return node.show("kubelet.service", "InvocationID")


def is_held(node: Node) -> bool:
    wait, kubelet = (
        node.show(f"{unit}.service", "ActiveState") for unit in ("gpu-gate-wait", "kubelet")
    )
    return (wait, kubelet) == ("activating", "inactive")


def wait_held(node: Node) -> None:
    """Wait until the kubelet's start waits for the gate and the agent has finished a cycle."""
    wait_first_cycle(node)
    until(lambda: is_held(node), lambda: f"held; {status(node)}")


def wait_first_cycle(node: Node) -> None:
    """Wait until an agent has finished one cycle: before that its status has no meaning."""
    until(
        lambda: status(node).get("cycle", {}).get("number"), lambda: f"a cycle, but {status(node)}"
    )


def wait_kubelet(node: Node, timeout: float = PATIENCE_S) -> None:
    until(
        lambda: node.is_active("kubelet.service"),
        lambda: f"the kubelet; {gate(node)} {released(node)}",
        timeout,
    )


def kubelet_state(node: Node) -> dict[str, Any]:
    """What the stand-in kubelet would report to the API server."""
    return json.loads(node.run("simgpu node", check=False).stdout or "{}")


def allocatable(node: Node) -> int | None:
    return kubelet_state(node).get("allocatable", {}).get("nvidia.com/gpu")


def plugins(node: Node) -> list[dict[str, Any]]:
    """The plugin's containers, dead ones too."""
    rows = [json.loads(line) for line in node.run("simcri ps -a").stdout.splitlines()]
    return [row for row in rows if row["name"] == PLUGIN]


def plugin_hup(node: Node) -> None:
    node.run(
        [
            "kill",
            "-HUP",
            str(json.loads(node.run(["simcri", "inspect", PLUGIN]).stdout)["info"]["pid"]),
        ]
    )


# --- time and tries


def uptime(node: Node) -> float:
    """Boottime, seconds: the clock of the marks and of NVML's call log."""
    return float(node.read("/proc/uptime").split()[0])


def entered(node: Node, unit: str) -> float:
    """Boottime when the unit became active."""
    usec = int(node.show(unit, "ActiveEnterTimestampMonotonic"))
    code = "import time as t; print(t.clock_gettime(t.CLOCK_BOOTTIME) - t.monotonic())"
    return usec / 1e6 + float(node.run(["python3", "-c", code]).stdout)


def nvml_calls(node: Node) -> list[list[str]]:
    """[boottime, pid, program, call, result] of every nvmlInit and nvmlShutdown since `simgpu
    calls`."""
    return [
        line.split()
        for line in node.run("cat /run/simgpu/nvml.calls", check=False).stdout.splitlines()
    ]


def deadline_passes(node: Node, settings: str) -> None:
    """Let the deadline pass now, with these settings."""
    configure(node, settings)
    node.systemctl("reload", "gpu-gate.service")


def probe_pids(node: Node) -> list[int]:
    return [int(pid) for pid in node.run("pgrep -f [n]vml_probe.py", check=False).stdout.split()]


# --- starting

# The stand-ins for NVML and nvidia-modprobe write down who called them; the agent's own sandbox has
# no room for that.
RECORDS = "[Service]\nReadWritePaths=-/run/simgpu\n"


def prepare(node: Node, sim: str, settings: str = "") -> None:
    """Before the boot: these GPUs, these settings."""
    node.put("/etc/simgpu.conf", sim)
    node.put("/etc/systemd/system/gpu-gate.service.d/records.conf", RECORDS)
    configure(node, settings)


def ready(make_module_node: Callable[..., Node], settings: str = QUICK, gpus: int = 8) -> Node:
    """A node for the tests of one file, booted and ready."""
    node = make_module_node(boot=False)
    prepare(node, f"plug --gpus {gpus}\n", settings)
    node.boot()
    wait_ready(node)
    return node


def pod_text(name: str, gpus: int, devices: str, security: str = "", env: str = "") -> str:
    """A static pod of the kubelet's stand-in that sleeps; `devices` come in the OCI spec, as CDI's
    do."""
    limits = f'{{limits: {{nvidia.com/gpu: "{gpus}"}}}}' if gpus else "{}"
    return f"""
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: default, annotations: {{sim/devices: "{devices}"}}}}
spec:
  hostNetwork: true
  terminationGracePeriodSeconds: 1
  containers:
    - name: {name}
      image: localhost/sim/base:1
      command: [/bin/sleep, "2147483647"]
      securityContext: {{{security}}}
      resources: {limits}
      {env}
"""


def configure(node: Node, text: str) -> None:
    node.put(CONF, text)


def start_over(node: Node, *, sim: str = "", settings: str = QUICK, start: bool = True) -> None:
    """Remove the release, set the GPUs with `sim` (shell lines), and queue the kubelet's start."""
    node.run(
        f"""
        systemctl stop kubelet gpu-gate.target gpu-gate-wait gpu-gate
        systemctl reset-failed kubelet gpu-gate gpu-gate-wait 2>/dev/null || :
        rm -rf /run/gpu-gate /var/lib/gpu-gate/learned.json
        simgpu nvml ok; simgpu nodes make
        {sim}
        """
    )
    configure(node, settings)
    if start:
        node.systemctl("start", "--no-block", "gpu-gate.service", "kubelet.service")
