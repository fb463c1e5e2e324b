"""Helpers for tests of repairs on a node: a broken plugin, a fresh agent, and its ledger.

A story begins with a node on which no agent runs (`without_agent`), breaks the plugin, starts the
agent, and ends with `ends_well` or `held`. The node lives on: each story leaves it as the next one
finds it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gate
from nspawn import Node
from remains import poll

INSTALLED = "/opt/gpu-gate-sim/manifests/nvidia-device-plugin.yaml"
LEDGER = "/var/lib/gpu-gate/ledger.jsonl"
EVIDENCE = "/var/lib/gpu-gate/evidence"
QUICK = """[Gate]
StableIntervalSec=0.2s
[Agent]
HeartbeatSec=1s
[Plugin]
RegisterWithinSec=1s
VerifyWithinSec=60s
"""
"""For tests that do not measure time; more of [Plugin] may follow. A repair has the time that it
needs."""
SLOW_PLUGIN = f"{QUICK}RegisterWithinSec=60s\n"
"""For a plugin that is replaced while the agent runs, and must not be repaired for being slow."""
NO_LIBRARY = "".join(
    f"        - {{name: nothing, mountPath: {lib}/x86_64-linux-gnu/libnvidia-ml.so.1}}\n"
    for lib in ("/lib", "/usr/lib")
)


# --- the plugin


def manifest(node: Node, **env: str) -> str:
    """The plugin's manifest as it was installed, with these variables instead of its own."""
    text = node.read(INSTALLED)
    for name, value in env.items():
        text = re.sub(rf"        - name: {name}\n          value: .*\n", "", text)
        text = text.replace(
            "      env:\n", f'      env:\n        - {{name: {name}, value: "{value}"}}\n'
        )
    return text


def without_library(text: str) -> str:
    """Its container gets an empty file in the library's place."""
    text = text.replace("      volumeMounts:\n", f"      volumeMounts:\n{NO_LIBRARY}")
    return text.replace(
        "  volumes:\n", "  volumes:\n    - {name: nothing, hostPath: {path: /dev/null}}\n"
    )


def wrapped(text: str, label: str, name: str, company: str) -> str:
    """The plugin under another label and name, with a second container of its image beside it."""
    text = re.sub(
        r"  labels:\n(    .*\n)+?  annotations", f"  labels:\n    {label}\n  annotations", text
    )
    other = (
        f"    - name: {company}\n      image: localhost/sim/base:1\n      imagePullPolicy: Never\n"
        '      command: [/bin/sleep, "2147483647"]\n'
    )
    return text.replace("    - name: nvidia-device-plugin-ctr\n", f"{other}    - name: {name}\n")


def wait_named(node: Node, *names: str) -> dict[str, dict[str, Any]]:
    """The running containers of these names, once there is one of each and the usual plugin is
    gone."""
    found: dict[str, dict[str, Any]] = {}

    def settled() -> bool:
        rows = [json.loads(line) for line in node.run("simcri ps").stdout.splitlines()]
        found.clear()
        found.update({row["name"]: row for row in rows})
        return set(names) <= set(found) and gate.PLUGIN not in found

    assert poll(settled, gate.PATIENCE_S, 0.4), f"in vain: {found}"
    return {name: found[name] for name in names}


def running(node: Node) -> list[dict[str, Any]]:
    return [row for row in gate.plugins(node) if row["state"] == "RUNNING"]


def wait_running(
    node: Node, wanted: Callable[[list[dict[str, Any]]], bool]
) -> list[dict[str, Any]]:
    """Wait until the running plugins are as wanted; return them. simcri is Python: frequent calls
    would slow the node."""
    found: list[dict[str, Any]] = []

    def settled() -> bool:
        found[:] = running(node)
        return wanted(found)

    assert poll(settled, gate.PATIENCE_S, 0.4), f"in vain: {gate.plugins(node)}"
    return found


def plugin(node: Node) -> dict[str, Any]:
    """The plugin's one container that runs."""
    return wait_running(node, lambda rows: len(rows) == 1)[0]


def log_path(node: Node, container_id: str) -> str:
    config = json.loads(node.run(["simcri", "inspect", container_id]).stdout)["info"]["config"]
    return f"/var/log/pods/*_{config['labels']['io.kubernetes.pod.uid']}/{config['log_path']}"


def log(node: Node, container_id: str) -> str:
    return node.run(f"cat {log_path(node, container_id)}", check=False).stdout


def wait_log(node: Node, container_id: str, words: str) -> None:
    """Wait until the container's log contains `words`."""
    path = log_path(node, container_id)
    gate.until(
        lambda: words in node.run(f"cat {path}", check=False).stdout,
        lambda: log(node, container_id),
    )


def replace_plugin(node: Node, text: str = "") -> dict[str, Any]:
    """Replace the plugin's container, with this manifest or the existing one; return the new
    container."""
    old = {row["id"] for row in gate.plugins(node)}
    if text and text != node.read(gate.MANIFEST):
        node.put(gate.MANIFEST, text)
    else:
        node.run(
            "".join(
                f"simcri stop -t 10 {row['id']}; simcri rm {row['id']}\n" for row in running(node)
            )
        )
    return wait_running(node, lambda rows: len(rows) == 1 and rows[0]["id"] not in old)[0]


def unregistered_plugin(node: Node, text: str = "") -> dict[str, Any]:
    """A plugin (an old one by default) that called NVML while that failed and does not try again;
    NVML works now."""
    node.run("simgpu nvml reset init=999")
    found = replace_plugin(node, text or manifest(node, OLD="1"))
    wait_log(node, found["id"], "only deploy this plugin on GPU nodes")
    node.run("simgpu nvml ok")
    return found


def own_nvml(node: Node, words: str) -> dict[str, str]:
    """The environment of a plugin with its own NVML, which fails independently of the host's."""
    node.run(f"{{ cat /run/simgpu/nvml; echo '{words}'; }} >/run/simgpu/own")
    return {"SIMGPU_NVML": "/run/simgpu/own"}


def registered_plugin(node: Node, **env: str) -> dict[str, Any]:
    """A plugin that registered all GPUs."""
    node.run("simgpu nvml ok")
    found = replace_plugin(node, manifest(node, **env))
    gate.until(lambda: gate.allocatable(node) == 8, lambda: gate.kubelet_state(node))
    return found


# --- the agent


def without_agent(node: Node) -> None:
    """Stop the agent and remove its state."""
    node.run(
        "systemctl stop gpu-gate; rm -rf /var/lib/gpu-gate/* /run/gpu-gate/paused; simgpu "
        "kubelet ok"
    )


def with_agent(node: Node, settings: str = "") -> None:
    gate.configure(node, QUICK + settings)
    node.systemctl("start", "gpu-gate.service")


def entries(node: Node) -> list[dict[str, Any]]:
    return [json.loads(line) for line in node.run(f"cat {LEDGER}", check=False).stdout.splitlines()]


def actions(node: Node) -> list[dict[str, Any]]:
    return [e for e in entries(node) if e["what"] not in ("outcome", "nvml-failed")]


def outcomes(node: Node) -> list[str]:
    return [e["outcome"] for e in entries(node) if e["what"] == "outcome"]


def bundles(node: Node) -> list[str]:
    return node.run(f"ls {EVIDENCE}", check=False).stdout.split()


def wait_repaired(node: Node, whats: list[str]) -> None:
    """Wait until all GPUs are listed and the node is ready; check that exactly these actions were
    taken."""
    gate.wait_ready(node)
    gate.until(lambda: gate.allocatable(node) == 8, lambda: gate.kubelet_state(node))
    if whats:
        gate.until(
            lambda: outcomes(node)[-1:] == ["the kubelet lists every GPU"], lambda: entries(node)
        )
    assert [e["what"] for e in actions(node)] == whats, entries(node)


def wait_blocked(node: Node, reason: str, count: int) -> str:
    """Wait until the phase is BLOCKED for this reason; check the number of actions; return the
    explanation."""
    now = gate.wait_gate(node, phase="BLOCKED", reason=reason)
    assert not now["ready"]
    assert len(actions(node)) == count, entries(node)
    return str(now["why"])


def finding(node: Node, condition: str) -> dict[str, Any]:
    return next(
        (f for f in gate.status(node).get("findings", []) if f["condition"] == condition), {}
    )


def wait_cycles(node: Node, looks: int = 3) -> None:
    """Wait for this number of cycles more; check that the agent is healthy."""
    before = gate.status(node)["cycle"]["number"]
    gate.until(
        lambda: gate.status(node).get("cycle", {}).get("number", 0) >= before + looks,
        lambda: gate.status(node).get("cycle"),
    )
    assert healthz(node) == 200


def healthz(node: Node) -> int:
    said = node.run(
        "curl -s -o /dev/null -m 20 -w '%{http_code}' http://127.0.0.1:9477/healthz", check=False
    ).stdout
    return int(said or 0)


@contextmanager
def stopped(node: Node, unit: str) -> Iterator[None]:
    """All processes of a unit are stopped, as on a machine that swaps."""
    node.systemctl("kill", "--signal=STOP", unit)
    try:
        yield
    finally:
        node.systemctl("kill", "--signal=CONT", unit)


def kill_agent(node: Node) -> None:
    """Kill the agent with SIGKILL, and wait for its successor."""
    pid = gate.agent_pid(node)
    node.run(["kill", "-KILL", pid])
    assert poll(
        lambda: gate.agent_pid(node) not in ("0", pid) and gate.status(node), gate.PATIENCE_S, 0.05
    )
