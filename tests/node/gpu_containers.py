"""Containers that hold GPUs, or seem to, on a node with the stand-ins: created by real containerd
and runc, and changed without runc's knowledge.

    rig = Rig(node, "bookworm")          # the plugin has registered
    pod = rig.legacy("a", gpus=2)        # the legacy hook gave it the GPUs: the OCI spec and
    systemd know nothing
    rig.can(pod, "c:195:0")              # asked from inside its cgroup
    with rig.feeling(pod, "c:195:0") as feel: …; feel.changes()
"""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gate
from nspawn import Node

HERE = Path(__file__).resolve().parent
PROGRAM = "/opt/probe/behind_runc.py"
CTL, UVM, UVM_TOOLS, GPU0, NULL, FUSE = (
    "c:195:255",
    "c:235:0",
    "c:235:1",
    "c:195:0",
    "c:1:3",
    "c:10:229",
)
ASK = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
kind, major, minor = sys.argv[2].split(":")
path = f"/run/ask-{os.getpid()}"
os.mknod(path, 0o600 | (0o020000 if kind == "c" else 0o060000), os.makedev(int(major), int(minor)))
open(sys.argv[1] + "/cgroup.procs", "w").write("0")
failed = libc.access(path.encode(), 6)
number = ctypes.get_errno() if failed else 0
os.unlink(path)
assert number in (0, 1), number
print(number)
"""


@dataclass(frozen=True)
class Container:
    """A running container of the rig."""

    pod: str
    id: str
    pid: int
    scope: str
    cgroup: str
    gpus: tuple[str, ...] = ()
    """device names (c:195:0) of the allocated GPUs, by number: the order of ids depends on which
    GPUs were free"""


class Feeling:
    """What a process in the container's own cgroup observed."""

    def __init__(self, program: subprocess.Popen[str]) -> None:
        self._lines: list[dict[str, Any]] = []
        self._program = program
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._program.stdout is not None
        for line in self._program.stdout:
            self._lines.append(json.loads(line))

    def changes(self, device: str) -> list[bool]:
        return [line["can"] for line in list(self._lines) if line["device"] == device]

    def gaps_s(self, device: str) -> list[float]:
        """The duration of each loss that has ended, in seconds."""
        of = [line for line in list(self._lines) if line["device"] == device]
        return [then["at"] - lost["at"] for lost, then in itertools.pairwise(of) if not lost["can"]]


class Rig:
    def __init__(self, node: Node, suite: str) -> None:
        self.node, self.suite = node, suite
        node.copy(HERE / "behind_runc.py", PROGRAM)
        node.put("/opt/probe/ask.py", ASK)

    # --- containers

    def pod(
        self,
        name: str,
        gpus: int = 0,
        devices: str = "",
        security: str = "",
        legacy: str | None = None,
    ) -> Container:
        env = f'env: [{{name: LEGACY, value: "{legacy}"}}]' if legacy is not None else ""
        # Moved in whole: what lies there under another name for a moment is another pod.
        self.node.put(f"/opt/probe/{name}.yaml", gate.pod_text(name, gpus, devices, security, env))
        self.node.run(f"mv /opt/probe/{name}.yaml /etc/kubernetes/manifests/")
        found: Container = gate.until(lambda: self.find(name), lambda: gate.plugins(self.node))
        return found

    def find(self, name: str) -> Container | None:
        rows = [json.loads(line) for line in self.node.run("simcri ps -a").stdout.splitlines()]
        ids = [row["id"] for row in rows if row["name"] == name and row["state"] == "RUNNING"]
        if len(ids) != 1:
            return None
        pid = json.loads(self.node.run(["simcri", "inspect", ids[0]]).stdout)["info"]["pid"]
        lines = self.node.read(f"/proc/{pid}/cgroup").splitlines()
        cgroup = next(line[3:] for line in lines if line.startswith("0::"))
        scope = next(part for part in cgroup.split("/") if part.endswith(".scope"))
        return Container(name, ids[0], pid, scope, f"/sys/fs/cgroup{cgroup}", self._allocated(name))

    def legacy(self, name: str, gpus: int = 1, *more: str) -> Container:
        """Gets its GPUs from the legacy hook, without runc's knowledge and before it starts; `more`
        are rules in addition to NVIDIA's."""
        return self.pod(name, gpus, legacy=" ".join(more))

    def take_away(self, container: Container) -> None:
        """Make systemd 252, or 257, apply the device list of a scope again."""
        if self.suite == "bookworm":
            self.node.systemctl("daemon-reload")
        else:
            self.node.systemctl("set-property", "--runtime", container.scope, "CPUWeight=50")

    def storm(self, *containers: Container, reloads: int = 20) -> None:
        """Repeat everything that makes systemd apply the device lists of scopes again."""
        for _ in range(reloads):
            self.node.systemctl("daemon-reload")
        self.node.systemctl("daemon-reexec")
        for container in containers:
            self.node.systemctl("set-property", "--runtime", container.scope, "CPUWeight=70")

    def deny(self, container: Container, device: str) -> None:
        self.node.run(["python3", PROGRAM, "deny", str(container.pid), *device.split(":")[1:]])

    def remove(self, name: str) -> None:
        self.node.run(f"rm /etc/kubernetes/manifests/{name}.yaml")

    # --- what they may do

    def can(self, container: Container, device: str) -> bool:
        """Checked by a process that joins its cgroup."""
        return (
            self.node.run(["python3", "/opt/probe/ask.py", container.cgroup, device]).stdout.strip()
            == "0"
        )

    def can_all(self, container: Container, *devices: str) -> list[bool]:
        return [self.can(container, device) for device in devices or (CTL, UVM, *container.gpus)]

    @contextlib.contextmanager
    def feeling(self, container: Container, *devices: str) -> Iterator[Feeling]:
        words = ["python3", PROGRAM, "feel", str(container.pid), *devices]
        with self.node.spawn(words, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as program:
            feel = Feeling(program)
            try:
                gate.until(
                    lambda: all(feel.changes(device) for device in devices), "no first feeling"
                )
                yield feel
            finally:  # it sits in another cgroup than it was started in: nobody else ends it
                assert program.stdin is not None
                program.stdin.close()
                program.wait(60)

    def allow_list(self, container: Container) -> dict[str, str]:
        """DeviceAllow= of its scope, as systemd has it now."""
        said = self.node.run(
            [
                "busctl",
                "get-property",
                "--json=short",
                "org.freedesktop.systemd1",
                self.path(container),
                "org.freedesktop.systemd1.Scope",
                "DeviceAllow",
            ]
        ).stdout
        return dict(json.loads(said)["data"])

    def path(self, container: Container) -> str:
        escaped = "".join(c if c.isalnum() else f"_{ord(c):02x}" for c in container.scope)
        return f"/org/freedesktop/systemd1/unit/{escaped}"

    def _allocated(self, name: str) -> tuple[str, ...]:
        path = f"{gate.SOCKETS}/kubelet_internal_checkpoint"
        entries = json.loads(self.node.read(path))["Data"]["PodDeviceEntries"] or []
        ids = [
            uuid
            for entry in entries
            if entry["ContainerName"] == name
            for part in entry["DeviceIDs"].values()
            for uuid in part
        ]
        if not ids:
            return ()
        code = (
            "import pynvml as n, sys; n.nvmlInit()\n"
            "for u in sys.argv[1:]: "
            "print(n.nvmlDeviceGetMinorNumber(n.nvmlDeviceGetHandleByUUID(u)))"
        )
        minors = self.node.run(
            ["python3", "-c", code, *ids], env={"PYTHONPATH": "/opt/gpu-gate-sim"}
        ).stdout
        return tuple(f"c:195:{minor}" for minor in sorted(map(int, minors.split())))
