"""What the package adds to a boot: boots with and without the .deb alternate, with healthy GPUs and
without GPUs.

Counted from basic.target, before which nothing of the package runs, to three ends: the kubelet's
start, multi-user.target, and the end of the boot, where systemd has no job left (what
systemd-analyze says first). Each boot is compared with the one right after it, on a machine that is
as busy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from nspawn import Node
from report import Row, middle, sampled
from rig import GPUS, NO_PLUGIN, Rig, stamp, wait_stamp

AGENT, WAIT, KUBELET = "gpu-gate.service", "gpu-gate-wait.service", "kubelet.service"
TURNS, QUICK_TURNS = 7, 3
WINDOW_S = 2.0
"""The stability window as it is set: from the first of StableProbes=3 to the third,
StableIntervalSec=1s apart."""
MOMENTS = (
    (AGENT, "InactiveExit"),
    (AGENT, "ActiveEnter"),
    (WAIT, "ExecMainExit"),
    (KUBELET, "ExecMainStart"),
)
ENDS = ("the kubelet's start", "multi-user.target", "the end of the boot")


class Boot(NamedTuple):
    """Seconds since basic.target, in the order of ENDS."""

    kubelet: float
    multi_user: float
    end: float


def without_gpus(rig: Rig) -> list[Row]:
    """A node that has no GPU, and the wait unit on it, which answers by itself there."""
    waits: list[tuple[float, float]] = []

    def look(node: Node) -> None:
        waits.append(
            (
                _span(node, "InactiveExit", "ActiveEnter"),
                _span(node, "ExecMainStart", "ExecMainExit"),
            )
        )

    pairs = _turns(rig, (), _no_plugin, look)
    return [
        *_rows("no GPU", pairs, window_s=0.0, target=0.2),
        sampled(
            "wait unit without GPUs, start to active",
            [unit for unit, _ in waits],
            target=0.15,
            note=f"its process {middle(process for _, process in waits):.3f} s; in the boot, "
            "where everything "
            "starts at once.",
        ),
    ]


def healthy(rig: Rig) -> list[Row]:
    """A node whose GPUs are healthy from the start: the time beyond the stability window, and its
    parts."""
    parts: list[tuple[float, ...]] = []

    def look(node: Node) -> None:
        at = [stamp(node, unit, name) or 0.0 for unit, name in MOMENTS]
        parts.append(tuple(later - earlier for earlier, later in pairwise(at)))

    pairs = _turns(rig, (f"plug --gpus {GPUS}",), None, look)
    rows = _rows(
        f"{GPUS} healthy GPUs, beyond {WINDOW_S:g} s", pairs, window_s=WINDOW_S, target=0.3
    )
    start, probes, kubelet = (middle(part) for part in zip(*parts, strict=True))
    rows[0].note += (
        f" The agent's start until READY {start:.3f} s, then to the wait's end {probes:.3f} s "
        "(three "
        f"probes and the window), to the kubelet's start {kubelet:.3f} s."
    )
    return rows


def _turns(
    rig: Rig,
    conf: Sequence[str],
    prepare: Callable[[Node], None] | None,
    look: Callable[[Node], None] | None,
) -> list[tuple[Boot, Boot]]:
    """(with, without), repeated; `look` is called with the nodes that have the package."""
    pairs = []
    for _ in range(QUICK_TURNS if rig.is_quick else TURNS):
        boots = []
        for has_gate in (True, False):
            with rig.node(gate=has_gate, conf=conf, prepare=prepare) as node:
                node.wait_booted()
                boots.append(_boot(node))
                if has_gate and look is not None:
                    look(node)
        pairs.append((boots[0], boots[1]))
    return pairs


def _rows(
    what: str, pairs: Sequence[tuple[Boot, Boot]], window_s: float, target: float
) -> list[Row]:
    """One row an end: the difference of the two boots of a turn. The end of the boot has no
    promise: it waits for the agent's own start, for which nothing else waits."""
    rows = []
    for number, end in enumerate(ENDS):
        ours, theirs = [pair[0][number] for pair in pairs], [pair[1][number] for pair in pairs]
        added = [a - b - window_s for a, b in zip(ours, theirs, strict=True)]
        rows.append(
            sampled(
                f"{what}: added to {end}",
                added,
                target=None if end == ENDS[-1] else target,
                note=f"since basic.target {middle(ours):.3f} s with the package, "
                f"{middle(theirs):.3f} s "
                "without (medians).",
            )
        )
    return rows


def _boot(node: Node) -> Boot:
    began = stamp(node, "basic.target", "ActiveEnter") or 0.0
    ends = (
        wait_stamp(node, KUBELET),
        wait_stamp(node, "multi-user.target", "ActiveEnter"),
        wait_stamp(node, "", "Finish"),
    )
    return Boot(*(at - began for at in ends))


def _no_plugin(node: Node) -> None:
    node.run(["rm", "-f", NO_PLUGIN])


def _span(node: Node, begin: str, end: str) -> float:
    return (stamp(node, WAIT, end) or 0.0) - (stamp(node, WAIT, begin) or 0.0)
