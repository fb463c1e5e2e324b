"""Act 3 of the demo, device access: what a daemon-reload takes from a running container, and what
gpu-gate does about it."""

from __future__ import annotations

import json
import time

import gate
from gpu_containers import CTL, Container, Rig
from nspawn import Node

ONLY_HEAL = "[Access]\nPrevent=report\n"
ACCESS_ATTEMPTS = 40
"""Requests for the access table, half a second apart, before it is printed with UNKNOWN in it."""


def access(node: Node) -> bool:
    """Boot the node, which has the package installed. True if every container kept its GPUs or got
    them back."""
    node.put(gate.CONF, gate.QUICK + ONLY_HEAL)
    node.boot()
    gate.wait_ready(node)
    rig = Rig(node, "bookworm")
    done = [_without(rig), _healed(rig), _kept(rig)]
    is_known = _wait_for_verdicts(node)
    print("\n    The containers that hold GPUs now (gpu-gate access):\n")
    for line in node.run(["gpu-gate", "access"], check=False).stdout.rstrip().splitlines():
        print(f"      {line}")
    return all(done) and is_known


def _wait_for_verdicts(node: Node) -> bool:
    """Wait until the agent has read every container's device list again after the reloads: until
    then the table reads UNKNOWN. False if that took too long."""
    for _ in range(ACCESS_ATTEMPTS):
        found = node.run(["gpu-gate", "access", "--json"], check=False).stdout
        rows = json.loads(found)["containers"] if found.startswith("{") else []
        if rows and all("unknown" not in (row["now"], row["after_reload"]) for row in rows):
            return True
        time.sleep(0.5)
    return False


def _without(rig: Rig) -> bool:
    rig.node.systemctl("stop", "gpu-gate")
    lost = rig.legacy("trainer-a", 2)
    with rig.feeling(lost, CTL) as feel:
        rig.take_away(lost)
        gate.until(lambda: feel.changes(CTL)[-1:] == [False], "trainer-a still has its GPUs")
        print(
            "    without gpu-gate   daemon-reload: trainer-a can no longer open /dev/nvidiactl, and "
            "nothing gives it back"
        )
        rig.node.systemctl("start", "gpu-gate")
        gate.until(lambda: feel.changes(CTL)[-1:] == [True], lambda: gate.agent_log(rig.node))
        print(
            "                       gpu-gate starts: trainer-a can open it again, without a restart of "
            "the container"
        )
    return True


def _healed(rig: Rig) -> bool:
    container = rig.legacy("trainer-b", 1)
    _wait(rig, container, "lost")
    with rig.feeling(container, CTL) as feel:
        rig.take_away(container)
        gate.until(lambda: bool(feel.gaps_s(CTL)), lambda: gate.agent_log(rig.node))
        gap_ms = feel.gaps_s(CTL)[0] * 1000
        print(
            "    healing only       daemon-reload: trainer-b lost it and could open it again "
            f"{gap_ms:.0f} ms later"
        )
    return True


def _kept(rig: Rig) -> bool:
    rig.node.put(gate.CONF, gate.QUICK)
    rig.node.systemctl("reload", "gpu-gate")
    container = rig.legacy("trainer-c", 1, "c:10:229:rw")
    _wait(rig, container, "allowed")
    devices = (CTL, *container.gpus, "c:10:229")
    with rig.feeling(container, *devices) as feel:
        rig.storm(container, reloads=5)
        felt = [feel.changes(device) for device in devices]
    came = "kept everything, /dev/fuse too" if felt == [[True]] * 3 else f"saw {felt}"
    print(
        "    as installed       5 daemon-reloads, a daemon-reexec, a set-property: trainer-c "
        f"{came}"
    )
    return felt == [[True]] * 3


def _wait(rig: Rig, container: Container, after: str) -> None:
    def row() -> dict[str, str]:
        rows = gate.status(rig.node).get("access", ())
        return next((row for row in rows if row["id"] == container.id), {})

    gate.until(lambda: (row().get("now"), row().get("after_reload")) == ("allowed", after), row)
