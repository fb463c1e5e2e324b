"""A real systemd node in a second: a Debian tree booted by systemd-nspawn, driven from plain
Python.

    with Node(tree.layers("bookworm", sim=False)) as node:
        node.boot()
        node.run("systemctl is-system-running")

machine.py has the power switch (boot, poweroff, power_cut, reboot, close) and the way in (run,
spawn).
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from machine import Command, Machine, shown
from remains import NodeError, poll, remove_cgroup

__all__ = ["Command", "Node", "NodeError"]


class Node(Machine):
    """One node. `layers` are read-only trees, the topmost first; changes go to a folder of the
    node's own.

    Before `boot` and after `poweroff` run, put, read and copy work on its disk by chroot; while the
    node is up they work inside it.
    """

    def shell(self) -> int:
        """An interactive shell with a terminal of the node's own; without a terminal here, commands
        from stdin."""
        words = ["script", "--quiet", "--command", "cd /root; exec bash --login", "/dev/null"]
        cgroup, argv = self._enter(words if sys.stdin.isatty() else ["bash", "--login"], None)
        proc = subprocess.Popen(argv)
        try:
            return proc.wait()
        finally:
            self._end(proc, cgroup)

    def put(self, path: str, content: str | bytes, mode: int = 0o644) -> None:
        """Write a file, with the folders above it."""
        script = (
            'mkdir -p "$(dirname "$0")"; cat >"$0.put"; chmod "$1" "$0.put"; mv -T "$0.put" "$0"'
        )
        self.run(["sh", "-ec", script, path, f"{mode:o}"], input=content)

    def copy(self, source: Path, target: str) -> None:
        """Copy a file or a folder's content from this machine, owned by root."""
        if not source.is_dir():
            self.put(target, source.read_bytes(), source.stat().st_mode & 0o777)
            return
        pack = [
            "tar",
            "-c",
            "--owner=0",
            "--group=0",
            "--exclude=__pycache__",
            "-C",
            str(source),
            ".",
        ]
        packed = subprocess.run(pack, check=True, stdout=subprocess.PIPE).stdout
        unpack = 'mkdir -p "$0"; tar -x --no-overwrite-dir -C "$0"'
        self.run(["sh", "-ec", unpack, target], input=packed)

    def read(self, path: str) -> str:
        return self.run(["cat", path]).stdout

    def exists(self, path: str) -> bool:
        return self.run(["test", "-e", path], check=False).returncode == 0

    def wait_for(self, command: Command, timeout: float = 300.0, pause: float = 0.05) -> None:
        """Until the command succeeds."""
        if not poll(lambda: self.run(command, check=False).returncode == 0, timeout, pause):
            last = self.run(command, check=False)
            said = f"{last.stdout}{last.stderr}"
            raise NodeError(
                f"{shown(command)} did not succeed in {timeout} s on {self.name}.\n{said}"
            )

    # --- systemd

    def systemctl(self, *words: str, check: bool = True, timeout: float = 300.0) -> str:
        return self.run(["systemctl", *words], check=check, timeout=timeout).stdout.strip()

    def is_active(self, unit: str) -> bool:
        return self.run(["systemctl", "is-active", "--quiet", unit], check=False).returncode == 0

    def show(self, unit: str, name: str) -> str:
        """One property of a unit: show("kubelet.service", "InvocationID")."""
        return self.systemctl("show", "--value", "-p", name, "--", unit)

    def journal(self, *words: str, boot: int = 0) -> str:
        """This boot's journal, or an earlier one's (`boot=-1`): journal("-u", "kubelet", "-o",
        "json").

        What was sent to journald before is in it: journald is slower than a test that saw the fact
        itself.
        """
        script = 'journalctl --sync 2>/dev/null || :; exec journalctl --no-pager "$@"'
        return self.run(["sh", "-c", script, "sh", f"--boot={boot}", *words], check=False).stdout

    # --- from outside

    def host_pid(self, pid: int) -> int:
        """The pid that this machine knows for a pid of the node."""
        ours = os.readlink(f"/proc/{self.leader}/ns/pid")
        for status in Path("/proc").glob("[0-9]*/status"):
            with contextlib.suppress(OSError):
                chain = next(
                    x for x in status.read_text().splitlines() if x.startswith("NSpid:")
                ).split()[1:]
                if chain[-1] == str(pid) and os.readlink(status.parent / "ns/pid") == ours:
                    return int(status.parent.name)
        raise NodeError(f"{self.name} has no process {pid}.")

    @contextlib.contextmanager
    def uninterruptible(self, pid: int) -> Iterator[None]:
        """Hold a process in state D, deaf to SIGKILL, as a driver that hangs does. Wants a v1
        freezer."""
        freezer = Path("/sys/fs/cgroup/freezer")
        if not (freezer / "cgroup.procs").exists():
            raise NodeError(
                "No v1 freezer cgroup is mounted here, so no process can be held in state D."
            )
        cage = freezer / f"{self.name}-{pid}"
        cage.mkdir()
        self._save(cgroups=[*self._state["cgroups"], str(cage)])
        try:
            (cage / "cgroup.procs").write_text(str(self.host_pid(pid)))
            (cage / "freezer.state").write_text("FROZEN")
            yield
        finally:
            (cage / "freezer.state").write_text("THAWED")
            for held in (cage / "cgroup.procs").read_text().split():
                with contextlib.suppress(OSError):
                    (freezer / "cgroup.procs").write_text(held)
            remove_cgroup(cage)
