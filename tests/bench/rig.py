"""The nodes that are measured, and how a figure is read off them. All instants are boottime
seconds."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import tree
from nspawn import Node, NodeError

HERE = Path(__file__).resolve().parent
GPUS = 8
TOOLS = "/opt/bench"
NO_PLUGIN = "/etc/kubernetes/manifests/nvidia-device-plugin.yaml"


class Rig:
    """Makes nodes of one suite with and without the .deb of this checkout."""

    def __init__(self, suite: str, is_quick: bool) -> None:
        self.suite = suite
        self.is_quick = is_quick
        self.package = tree.build_deb()
        self.versions: dict[str, str] = {}

    @contextlib.contextmanager
    def node(
        self,
        *,
        gate: bool = True,
        conf: Sequence[str] = (),
        prepare: Callable[[Node], None] | None = None,
    ) -> Iterator[Node]:
        """A booted node; `conf` are simgpu's lines (none: no GPU), `prepare` changes its disk
        first."""
        with Node(tree.layers(self.suite, self.package if gate else None)) as node:
            node.copy(HERE / "on_node", TOOLS)
            node.put("/etc/simgpu.conf", "".join(f"{line}\n" for line in conf))
            if prepare is not None:
                prepare(node)
            node.boot()
            if not self.versions:
                self.versions = _versions(node)
            yield node


def _versions(node: Node) -> dict[str, str]:
    said = node.run(
        "systemctl --version | head -1; python3 --version; . /etc/os-release; echo $PRETTY_NAME; "
        "dpkg-query -W -f '${Package} ${Version}\\n' gpu-gate python3-dbus-next "
        "python3-grpcio 2>/dev/null || true"
    ).stdout.splitlines()
    return {
        "systemd": said[0],
        "python": said[1],
        "suite": said[2],
        "packages": ", ".join(said[3:]),
    }


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def stamp(node: Node, unit: str, name: str) -> float | None:
    """A unit's …TimestampMonotonic in boottime, "": systemd's own; None where it has not
    happened."""
    usec = int(
        node.systemctl(
            "show", "--value", "-p", f"{name}TimestampMonotonic", *([unit] if unit else [])
        )
        or 0
    )
    return usec / 1e6 + boottime() - time.monotonic() if usec else None


def wait_stamp(node: Node, unit: str, name: str = "ExecMainStart", within_s: float = 60.0) -> float:
    """The same, once it has happened. Polls rarely: each poll starts a process on the node."""
    ends = time.monotonic() + within_s
    while (at := stamp(node, unit, name)) is None:
        if time.monotonic() > ends:
            raise NodeError(f"{unit} has no {name} after {within_s:.0f} s.\n{node.console()}")
        time.sleep(0.5)
    return at


def inside(node: Node, path: str) -> Path:
    """A file of the node in its own mount namespace, read from here at no cost to it."""
    return Path(f"/proc/{node.leader}/root{path}")


def wait_file(node: Node, path: str, within_s: float = 60.0) -> None:
    ends = time.monotonic() + within_s
    while not inside(node, path).exists():
        if time.monotonic() > ends:
            raise NodeError(f"{path} did not come within {within_s:.0f} s.\n{node.console()}")
        time.sleep(0.02)


def healthy_at(node: Node) -> float:
    """The instant from which NVML fails no more: the end of the last fault in its script."""
    ends = re.findall(r"until=([\d.]+)", inside(node, "/run/simgpu/nvml").read_text())
    return max(map(float, ends))


def cgroup_cpu_s(node: Node, unit: str) -> float:
    """CPU of a unit that runs, with all its children, also those that are gone."""
    text = inside(node, f"/sys/fs/cgroup/system.slice/{unit}/cpu.stat").read_text()
    return int(text.split()[1]) / 1e6


def spent_cpu_s(node: Node, unit: str) -> float:
    """CPU of a unit as systemd counted it; it remembers after the end."""
    said = node.show(unit, "CPUUsageNSec")
    return int(said) / 1e9 if said.isdigit() else 0.0


def agent_cpu_s(node: Node) -> float:
    """CPU of the agent's own threads, in nanoseconds' grain, children apart."""
    pid = agent_pid(node)
    tasks = inside(node, f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(path.read_text().split()[0]) for path in tasks) / 1e9


def agent_pid(node: Node) -> int:
    return int(node.show("gpu-gate.service", "MainPID"))


def status(node: Node) -> dict[str, Any]:
    said = node.run(
        ["curl", "-s", "--unix-socket", "/run/gpu-gate/agent.sock", "http://localhost/status"],
        check=False,
    ).stdout
    return json.loads(said) if said else {}


def wait_ready(node: Node, within_s: float = 60.0) -> None:
    node.wait_for("curl -sf http://127.0.0.1:9477/readyz", timeout=within_s, pause=0.5)


def on_node(node: Node, program: str, *words: str, timeout: float = 120.0) -> Any:
    """The JSON that a program of on_node/ prints."""
    return json.loads(node.run(["python3", f"{TOOLS}/{program}", *words], timeout=timeout).stdout)
