#!/usr/bin/env python3
"""`make demo`: a GPU node goes through the incident without the gate and with it, and shows its
page at the end.

On a terminal it ends when the user presses Enter, anywhere else (CI) by itself. The GPUs, their
library, the kubelet and the device plugin are stand-ins; systemd, D-Bus, udev, journald, containerd
and runc are real.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tree
from demo_access import access
from nspawn import Node, NodeError
from view import look

HERE = Path(__file__).resolve().parent
GPUS = 8
EARLY_S = 6
REGISTER_S = 5
INCIDENT = f"plug --gpus {GPUS}\npersistenced: nvml init=999 for={EARLY_S}\n"
AFTERWARDS_S = 4.0
GIVE_UP_S = 120.0


class Timeline:
    """Prints what happens as it happens, in seconds since nvidia-persistenced was up."""

    def __init__(self) -> None:
        self.zero: float | None = None
        self.known: dict[str, Any] = {}
        self.times: dict[str, float] = {}

    def take(self, seen: dict[str, Any]) -> None:
        started = seen["units"]["nvidia-persistenced.service"]
        if self.zero is None:
            if started is None:
                return
            self.zero = started
            self._report("persistenced", 0.0, "nvidia-persistenced is up")
        for unit, name in (
            ("kubelet.service", "the kubelet"),
            ("gpu-gate.target", "gpu-gate.target"),
        ):
            if seen["units"][unit] is not None and unit not in self.known:
                self._report(unit, seen["units"][unit] - self.zero, f"{name} is up")
        now = max(0.0, seen["at"] - self.zero)
        self._changed(
            "nvml",
            seen["nvml"],
            now,
            "NVML on the host: {} GPUs"
            if isinstance(seen["nvml"], int)
            else "NVML on the host: {}",
        )
        for line in seen["log"][self.known.get("lines", 0) :]:
            if any(
                word in line for word in ("Failed to initialize NVML", "Registered device plugin")
            ):
                self._report(f"log {line}", now, f"device plugin: {_message(line)}")
        self.known["lines"] = len(seen["log"])
        if seen["node"]:
            self._changed("pod", _phase(seen["node"]), now, "device plugin pod: {}")
            self._changed(
                "allocatable", _allocatable(seen["node"]), now, "kubelet lists nvidia.com/gpu: {}"
            )

    def _changed(self, key: str, value: Any, at: float, sentence: str) -> None:
        if value is not None and self.known.get(key) != value:
            self.known[key] = value
            self._report(f"{key} {value}", at, sentence.format(value))

    def forget(self, *keys: str) -> None:
        """Report these again when they happen again."""
        self.times = {k: t for k, t in self.times.items() if k not in keys}

    def _report(self, key: str, at: float, sentence: str) -> None:
        self.known.setdefault(key, True)
        self.times.setdefault(key, at)
        print(f"    {at:6.1f} s  {sentence}", flush=True)


def _message(line: str) -> str:
    """A plugin's log line without its timestamp (klog's, or the older format's)."""
    return line.split("] ", 1)[-1] if "] " in line else line[20:] if line[:2] == "20" else line


def _phase(node: dict[str, Any]) -> str | None:
    pods = node.get("pods", {})
    return next((p["phase"] for name, p in pods.items() if "device-plugin" in name), None)


def _allocatable(node: dict[str, Any]) -> str:
    return str(node.get("allocatable", {}).get("nvidia.com/gpu", "none"))


@contextmanager
def watched(node: Node) -> Iterator[Iterator[dict[str, Any]]]:
    with node.spawn(["python3", "-c", (HERE / "observer.py").read_text()]) as program:
        assert program.stdout is not None
        yield (json.loads(line) for line in program.stdout if line.startswith("{"))


def live(node: Node, until: str, timeline: Timeline | None = None) -> Timeline:
    """Watch the node until `until` was seen, and AFTERWARDS_S longer."""
    timeline, ends = timeline or Timeline(), time.monotonic() + GIVE_UP_S
    with watched(node) as samples:
        for seen in samples:
            timeline.take(seen)
            if until in timeline.times:
                ends = min(ends, time.monotonic() + AFTERWARDS_S)
                until = ""
            if time.monotonic() > ends:
                break
    return timeline


def act(number: int, title: str) -> None:
    print(
        f"\n\033[1mAct {number}: {title}\033[0m\n"
        if sys.stdout.isatty()
        else f"\nAct {number}: {title}\n",
        flush=True,
    )


def without(package: Path) -> tuple[dict[str, str], dict[str, str]]:
    act(
        1,
        f"without the gate. NVML returns error 999 until {EARLY_S} s after nvidia-persistenced "
        "starts; the plugin, an old version, calls it at once.",
    )
    with Node(tree.layers("bookworm")) as node:
        node.put("/etc/simgpu.conf", INCIDENT)
        make_plugin_old_and_deaf(node)
        node.boot()
        timeline = live(node, f"nvml {GPUS}")
        state = json.loads(node.run(["simgpu", "node"]).stdout)
        print(
            f"\n    The host sees {GPUS} GPUs, the plugin is {_phase(state)}, and the kubelet "
            f"lists {_allocatable(state)}. Without a repair it stays like this."
        )
        broken = _row(timeline, state)
        verdict = diagnose(node, package)
        repair(node, package, timeline)
        diagnose_again(node, verdict)
        repair_deaf_plugin(node, timeline)
        show_timeline(node)
        return broken, _row(timeline, json.loads(node.run(["simgpu", "node"]).stdout))


UNPACKED = "PYTHONPATH=/var/tmp/gpu-gate/usr/share/gpu-gate python3 -m gpu_gate"
KEPT = "/var/tmp/before"


def diagnose(node: Node, package: Path) -> str:
    """Run the doctor on the broken node, from a package that is unpacked and not installed. Return
    its verdict."""
    print("\n    The diagnosis, from an unpacked package (gpu-gate doctor; it changes nothing):\n")
    node.copy(package, f"/var/cache/{package.name}")
    node.run(f"dpkg -x /var/cache/{package.name} /var/tmp/gpu-gate; {UNPACKED} evidence {KEPT}")
    output = node.run(f"{UNPACKED} doctor", check=False).stdout
    _indented(output.partition("\n\n")[0])
    return output.splitlines()[0]


def diagnose_again(node: Node, before: str) -> None:
    """The node is repaired, and the evidence bundle from before still shows what was wrong."""
    print(
        "\n    The diagnosis of the repaired node, and of the evidence from before the repair "
        "(gpu-gate doctor BUNDLE):\n"
    )
    now, then = (
        node.run(f"gpu-gate doctor {of}", check=False).stdout.splitlines()[0] for of in ("", KEPT)
    )
    _indented(f"now     {now}\nbefore  {then}")
    if then != before or now == before:
        raise NodeError(f"diagnosis of the bundle {then!r}, before {before!r}, now {now!r}")


def repair(node: Node, package: Path, timeline: Timeline) -> None:
    print(
        "\n    Now gpu-gate is installed on this running node (apt install ./gpu-gate_*.deb). "
        "The installation restarts nothing.\n"
    )
    tree.install_deb(node, package)
    live(node, f"allocatable {GPUS}", timeline)
    print("\n    Its log, and the evidence that it kept before it changed anything:\n")
    _indented(node.journal("-u", "gpu-gate", "-o", "cat", "-t", "gpu-gate"))
    _indented(node.run("cd /var/lib/gpu-gate; ls -d evidence/*/* ; cat evidence/*/outcome").stdout)


def show_timeline(node: Node) -> None:
    """The boot's timeline from the evidence of the first repair (gpu-gate timeline, shortened)."""
    first = "/var/lib/gpu-gate/evidence/$(ls -tr /var/lib/gpu-gate/evidence | head -1)"
    timeline = json.loads(node.run(f"gpu-gate timeline --json {first}").stdout)
    print(
        "\n    The race of this boot, from the evidence (gpu-gate timeline "
        "/var/lib/gpu-gate/evidence/…):\n"
    )
    at = {m["what"]: m for m in reversed(timeline["moments"])}
    for what in ("persistenced", "kubelet", "started", "said-init-failed", "seen", "stable"):
        if what in at:
            print(
                f"    {at[what]['at'] - at['persistenced']['at']:6.1f} s  {at[what]['text']}"[:118]
            )
    _indented("\n".join(timeline["sentences"][:3]))


def repair_deaf_plugin(node: Node, timeline: Timeline) -> None:
    print(
        "\n    The kubelet restarts. This plugin does not notice and does not register again; "
        f"gpu-gate gives it {REGISTER_S} s.\n"
    )
    node.put(
        "/etc/gpu-gate/gpu-gate.conf.d/demo.conf", f"[Plugin]\nRegisterWithinSec={REGISTER_S}s\n"
    )
    node.systemctl("reload", "gpu-gate")
    timeline.forget(f"allocatable {GPUS}", "allocatable none")
    node.systemctl("restart", "kubelet")
    live(node, f"allocatable {GPUS}", timeline)
    print("\n    The repairs on record (/var/lib/gpu-gate/ledger.jsonl):\n")
    for line in node.read("/var/lib/gpu-gate/ledger.jsonl").splitlines():
        entry = json.loads(line)
        _indented(f"{entry['number']} {entry['what']}: {entry['outcome'] or entry['cause']}")


def make_plugin_old_and_deaf(node: Node) -> None:
    """As v0.9: after a failed start it never tries again, and it does not notice a restart of the
    kubelet."""
    path = "/etc/kubernetes/manifests/nvidia-device-plugin.yaml"
    old = "      env:\n" + "".join(
        f'        - {{name: {name}, value: "1"}}\n' for name in ("OLD", "DEAF")
    )
    node.put(path, node.read(path).replace("      env:\n", old))


def with_gate(package: Path) -> dict[str, str]:
    act(
        2,
        "with the gate. The same node and the same failure; the .deb is installed with its "
        "defaults.",
    )
    with Node(tree.layers("bookworm", package)) as node:
        node.put("/etc/simgpu.conf", INCIDENT)
        node.boot()
        timeline = live(node, f"allocatable {GPUS}")
        state = json.loads(node.run(["simgpu", "node"]).stdout)
        print("\n    The agent's log (journalctl -u gpu-gate):\n")
        _indented(node.journal("-u", "gpu-gate", "-o", "cat", "-t", "gpu-gate"))
        print("\n    What the boot waited for (systemd-analyze critical-chain kubelet.service):\n")
        node.wait_booted()
        chain = node.run(
            ["systemd-analyze", "critical-chain", "--no-pager", "kubelet.service"]
        ).stdout
        _indented("\n".join(chain.strip().splitlines()[3:9]))
        print("\n    The result (gpu-gate status):\n")
        _indented(node.run(["gpu-gate", "status"], check=False).stdout)
        return _row(timeline, state)


def _indented(text: str) -> None:
    for line in text.rstrip().splitlines():
        print("      " + (line if len(line) <= 144 else f"{line[:142]} …"))


def _row(timeline: Timeline, state: dict[str, Any]) -> dict[str, str]:
    def at(key: str) -> str:
        found = timeline.times.get(key)
        return f"{found:.1f} s" if found is not None else "never"

    return {
        "NVML sees 8": at(f"nvml {GPUS}"),
        "kubelet up": at("kubelet.service"),
        "plugin": _phase(state) or "none",
        "kubelet lists": f"{_allocatable(state)} of {GPUS}",
        "since": at(f"allocatable {GPUS}"),
    }


def table(rows: dict[str, dict[str, str]]) -> None:
    columns = list(next(iter(rows.values())))
    print("\n" + " " * 20 + "".join(c.ljust(16) for c in columns))
    for name, row in rows.items():
        print("  " + name.ljust(18) + "".join(row[c].ljust(16) for c in columns))
    print("""
What to try next:
  make node-shell        a shell on such a node: gpu-gate doctor, simgpu --help, journalctl -fu gpu-gate
  make test              every other test
  README.md              install it on a host""")


def wants_view(words: list[str]) -> bool:
    """Keep the last node: the default on a terminal; a program wants the demo to end."""
    parser = argparse.ArgumentParser(
        prog="make demo ARGS=…", description="a GPU node goes through the incident"
    )
    parser.add_argument(
        "--view",
        action=argparse.BooleanOptionalAction,
        default=sys.stdin.isatty() and sys.stdout.isatty() and not os.environ.get("CI"),
        help="keep the last node and its page until Enter or Ctrl-C (default on a terminal)",
    )
    return bool(parser.parse_args(words).view)


def main(words: list[str]) -> int:
    keep_node, began = wants_view(words), time.monotonic()
    try:
        print(
            "gpu-gate: a GPU node boots three times. The first run builds the package and the node …",
            flush=True,
        )
        package = tree.build_deb()
        tree.layers("bookworm", package)
        broken, repaired = without(package)
        rows = {
            "without the gate": broken,
            "… and repaired": repaired,
            "with the gate": with_gate(package),
        }
        act(
            3,
            "device access. NVIDIA's legacy hook gave these containers their GPUs without runc's "
            "knowledge.",
        )
        with Node(tree.layers("bookworm", package)) as node:
            has_access = access(node)
            table(rows)
            print(f"({time.monotonic() - began:.0f} s)\n")
            look(node, keep_node)
    except (NodeError, AssertionError) as error:
        print(
            f"{error}\nThe demo stops here. If this machine was very busy, run it again.",
            file=sys.stderr,
        )
        return 1
    well = all(
        rows[name]["kubelet lists"] == f"{GPUS} of {GPUS}"
        for name in ("… and repaired", "with the gate")
    )
    return 0 if well and has_access else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
