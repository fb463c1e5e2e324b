"""A plugin that called NVML too early: how soon the kubelet lists every GPU once NVML works, with
each repair method."""

from __future__ import annotations

import json
import time

import gate
import repair
from nspawn import Node, NodeError
from report import Row, middle, sampled
from rig import GPUS, TOOLS, Rig, boottime, inside, wait_ready

FAULTS_S = (6.0, 13.0, 20.0, 45.0)
"how long NVML fails: covers every step of the back-off (10 s, 20 s, 40 s)"
QUICK_FAULTS_S = (6.0, 13.0)
CONF = "[Plugin]\nRepairsPerHour=20\nRepairsPerBoot=20\n"
POLL = f"""while :; do
  if {TOOLS}/poll-nvml {GPUS} && ! jq -e '.allocatable["nvidia.com/gpu"] > 0' /run/simgpu/kubelet.state; then
    id=$(simcri id nvidia-device-plugin-ctr) && simcri stop -t 10 $id && simcri rm $id
  fi
  sleep 5
done
"""


def repair_facts(rig: Rig) -> list[Row]:
    """The same node, the same fault, in turns: gpu-gate, a script that polls every 5 s and does the
    same, and a plugin that exits, which the kubelet starts again after its back-off."""
    healthy: list[float] = []
    stable: list[float] = []
    poll: list[float] = []
    crash: list[float] = []
    with rig.node(
        conf=[f"plug --gpus {GPUS}"], prepare=lambda node: gate.configure(node, CONF)
    ) as node:
        wait_ready(node)
        node.put("/root/poll.sh", POLL)
        for fault_s in QUICK_FAULTS_S if rig.is_quick else FAULTS_S:
            short_s = 4.0 + fault_s % 5.0  # the loop's phase is another in each round
            at, listed = _round(node, short_s, FAIL_ON_INIT_ERROR="false", OLD="1")
            healthy.append(listed - at)
            stable.append(listed - _opened(node, at))
            wait_ready(node)
            node.systemctl("stop", "gpu-gate.service")
            node.run(["systemd-run", "--quiet", "--unit=bench-poll", "sh", "/root/poll.sh"])
            at, listed = _round(
                node, short_s, FAIL_ON_INIT_ERROR="false", OLD="1", ROUND=f"p{fault_s}"
            )
            poll.append(listed - at)
            node.systemctl("stop", "bench-poll.service")
            at, listed = _round(
                node, fault_s, FAIL_ON_INIT_ERROR="true", OLD="1", ROUND=f"c{fault_s}"
            )
            crash.append(listed - at)
            node.systemctl("start", "gpu-gate.service")
            wait_ready(node)
    return [
        sampled(
            f"stuck plugin: NVML stable to {GPUS} allocatable",
            stable,
            target=4.0,
            note="from the journal's OPEN (three good probes) to the kubelet's list; a second "
            "is the second "
            "look that law 1 wants.",
        ),
        sampled(
            f"stuck plugin: NVML healthy to {GPUS} allocatable",
            healthy,
            beside={"5 s poll": middle(poll), "CrashLoop back-off": middle(crash)},
            note="the poll trusts the first good probe, and keeps no evidence; the plugin in "
            "back-off has "
            "FAIL_ON_INIT_ERROR=true, and is stuck for as long as the fault was, up to 5 minutes.",
        ),
    ]


def _round(node: Node, fault_s: float, **env: str) -> tuple[float, float]:
    """(NVML works, the kubelet lists all) of a plugin that started while NVML failed."""
    node.run("simgpu nvml reset init=999; systemctl daemon-reload")
    began = time.monotonic()
    node.put(gate.MANIFEST, repair.manifest(node, **env))
    if "ROUND" not in env:
        node.run(
            "id=$(simcri id nvidia-device-plugin-ctr) && simcri stop $id && simcri rm $id",
            check=False,
        )
    _wait_listed(node, False)
    time.sleep(max(0.0, fault_s - (time.monotonic() - began)))
    node.run("simgpu nvml ok")
    return boottime(), _wait_listed(node, True)


def _wait_listed(node: Node, all_of_them: bool, within_s: float = 120.0) -> float:
    """The instant at which the kubelet lists all GPUs, or not."""
    state, ends = inside(node, "/run/simgpu/kubelet.state"), time.monotonic() + within_s
    while time.monotonic() < ends:
        listed = json.loads(state.read_text()).get("allocatable", {}).get("nvidia.com/gpu", 0)
        if (listed == GPUS) is all_of_them:
            return boottime()
        time.sleep(0.01)
    raise NodeError(f"the kubelet did not list as wanted ({all_of_them}) within {within_s:.0f} s")


def _opened(node: Node, after: float) -> float:
    """When the agent found NVML stable, by its journal."""
    said = node.journal("-u", "gpu-gate", "-o", "json", "GPU_GATE_PHASE=OPEN").splitlines()
    offset = boottime() - time.monotonic()
    stamps = [int(json.loads(line)["__MONOTONIC_TIMESTAMP"]) / 1e6 + offset for line in said]
    return next(at for at in stamps if at > after)
