"""The nodes themselves: what a test takes for granted of them, and that nothing of them stays
behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import remains
import tree
from nspawn import Node, NodeError

SUBSCRIBE = """
import asyncio
from dbus_next import BusType, Message
from dbus_next.aio import MessageBus

async def main():
    bus = await MessageBus(bus_type=BusType.SYSTEM).connect()
    seen = asyncio.Queue()
    bus.add_message_handler(lambda m: seen.put_nowait(m.body[0]) if m.member == "Reloading" else None)
    systemd = dict(destination="org.freedesktop.systemd1", path="/org/freedesktop/systemd1",
                   interface="org.freedesktop.systemd1.Manager")
    rule = "type='signal',sender='org.freedesktop.systemd1',member='Reloading'"
    await bus.call(Message(destination="org.freedesktop.DBus", path="/org/freedesktop/DBus",
                           interface="org.freedesktop.DBus", member="AddMatch", signature="s", body=[rule]))
    await bus.call(Message(member="Subscribe", **systemd))
    print("ready", flush=True)
    print([await asyncio.wait_for(seen.get(), 60) for _ in range(2)], flush=True)

asyncio.run(main())
"""
OPEN = """
import os, sys
try:
    os.open("/dev/nvidiactl", os.O_RDWR)
except OSError as error:
    print(error.errno)
"""


def remnants(name: str) -> list[str]:
    """Whatever of a node this machine still shows."""
    mounts = [line for line in Path("/proc/self/mounts").read_text().splitlines() if name in line]
    cgroups = [str(path) for top in remains.hierarchies() for path in top.glob(f"*{name}*")]
    processes = []
    for cmdline in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = cmdline.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if name in words:
            processes.append(f"{cmdline.parent.name} {words}")
    folders = [str(path) for path in remains.NODES.glob(f"{name}*")]
    return mounts + cgroups + processes + folders


def test_the_services_of_a_real_host_are_up(node: Node) -> None:
    assert node.wait_booted() == "running", node.systemctl("--failed")
    for unit in ("systemd-udevd", "systemd-journald", "dbus", "systemd-logind", "containerd"):
        assert node.is_active(f"{unit}.service"), unit
    assert node.run("stat -fc %T /sys/fs/cgroup").stdout.strip() == "cgroup2fs"


def test_suites_bring_their_systemd(node: Node, suite: str) -> None:
    wanted = {"bookworm": "systemd 252", "trixie": "systemd 257"}
    assert node.run("systemctl --version").stdout.startswith(wanted[suite])


def test_a_node_does_not_look_like_a_container(node: Node) -> None:
    assert not node.exists("/run/systemd/container")
    assert not node.exists("/run/host")
    assert "container" not in node.read("/proc/1/environ")
    assert "nspawn" not in node.run(["systemd-detect-virt"], check=False).stdout


def test_daemon_reload_is_signalled(node: Node) -> None:
    with node.spawn(["python3", "-c", SUBSCRIBE]) as listener:
        assert listener.stdout is not None
        assert listener.stdout.readline() == "ready\n"
        node.systemctl("daemon-reload")
        assert listener.stdout.readline() == "[True, False]\n"


def test_device_programs_are_enforced(node: Node) -> None:
    node.run("mknod /dev/nvidiactl c 195 255")
    scope = ["systemd-run", "--quiet", "--scope", "--property=DevicePolicy=strict"]
    denied = node.run([*scope, "--property=DeviceAllow=/dev/null rw", "python3", "-c", OPEN])
    allowed = node.run([*scope, "--property=DeviceAllow=/dev/nvidiactl rw", "python3", "-c", OPEN])
    assert denied.stdout.strip() == "1", "EPERM by the cgroup's device program"
    assert allowed.stdout.strip() == "6", "ENXIO: let through to a driver that is not there"


def test_uevents_arrive(node: Node) -> None:
    """From the kernel, and again from udevd after its rules. The boot's own "add" may still be on
    its way."""
    with node.spawn(["stdbuf", "-oL", "udevadm", "monitor", "--kernel", "--udev"]) as monitor:
        assert monitor.stdout is not None
        while monitor.stdout.readline().strip():
            pass  # its head, up to an empty line
        node.run("echo change >/sys/class/mem/null/uevent")
        changes = (line for line in monitor.stdout if " change " in line and "/mem/null" in line)
        seen = [next(changes), next(changes)]
    assert seen[0].startswith("KERNEL[")
    assert seen[1].startswith("UDEV")


def test_kernel_state_can_be_overlaid(node: Node) -> None:
    node.run(
        """
        mount -t tmpfs sim /sys/bus/pci/devices; mkdir /sys/bus/pci/devices/0000:07:00.0
        mount -t tmpfs sim /proc/driver; mkdir -p /proc/driver/nvidia/gpus
        mkdir /sys/module/nvidia
        { cat /proc/devices; echo '195 nvidia'; } >/run/devices; mount --bind /run/devices /proc/devices
        """
    )
    assert node.run("ls /sys/bus/pci/devices").stdout == "0000:07:00.0\n"
    assert "195 nvidia" in node.read("/proc/devices")
    assert node.exists("/proc/driver/nvidia/gpus")
    node.run("udevadm trigger --settle --action=change --subsystem-match=mem")


def test_containers_run_with_the_systemd_driver(node: Node) -> None:
    node.wait_for("ctr version")
    create = """
        ctr --namespace k8s.io run --rm --snapshotter native --runc-binary /usr/local/sbin/runc-node \
            --runc-systemd-cgroup --cgroup kubepods-x.slice:cri-containerd:abc --device /dev/fuse0 \
            localhost/sim/base:1 abc /bin/sh -c 'grep ^0:: /proc/self/cgroup; cat /dev/fuse0'
    """
    node.run("mknod /dev/fuse0 c 195 3")
    done = node.run(create, check=False)
    assert "/kubepods.slice/kubepods-x.slice/cri-containerd-abc.scope" in done.stdout
    assert "No such device or address" in done.stderr, "let through by the device program"


def test_a_reboot_keeps_the_disk_and_empties_run(node: Node) -> None:
    first = node.read("/proc/sys/kernel/random/boot_id")
    machine = node.read("/etc/machine-id")
    node.put("/var/lib/kept", "yes")
    node.put("/run/lost", "yes")
    node.reboot()
    assert node.read("/var/lib/kept") == "yes"
    assert not node.exists("/run/lost")
    assert node.read("/proc/sys/kernel/random/boot_id") != first
    assert node.read("/etc/machine-id") == machine
    assert "Journal stopped" in node.journal(boot=-1)
    node.reboot(orderly=False)
    assert node.read("/var/lib/kept") == "yes"


def test_a_process_in_state_d_survives_sigkill(node: Node) -> None:
    with node.spawn(["sh", "-c", "echo $$; exec sleep 60"]) as sleeper:
        assert sleeper.stdout is not None
        pid = int(sleeper.stdout.readline())
        with node.uninterruptible(pid):
            node.wait_for(f"grep -q '^State:.D' /proc/{pid}/status")
            node.run(["kill", "-KILL", str(pid)])
            time.sleep(0.1)
            assert "\nState:\tD" in node.read(f"/proc/{pid}/status")
        assert sleeper.wait(60) != 0


def test_a_hanging_command_is_killed_and_reported(node: Node) -> None:
    with pytest.raises(NodeError, match="did not end in"):
        node.run("echo before; sleep 77 & sleep 77", timeout=0.5)
    assert node.run("pgrep -cf 'sleep [7]7'", check=False).stdout.strip() == "0"


def test_a_boot_that_fails_shows_the_console(make_node) -> None:
    node = make_node(deb=False, standins=False, boot=False)
    with pytest.raises(NodeError, match=r"(?s)did not reach never\.target.*Reached target"):
        node.boot(until="never.target", timeout=10)


def test_parallel_nodes_are_isolated(make_node) -> None:
    nodes = [make_node(deb=False, standins=False) for _ in range(2)]
    for node in nodes:
        node.run("systemd-run --quiet socat TCP-LISTEN:9477,bind=127.0.0.1,fork SYSTEM:hostname")
        node.put("/var/lib/name", node.name)
    assert [node.read("/var/lib/name") for node in nodes] == [node.name for node in nodes]
    assert nodes[0].read("/etc/machine-id") != nodes[1].read("/etc/machine-id")
    nodes[0].close()
    assert nodes[1].is_active("dbus.service")


def test_nothing_remains_after_poweroff_and_close(suite: str) -> None:
    with Node(tree.layers(suite, sim=False)) as node:
        node.boot()
        node.poweroff()
        assert not node.leader
        assert [line for line in remnants(node.name) if "cgroup" in line] == []
        assert node.exists("/etc/machine-id"), "the disk of a node that is off can be read"
        node.boot()
    assert remnants(node.name) == []


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_remains_of_a_runner_that_dies(how: signal.Signals) -> None:
    program = (
        "import signal, sys, time; sys.path.insert(0, sys.argv[1])\n"
        "import nspawn, tree\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # which a shell's background job ignores
        "node = nspawn.Node(tree.layers('bookworm', sim=False)).boot()\n"
        "print(node.name, flush=True); time.sleep(60)\n"
    )
    words = [sys.executable, "-c", program, str(Path(__file__).parent)]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as runner:
        assert runner.stdout is not None
        name = runner.stdout.readline().strip()
        assert remnants(name)
        os.kill(runner.pid, how)
        runner.wait(60)
    assert remains.poll(lambda: not remnants(name), 60), remnants(name)


def test_the_next_start_removes_leftovers_of_a_dead_runner(tmp_path: Path) -> None:
    folder = tmp_path / "node-dead"
    folder.mkdir()
    sleeper = subprocess.Popen(["sleep", "60"])
    left = list(remains.identity(sleeper.pid) or ())
    gone = [os.getpid(), 1]  # our pid, but another's start time: not to be killed
    state = {"runner": gone, "guard": gone, "leader": gone, "nspawn": left, "cgroups": []}
    (folder / "state.json").write_text(json.dumps(state))
    assert remains.reap(tmp_path) == ["node-dead"]
    assert not folder.exists()
    assert sleeper.wait(60) == -signal.SIGKILL
