"""A thousand requests a second, with slow clients: latencies, and the effect on the cycle."""

from __future__ import annotations

import time

from nspawn import Node
from report import Row
from rig import GPUS, Rig, on_node, wait_ready
from steady import SETTLE_S

RATE, SECONDS = 1000, 30
HEARTBEAT = "[Agent]\nHeartbeatSec=2s\n"
"A cycle is due every 2 s, so that a late one is seen; by default one would fall into the 30 s."
LATE_S = 0.25
GROWS_MIB = 8.0
"4 MiB of unread answers at most, what is read of requests, and the interpreter's own."


def crowd(rig: Rig) -> list[Row]:
    def prepare(node: Node) -> None:
        node.put("/etc/gpu-gate/gpu-gate.conf.d/bench.conf", HEARTBEAT)

    with rig.node(conf=[f"plug --gpus {GPUS}"], prepare=prepare) as node:
        wait_ready(node)
        time.sleep(SETTLE_S)
        seen = on_node(node, "crowd.py", str(RATE), str(SECONDS), timeout=SECONDS * 10)
    what = f"{RATE} requests/s for {SECONDS} s, with slow clients"
    return [
        Row(
            f"{what}: failed",
            seen["failures"],
            "",
            0.0,
            note=f"{' '.join(seen['failed']) or 'none'}; answered {seen['rate']:.0f}/s; slow "
            "clients were dropped "
            f"and came again {seen['dropped']} times, others between two requests "
            f"{seen['again']} times.",
        ),
        Row(
            f"{what}: answer, median",
            1000 * seen["median_s"],
            "ms",
            beside={"alone": 1000 * seen["alone_s"]},
            note="from the instant a request is due; who asks shares the machine with who answers.",
        ),
        Row(
            f"{what}: answer, p99",
            1000 * seen["p99_s"],
            "ms",
            note=f"the slowest {1000 * seen['most_s']:.0f} ms.",
        ),
        Row(
            f"{what}: latest cycle",
            seen["lag_s"],
            "s",
            LATE_S,
            note=f"how much later than due it began, of {seen['cycles']}; one is due every 2 s.",
        ),
        Row(
            f"{what}: RSS grows by",
            seen["rss_most_mib"] - seen["rss_before_mib"],
            "MiB",
            GROWS_MIB,
            note=f"from {seen['rss_before_mib']:.1f} MiB; {seen['rss_after_mib']:.1f} MiB 5 s "
            "after they left.",
        ),
        Row(f"{what}: CPU of the agent", seen["cpu_percent"], "%", note="of one core."),
    ]
