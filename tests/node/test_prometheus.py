"""A real Prometheus scrapes the real agent: its alert fires while the plugin offers nothing, and
resolves."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import gate
import repair
from nspawn import Node

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "packaging/monitoring/gpu-gate.rules.yml"
CONFIG = """
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [/root/rules.yml]
scrape_configs:
  - job_name: gpu-gate
    static_configs: [{targets: ['127.0.0.1:9477']}]
"""
UNIT = """[Service]
ExecStart=/usr/local/bin/prometheus --config.file=/root/prometheus.yml --storage.tsdb.path=/run/prometheus \
--web.listen-address=127.0.0.1:9090
"""


def ask(node: Node, path: str) -> dict[str, object]:
    said = node.run(
        ["curl", "-s", "-m", "5", f"http://127.0.0.1:9090/api/v1/{path}"], check=False
    ).stdout
    found: dict[str, object] = json.loads(said)["data"] if said.startswith("{") else {}
    return found


def firing(node: Node) -> set[str]:
    alerts = ask(node, "alerts").get("alerts", [])
    return {a["labels"]["alertname"] for a in alerts if a["state"] == "firing"}  # type: ignore[attr-defined]


def test_the_alert_fires_in_the_incident_and_resolves_after_the_repair(make_node):
    words = [str(ROOT / "tests/tools/fetch-program"), "prometheus", "usr/bin/prometheus"]
    program = subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()
    node = make_node(boot=False)
    gate.prepare(node, "plug --gpus 8\n", gate.QUICK)
    node.copy(Path(program), "/usr/local/bin/prometheus")
    node.put("/root/rules.yml", re.sub(r"for: \d+m", "for: 2s", RULES.read_text()))
    node.put("/root/prometheus.yml", CONFIG)
    node.put("/etc/systemd/system/prometheus.service", UNIT)
    node.boot()
    gate.wait_ready(node)
    repair.without_agent(node)
    repair.unregistered_plugin(node)
    repair.with_agent(node, "[Plugin]\nRepair=report\n")  # as nobody were there who mends
    node.systemctl("start", "prometheus.service")
    gate.until(
        lambda: {"GpuGateNodeNotReady", "GpuGateBlocked"} <= firing(node),
        lambda: str(ask(node, "alerts")),
    )
    gate.configure(node, gate.QUICK)
    node.systemctl("reload", "gpu-gate.service")
    repair.wait_repaired(node, ["rebuild"])
    gate.until(lambda: not firing(node), lambda: str(ask(node, "alerts")))
    (series,) = ask(node, "query?query=gpu_gate_devices_registered")["result"]  # type: ignore[misc]
    assert series["metric"]["resource"] == "nvidia.com/gpu" and series["value"][1] == "8"
    assert ask(node, "targets")["activeTargets"][0]["health"] == "up"  # type: ignore[index]
