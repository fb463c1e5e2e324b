"""A healthy, open node: the agent's cost while idle and at a reload, and how fast it detects
changes."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager

from nspawn import Node
from report import Row, middle, sampled
from rig import GPUS, TOOLS, Rig, agent_cpu_s, cgroup_cpu_s, on_node, wait_ready

UNITS = 1000
SETTLE_S = 12.0
AFTER_RELOAD_S = 3.0
"within it the agent has taken a snapshot, revalidated, and is idle"
FILLER = "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStop=/bin/true\n"
NAIVE = "bench-naive.service"


def open_node(rig: Rig, *more: str) -> AbstractContextManager[Node]:
    return rig.node(conf=[f"plug --gpus {GPUS}", *more])


def idle(rig: Rig) -> list[Row]:
    """Beside a 5 s loop that runs all the time, as a readiness reporter does."""
    seconds = 60 if rig.is_quick else 300
    with open_node(rig) as node:
        wait_ready(node)
        time.sleep(SETTLE_S)
        seen = on_node(node, "idle.py", str(seconds), timeout=seconds + 60)
    agent, loop = seen["agent"], seen["loop"]
    return [
        Row(
            f"idle {seconds} s: RSS",
            agent["rss_mib"],
            "MiB",
            45.0,
            {"5 s loop": loop["rss_mib"]},
            note=f"peak {agent['peak_mib']:.1f}, PSS {agent['pss_mib']:.1f}, anonymous "
            f"{agent['anonymous_mib']:.1f} MiB; the loop: the shell, and a probe while it runs.",
        ),
        Row(
            f"idle {seconds} s: CPU",
            agent["cpu_percent"],
            "%",
            0.1,
            {"5 s loop": loop["cpu_percent"]},
            note=f"with all children, in the {agent['quiet_s']:.0f} s of whole heartbeats in "
            "which no uevent came "
            "(0: none, and the figure is the whole). Every node hears the uevents of every "
            "other one on the "
            f"same kernel, {seen['uevents']} this time: with them "
            f"{agent['cpu_percent_whole']:.3f} % and "
            f"{agent['wakes_per_s_whole']:.2f} wake-ups/s.",
        ),
        Row(
            f"idle {seconds} s: wake-ups",
            agent["wakes_per_s"],
            "/s",
            0.5,
            {"5 s loop": loop["wakes_per_s"]},
            note="context switches of agent and children by perf's counter for the cgroup, "
            "threads that live "
            f"for a millisecond included. The threads that stay, in the whole time: "
            f"{agent['wakes_per_s_alive']:.2f}/s. They come in one burst each heartbeat (30 s).",
        ),
        Row(f"idle {seconds} s: threads", agent["threads"], ""),
    ]


def reload(rig: Rig) -> list[Row]:
    """`systemctl daemon-reload` on a node with a thousand more units, compared with a subscriber to
    all signals."""
    rounds = 4 if rig.is_quick else 10
    with open_node(rig) as node:
        wait_ready(node)
        time.sleep(SETTLE_S)
        before, _, _ = _reloads(node, rounds // 2, has_naive=False)
        fill(node)
        node.run(["systemd-run", "--quiet", f"--unit={NAIVE}", "python3", f"{TOOLS}/naive.py"])
        time.sleep(AFTER_RELOAD_S)
        agent, children, naive = _reloads(node, rounds, has_naive=True)
    return [
        sampled(
            f"one daemon-reload, {UNITS} units: CPU of the agent",
            agent,
            unit="ms",
            target=50.0,
            beside={"broad subscriber": middle(naive)},
            note=f"its probes (validation anew) {middle(children):.0f} ms apart; without the "
            f"{UNITS} units "
            f"{middle(before):.1f} ms. The broad subscriber hears every unit, by dbus-next's "
            "proxies.",
        )
    ]


def fill(node: Node) -> None:
    script = (
        f'for i in $(seq {UNITS}); do printf "%s" "$0" >/run/systemd/system/filler$i.service; done'
    )
    node.run(["sh", "-ec", script, FILLER])
    node.systemctl("daemon-reload")
    node.run(f"seq -f 'filler%g.service' {UNITS} | xargs systemctl start", timeout=180)
    time.sleep(AFTER_RELOAD_S)


def _reloads(
    node: Node, rounds: int, has_naive: bool
) -> tuple[list[float], list[float], list[float]]:
    """CPU in ms of the agent alone, of its children, and of the broad subscriber, for each
    reload."""

    def now() -> tuple[float, float, float]:
        own, all_ = agent_cpu_s(node), cgroup_cpu_s(node, "gpu-gate.service")
        return own, all_ - own, cgroup_cpu_s(node, NAIVE) if has_naive else 0.0

    taken: list[tuple[float, ...]] = []
    for _ in range(rounds):
        before = now()
        node.systemctl("daemon-reload")
        time.sleep(AFTER_RELOAD_S)
        taken.append(tuple((b - a) * 1000 for a, b in zip(before, now(), strict=True)))
    own, children, naive = (list(column) for column in zip(*taken, strict=True))
    return own, children, naive


def verdict(rig: Rig) -> list[Row]:
    """From a change on the node to /readyz and /status, compared with the loop's next probe."""
    rounds = 2 if rig.is_quick else 5
    # As the real one: without its node a GPU cannot be asked, so that the loop has something to
    # notice.
    with open_node(rig, "nvml check-devices=on") as node:
        wait_ready(node)
        time.sleep(SETTLE_S)
        seen = on_node(node, "verdict.py", str(rounds), timeout=240)
        took = on_node(node, "time_it.py", "20", "status", "probe", "pass")
    beside = {"python3 -c pass": middle(took["pass"]), "nvidia-smi stand-in": middle(took["probe"])}
    return [
        sampled(
            "a device node goes: not ready after",
            seen["node_lost"],
            beside={"5 s loop": middle(seen["loop"])},
        ),
        sampled("it comes back: ready after", seen["node_back"]),
        sampled("persistenced restarts: REVALIDATING after", seen["disturbed"]),
        sampled(
            "persistenced restarts: fresh verdict after",
            seen["validated"],
            note="a validation is one probe, no sooner than a second after the last one.",
        ),
        sampled("gpu-gate status, open node", took["status"], target=0.1, beside=beside),
    ]
