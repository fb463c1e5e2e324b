"""A node without GPUs: what it pays for having the package."""

from __future__ import annotations

from nspawn import Node
from report import Row, middle, sampled
from rig import NO_PLUGIN, Rig, on_node, stamp, userspace, wait_stamp

WAIT = "gpu-gate-wait.service"
COMMANDS_TARGET_S = 0.1


def prepare(node: Node) -> None:
    node.run(["rm", "-f", NO_PLUGIN])


def boots(rig: Rig) -> list[Row]:
    """The wait unit, and the kubelet's start with and without the .deb; boots of both kinds take turns."""
    with_gate, without, unit, process, waits_cpu = [], [], [], [], []
    for _ in range(2 if rig.is_quick else 7):
        for has_gate in (True, False):
            with rig.node(gate=has_gate, prepare=prepare) as node:
                took = wait_stamp(node, "kubelet.service") - userspace(node)
                node.wait_booted()
                (with_gate if has_gate else without).append(took)
                if has_gate:
                    unit.append(_span(node, "InactiveExit", "ActiveEnter"))
                    process.append(_span(node, "ExecMainStart", "ExecMainExit"))
                    waits_cpu.append(int(node.show(WAIT, "CPUUsageNSec")) / 1e9)
    added = middle(with_gate) - middle(without)
    return [
        sampled("wait unit without GPUs, start to active", unit, target=0.15,
                note=f"its process {middle(process):.3f} s, CPU {middle(waits_cpu):.3f} s; measured in the boot, "
                     "where everything starts at once."),
        Row("kubelet start on a node without GPUs", middle(with_gate), samples=with_gate,
            beside={"no package": middle(without)},
            note=f"seconds of userspace; the package adds {added:+.3f} s (medians of {len(without)} boots each; they "
                 f"spread by {max(without) - min(without):.2f} s without it)."),
    ]


def commands(rig: Rig) -> list[Row]:
    """What a person or a unit pays for `gpu-gate wait` and `gpu-gate status`."""
    with rig.node(prepare=prepare) as node:
        wait_stamp(node, "kubelet.service")
        node.wait_booted()
        took = on_node(node, "time_it.py", "20")
    beside = {"python3 -c pass": middle(took["pass"]), "nvidia-smi's place": middle(took["probe"])}
    return [sampled(f"gpu-gate {verb}, no GPU", took[verb], target=COMMANDS_TARGET_S, beside=beside)
            for verb in ("wait", "status")]


def _span(node: Node, begin: str, end: str) -> float:
    return (stamp(node, WAIT, end) or 0.0) - (stamp(node, WAIT, begin) or 0.0)
