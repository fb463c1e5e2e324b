"""The scheduling barrier on a real node: its package, user and sandbox, against a stand-in API
server."""

from __future__ import annotations

import json
import re
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import gate
import tree
from nspawn import Node

PEERS = Path(__file__).resolve().parents[1] / "transport" / "kube_peers.py"
UNIT, LABEL, TAINT = "gpu-gate-node.service", "gpu-gate.io/ready", "gpu-gate.io/not-ready"
API = "/srv/api"


def start_api(node: Node) -> None:
    """An API server whose Node was reported by this boot's kubelet, just now, and came with a
    startup taint."""
    now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    gpus = {"cpu": "8", "nvidia.com/gpu": "8"}
    found: dict[str, Any] = {
        "metadata": {"name": node.run("hostname").stdout.strip().lower(), "labels": {}},
        "spec": {"taints": [{"key": TAINT, "effect": "NoSchedule"}]},
        "status": {
            "nodeInfo": {"bootID": node.run("cat /proc/sys/kernel/random/boot_id").stdout.strip()},
            "capacity": gpus,
            "allocatable": gpus,
            "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": now}],
        },
    }
    node.copy(PEERS, "/srv/kube_peers.py")
    node.put("/srv/first.json", json.dumps(found))
    node.run(
        [
            "systemd-run",
            "--unit=api",
            "python3",
            "/srv/kube_peers.py",
            API,
            "/srv/first.json",
            "6443",
        ]
    )
    node.wait_for(f"test -e {API}/node.json")


def seen(node: Node) -> tuple[bool, bool, str, str]:
    """(label, taint, status and reason of the condition), as the API server has them."""
    found = json.loads(node.run(["cat", f"{API}/node.json"]).stdout)
    conditions = {c["type"]: c for c in found["status"]["conditions"]}
    said = conditions.get("GpuReady", {"status": "", "reason": ""})
    tainted = any(t["key"] == TAINT for t in found["spec"].get("taints") or ())
    return found["metadata"]["labels"].get(LABEL) == "true", tainted, said["status"], said["reason"]


def wait_seen(node: Node, wanted: tuple[bool, bool, str, str]) -> None:
    gate.until(
        lambda: seen(node) == wanted,
        lambda: f"{wanted}, but {seen(node)}; {node.journal('-u', UNIT, '-o', 'cat')}",
    )


def test_the_barrier_opens_and_closes(make_node, deb: Path) -> None:
    node = make_node(boot=False)
    gate.prepare(
        node, "plug --gpus 8\n", f"{gate.QUICK}[Node]\nStartupTaint={TAINT}\nReadyForSec=1s\n"
    )
    node.boot()
    gate.wait_ready(node)
    tree.install_deb(node, deb.with_name(deb.name.replace("gpu-gate_", "gpu-gate-node_")))
    assert not node.is_active(UNIT)
    assert node.run(["systemctl", "is-enabled", UNIT], check=False).stdout.strip() == "disabled"
    start_api(node)
    node.run(f"install -m 640 -g gpu-gate-node {API}/kubeconfig /etc/gpu-gate/node.kubeconfig")

    node.systemctl("start", UNIT)
    wait_seen(node, (True, False, "True", "Ready"))
    pid = node.show(UNIT, "MainPID")
    status = node.run(["cat", f"/proc/{pid}/status"]).stdout
    uid = node.run("id -u gpu-gate-node").stdout.strip()
    assert re.search(rf"^Uid:\s+{uid}\s+{uid}\s", status, re.M) and uid != "0"
    assert re.search(r"^CapBnd:\s+0+$", status, re.M)
    memory_kib = int(re.search(r"^VmRSS:\s+(\d+)", status, re.M)[1])
    score = float(
        re.search(
            r"exposure level for \S+: ([\d.]+)",
            node.run(["systemd-analyze", "--no-pager", "security", UNIT]).stdout,
        )[1]
    )
    print(f"barrier: {memory_kib} KiB resident, exposure {score}")
    assert memory_kib < 64 << 10 and score < 2.0

    said = " ".join(node.run("gpu-gate doctor", check=False).stdout.split())
    assert "11 node HOLDS Node" in said and "shows 8 allocatable of capacity 8" in said, said

    node.run("simgpu nvml show=7; systemctl daemon-reload")
    wait_seen(node, (False, True, "False", "GpuMissing"))
    npd = node.run("gpu-gate status --npd", check=False)
    assert npd.returncode == 1 and npd.stdout.startswith("GpuMissing: 7 of 8")
    node.run("simgpu nvml ok; systemctl daemon-reload")
    wait_seen(node, (True, False, "True", "Ready"))

    node.systemctl("stop", UNIT)
    assert seen(node)[:2] == (False, True)
    wait_seen(node, (False, True, "Unknown", "BarrierStopped"))
    assert not node.exists("/run/gpu-gate-node")
    assert gate.gate(node)["ready"], "the agent does not care"
