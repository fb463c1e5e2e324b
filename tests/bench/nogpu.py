"""A node without GPUs: the cost of a verb there. added.py measures its boot."""

from __future__ import annotations

from nspawn import Node
from report import Row, middle, sampled
from rig import NO_PLUGIN, Rig, on_node, wait_file

COMMANDS_TARGET_S = 0.1


def prepare(node: Node) -> None:
    node.run(["rm", "-f", NO_PLUGIN])


def commands(rig: Rig) -> list[Row]:
    """The cost of `gpu-gate wait` and `gpu-gate status`."""
    with rig.node(prepare=prepare) as node:
        node.wait_booted()
        wait_file(node, "/run/gpu-gate/first-look")
        took = on_node(node, "time_it.py", "20")
    beside = {"python3 -c pass": middle(took["pass"]), "nvidia-smi stand-in": middle(took["probe"])}
    return [
        sampled(f"gpu-gate {verb}, no GPU", took[verb], target=COMMANDS_TARGET_S, beside=beside)
        for verb in ("wait", "status")
    ]
