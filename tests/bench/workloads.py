"""A hundred GPU containers and a thousand units: from a daemon-reload to the verdict on all of
them."""

from __future__ import annotations

import time

from report import Row, middle, sampled
from rig import Rig, on_node, wait_ready
from steady import SETTLE_S, fill, open_node

COUNT = 100


def workloads(rig: Rig) -> list[Row]:
    rounds = 3 if rig.is_quick else 8
    with open_node(rig) as node:
        wait_ready(node)
        time.sleep(SETTLE_S)
        fill(node)
        seen = on_node(node, "workloads.py", str(COUNT), str(rounds), timeout=400)
    bare = middle(seen["bare_cpu"])
    cpu = [1000 * (spent - bare) for spent in seen["cpu"]]
    return [
        sampled(
            f"{COUNT} GPU containers, 1000 units: reload to verdict",
            seen["wall"],
            target=1.0,
            beside={"test -r in each": middle(seen["test_wall"])},
            note="from systemctl's return to the last container's new verdict",
        ),
        sampled(
            f"{COUNT} GPU containers: CPU of one more reload",
            cpu,
            unit="ms",
            target=150.0,
            beside={"test -r in each": 1000 * middle(seen["test_cpu"])},
            note=f"agent and children, less the {1000 * bare:.0f} ms of a reload without the "
            "containers; the "
            "scopes' device lists, read after the verdicts, are in it",
        ),
        Row(
            f"{COUNT} GPU containers, idle 60 s: CPU",
            seen["idle_percent"],
            "%",
            0.1,
            note="after the reloads, with all children",
        ),
    ]
