"""Whole boots: how long after NVML is healthy the kubelet starts, and whether it ever starts too
early.

On each boot gpu-gate holds the (stand-in) kubelet; beside it three others wait as people let
kubelets wait today: a 5 s loop that ends with the first good probe, one that wants three in a row
(gpu-gate's own promise), and a fixed sleep. The same boot, the same fault, the same two cores.
"""

from __future__ import annotations

from dataclasses import dataclass

from nspawn import Node
from report import Row, middle, sampled
from rig import (
    GPUS,
    TOOLS,
    Rig,
    agent_cpu_s,
    cgroup_cpu_s,
    healthy_at,
    inside,
    spent_cpu_s,
    status,
    wait_file,
    wait_stamp,
)

PAUSE_S = 5
SLEEP_S = 30
WINDOWS_S = (3, 4, 5, 6, 7, 8, 9, 10, 11)
"every phase of a 5 s loop once or twice"
QUICK_WINDOWS_S = (3, 6, 9)
FLAPS_S = (1.0, 1.75, 2.5, 3.25)
"seconds after persistenced at which the first good spell begins"
QUICK_FLAPS_S = (1.0, 3.25)
SPELL_S = 1.5
CALM_S = 12.0

LOOP = f"until {TOOLS}/poll-nvml {GPUS}; do sleep {PAUSE_S}; done"
LOOP_OF_THREE = (
    f"n=0; while :; do if {TOOLS}/poll-nvml {GPUS}; then n=$$((n+1)); else n=0; fi; "
    f"[ $$n = 3 ] && exit; sleep {PAUSE_S}; done"
)
WAITER = """[Unit]
After=nvidia-persistenced.service
[Service]
Type=oneshot
RemainAfterExit=yes
TimeoutStartSec=infinity
ExecStart=/bin/sh -c '{loop}'
"""
KUBELET = """[Unit]
Wants=containerd.service {waiter}
After=containerd.service {waiter}
[Service]
{pre}
ExecStart=/bin/sleep infinity
"""


@dataclass
class Boot:
    """Seconds after NVML was healthy, each; negative where it was too early."""

    ours: float
    first: float
    three: float | None
    sleep: float
    after_last_probe: float
    after_last_init: float | None
    cpu: float
    cpu_agent: float
    cpu_loop: float


def prepare(node: Node) -> None:
    """Install the alternatives beside the real kubelet, and record the probes' calls."""
    units = {
        "bench-loop.service": WAITER.format(loop=LOOP),
        "bench-loop3.service": WAITER.format(loop=LOOP_OF_THREE),
        "bench-kubelet-loop.service": KUBELET.format(waiter="bench-loop.service", pre=""),
        "bench-kubelet-loop3.service": KUBELET.format(waiter="bench-loop3.service", pre=""),
        "bench-kubelet-sleep.service": KUBELET.format(
            waiter="", pre=f"ExecStartPre=/bin/sleep {SLEEP_S}\nTimeoutStartSec=infinity"
        ),
    }
    for name, text in units.items():
        node.put(f"/etc/systemd/system/{name}", text)
    kubelets = [name for name in units if "kubelet" in name]
    node.run(["systemctl", "add-wants", "--quiet", "multi-user.target", *kubelets])
    # The agent's probes cannot write below /run otherwise.
    node.put(
        "/etc/systemd/system/gpu-gate.service.d/bench.conf",
        "[Service]\nReadWritePaths=-/run/simgpu\n",
    )


def live(rig: Rig, faults: list[str], *, wants_three: bool) -> Boot:
    """One boot until all expected units have started."""
    conf = [f"plug --gpus {GPUS}", "calls", *(f"persistenced: nvml {fault}" for fault in faults)]
    with rig.node(conf=conf, prepare=prepare) as node:
        wait_file(node, "/run/gpu-gate/released")
        cpu = cgroup_cpu_s(node, "gpu-gate.service")
        cpu_agent = agent_cpu_s(node)
        last = status(node)["probe"]["last"]
        ours = wait_stamp(node, "kubelet.service")
        target = wait_stamp(node, "gpu-gate.target", "ActiveEnter")
        cpu += spent_cpu_s(node, "gpu-gate-wait.service")
        first = wait_stamp(node, "bench-kubelet-loop.service")
        slept = wait_stamp(node, "bench-kubelet-sleep.service", "InactiveExit")
        three = wait_stamp(node, "bench-kubelet-loop3.service") if wants_three else None
        healthy = healthy_at(node)
        init = _last_init(node, target)
        return Boot(
            ours=ours - healthy,
            first=first - healthy,
            three=three - healthy if three else None,
            sleep=slept + SLEEP_S - healthy,
            after_last_probe=target - last["ended_at"],
            after_last_init=target - init if init else None,
            cpu=cpu,
            cpu_agent=cpu_agent,
            cpu_loop=spent_cpu_s(node, "bench-loop.service"),
        )


def _last_init(node: Node, before: float) -> float | None:
    """The agent's last nvmlInit before `before`. The loop's probes go by another name, and the
    plugin comes after the kubelet."""
    rows = [
        line.split() for line in inside(node, "/run/simgpu/nvml.calls").read_text().splitlines()
    ]
    found = [float(r[0]) for r in rows if r[2].startswith("python") and r[3:5] == ["init", "0"]]
    return max((at for at in found if at < before), default=None)


def windows(rig: Rig) -> list[Row]:
    """NVML returns 999 for a while, then it works."""
    boots = []
    for seconds in QUICK_WINDOWS_S if rig.is_quick else WINDOWS_S:
        boots.append(live(rig, [f"init=999 for={seconds}"], wants_three=seconds % 3 == 0))
    threes = [b.three for b in boots if b.three is not None]
    inits = [b.after_last_init for b in boots if b.after_last_init is not None]
    agent, total = middle(b.cpu_agent for b in boots), middle(b.cpu for b in boots)
    return [
        sampled(
            "NVML healthy to kubelet start",
            [b.ours for b in boots],
            beside={
                "5 s loop": middle(b.first for b in boots),
                "5 s loop, 3 in a row": middle(threes),
                "sleep 30": middle(b.sleep for b in boots),
            },
            note="gpu-gate wants three equal, complete probes one second apart: two seconds of "
            "it are the "
            "promise itself. The plain loop promises one. The sleep is longer or shorter than "
            "the fault "
            "by luck: with a fault of 31 s it starts too early.",
        ),
        sampled(
            "last good probe to gpu-gate.target",
            [b.after_last_probe for b in boots],
            target=0.15,
            note=f"from the probe's answer; from its nvmlInit {middle(inits):.3f} s."
            if inits
            else "",
        ),
        sampled(
            "CPU of a boot's gating until open",
            [b.cpu for b in boots],
            beside={"5 s loop": middle(b.cpu_loop for b in boots)},
            note=f"agent {agent:.2f} s, its probes and the wait {total - agent:.2f} s (medians).",
        ),
    ]


def flapping(rig: Rig) -> list[Row]:
    """Good spells of 1.5 s every 3 s until about 12 s: a kubelet that starts in one starts on
    sand."""
    begins = QUICK_FLAPS_S if rig.is_quick else FLAPS_S
    boots = [live(rig, _spells(begin), wants_three=False) for begin in begins]
    late = middle(b.ours for b in boots)
    return [
        Row(
            f"false starts in {len(boots)} boots with a flapping NVML",
            sum(b.ours < 0 for b in boots),
            unit="",
            target=0,
            beside={
                "5 s loop": sum(b.first < 0 for b in boots),
                "sleep 30": sum(b.sleep < 0 for b in boots),
            },
            note=f"good spells of {SPELL_S} s; a spell of more than two seconds would hold "
            "three probes and fool "
            "gpu-gate too (StableProbes=, StableIntervalSec=). After the last fault: "
            f"{late:.2f} s.",
        )
    ]


def _spells(begin: float) -> list[str]:
    """Faults around the good phases, in simgpu's syntax: in=…, for= counted from now."""
    faults, bad_from, good_from = [], 0.0, begin
    while bad_from < CALM_S:
        faults.append(f"init=999 in={bad_from} for={good_from}")
        bad_from, good_from = good_from + SPELL_S, good_from + 2 * SPELL_S
    return faults
