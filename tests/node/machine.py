"""The machine under a node: an overlay over trees, booted by systemd-nspawn, and a guard that
cleans up.

Nothing of it lives in the mount table of this machine: the overlay is mounted in a mount namespace
of the node's own and dies with its last process. What is left to clean are processes, cgroups and
one folder under .cache/nodes, and the guard does that however the test runner ends, SIGKILL
included.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import remains
from remains import (
    NODES,
    NodeError,
    alive,
    clean,
    hierarchies,
    identity,
    kill,
    poll,
    reap,
    remove_cgroup,
)

# Beyond nspawn's own list: what runc, systemd's device programs and the agent's probes call on a
# real host.
SYSTEM_CALLS = "bpf keyctl add_key request_key clone3 openat2 perf_event_open open_by_handle_at"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

M = TypeVar("M", bound="Machine")
Command = str | Sequence[str]  # a text is a shell script


class Machine:
    """What a node is made of, its power switch, and a way in. nspawn.Node adds the comforts."""

    def __init__(
        self,
        layers: Sequence[Path],
        *,
        hostname: str = "gpu-node",
        binds: Sequence[tuple[Path, str]] = (),
        nodes: Path = NODES,
    ) -> None:
        nodes.mkdir(parents=True, exist_ok=True)
        reap(nodes)
        self.name = f"node-{secrets.token_hex(4)}"
        self.hostname = hostname
        self.binds = list(binds)
        self.layers = [Path(layer) for layer in layers]
        self.folder = nodes / self.name
        self.leader: int | None = None
        self._nspawn: subprocess.Popen[bytes] | None = None
        self._cgroup: Path | None = None
        self._runs = 0
        self._state: dict[str, Any] = {"runner": identity(os.getpid()), "cgroups": []}
        for part in ("upper", "work", "root"):
            (self.folder / part).mkdir(parents=True, mode=0o755)
        self._save()
        (self.folder / "upper/etc").mkdir(mode=0o755)
        (self.folder / "upper/etc/machine-id").write_text(f"{secrets.token_hex(16)}\n")
        (self.folder / "upper/etc/hostname").write_text(f"{hostname}\n")
        self._guard = self._start_guard()
        self._save(guard=identity(self._guard.pid))

    def __repr__(self) -> str:
        return f"<node {self.name} {'up, pid ' + str(self.leader) if self.leader else 'down'}>"

    def __enter__(self: M) -> M:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # --- life

    def boot(self: M, *, until: str = "basic.target", timeout: float = 300.0) -> M:
        """Switch the node on and wait until the unit `until` is active and the system bus answers.

        basic.target and not the whole boot: a gate that holds the kubelet holds multi-user.target
        as well.
        """
        if self.leader is not None:
            raise NodeError(f"{self.name} is up already; use reboot() to start it afresh.")
        end = time.monotonic() + timeout
        self.leader = self._start()
        self._save(leader=identity(self.leader))
        if not self._wait_up(until, end):
            said = self.console()
            self._halt()
            raise NodeError(
                f"{self.name} did not reach {until} in {timeout:.0f} s. Its console said:\n{said}"
            )
        return self

    def wait_booted(self, timeout: float = 300.0) -> str:
        """Wait for the end of the boot; `running`, or `degraded` when a unit failed."""
        done = self.run(["systemctl", "is-system-running", "--wait"], check=False, timeout=timeout)
        return done.stdout.strip()

    def poweroff(self, timeout: float = 30.0) -> None:
        """An orderly shutdown; units get their stop commands. After `timeout` the power is cut."""
        if self._nspawn is None or self.leader is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.leader, signal.SIGRTMIN + 4)  # systemd's "start poweroff.target"
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._nspawn.wait(timeout)
        self._halt()

    def power_cut(self) -> None:
        """Stop like a machine that loses its power: no stop commands run."""
        self._halt()

    def reboot(
        self: M, *, orderly: bool = True, until: str = "basic.target", timeout: float = 300.0
    ) -> M:
        """Down and up again with the same disk; /run, /tmp and /dev are new, the boot id as
        well."""
        if orderly:
            self.poweroff(timeout / 2)
        else:
            self.power_cut()
        return self.boot(until=until, timeout=timeout)

    def close(self) -> None:
        """Cut the power and remove every trace of the node. May be called again."""
        self._halt()
        clean(self.folder)
        if self._guard.stdin is not None:
            with contextlib.suppress(OSError):
                self._guard.stdin.close()
        self._guard.wait()

    # --- work

    def run(
        self,
        command: Command,
        *,
        check: bool = True,
        timeout: float | None = 300.0,
        input: str | bytes | None = None,
        env: dict[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run an argv, or a text as a shell script (`sh -e`), as root on the node; output comes as
        text."""
        data = input.encode() if isinstance(input, str) else input
        cgroup, argv = self._enter(command, env)
        feed = subprocess.DEVNULL if data is None else subprocess.PIPE
        proc = subprocess.Popen(argv, stdin=feed, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            out, err = proc.communicate(data, timeout)
        except BaseException as problem:
            self._end(proc, cgroup)
            if not isinstance(problem, subprocess.TimeoutExpired):
                raise
            said = b"".join(filter(None, (problem.stdout, problem.stderr))).decode(errors="replace")
            raise NodeError(
                f"{shown(command)} did not end in {timeout} s on {self.name}.\n{said}"
            ) from None
        if cgroup is not None:
            with contextlib.suppress(OSError):  # a job it left in the background keeps it
                cgroup.rmdir()
        texts = [stream.decode(errors="replace") for stream in (out, err)]
        done = subprocess.CompletedProcess(argv, proc.returncode, *texts)
        if check and done.returncode:
            raise NodeError(
                f"{shown(command)} ended with {done.returncode} on "
                f"{self.name}.\n{done.stdout}{done.stderr}"
            )
        return done

    @contextlib.contextmanager
    def spawn(self, command: Command, **options: Any) -> Iterator[subprocess.Popen[str]]:
        """A program beside the test, with pipes in text mode; it and its children end with the
        block."""
        cgroup, argv = self._enter(command, options.pop("env", None))
        pipes = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.STDOUT,
        }
        proc: subprocess.Popen[str] = subprocess.Popen(argv, text=True, **{**pipes, **options})
        try:
            yield proc
        finally:
            self._end(proc, cgroup)

    def console(self) -> str:
        """What PID 1 wrote to the console, and the end of the journal on disk; works on a dead node
        too."""
        log = (self.folder / "console.log").read_text(errors="replace")[-8000:]
        where = str(self.folder / "upper/var/log/journal")
        words = ["journalctl", "--no-pager", "-n", "80", "-D", where]
        journal = subprocess.run(words, capture_output=True, text=True, check=False)
        return f"{log}\n--- the end of its journal ---\n{journal.stdout}"

    # --- how

    def _save(self, **changes: Any) -> None:
        self._state.update(changes)
        new = self.folder / "state.json.new"
        new.write_text(json.dumps(self._state))
        new.replace(self.folder / "state.json")

    def _start_guard(self) -> subprocess.Popen[bytes]:
        """It waits on a pipe that only we hold, reads its end however this process ends, and cleans
        up."""
        script = 'read -r _; exec "$0" -ISE "$1" clean "$2"'
        return subprocess.Popen(
            ["sh", "-c", script, sys.executable, remains.__file__, str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C goes to the whole foreground group, and is not meant for it
        )

    def _overlay(self) -> str:
        lower = ":".join(map(str, self.layers))
        options = f"lowerdir={lower},upperdir={self.folder}/upper,workdir={self.folder}/work"
        return (
            f"mount -t overlay overlay -o {shlex.quote(options)} "
            f"{shlex.quote(str(self.folder))}/root"
        )

    def _start(self) -> int:
        prefix = self._take_cgroups()
        joins = "".join(
            f"echo $$ >{shlex.quote(name)}/cgroup.procs; " for name in self._state["cgroups"]
        )
        # A /run/systemd of its own: nspawn leaves propagation and lock folders there.
        script = (
            f"set -e; {'' if prefix else joins}mkdir -p /run/systemd; mount -t tmpfs tmpfs "
            "/run/systemd; "
            f"{self._overlay()}; exec {shlex.join(self._nspawn_words())}"
        )
        words = [*prefix, "unshare", "--mount", "--propagation", "private", "sh", "-c", script]
        with (
            (self.folder / "console.log").open("ab") as console,
            self._notify_socket() as (notify, where),
        ):
            env = {
                "PATH": PATH,
                "TERM": "dumb",
                "LANG": "C.UTF-8",
                "NOTIFY_SOCKET": where,
                "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1",
                "SYSTEMD_NSPAWN_API_VFS_WRITABLE": "1",
            }
            self._nspawn = subprocess.Popen(
                words,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._save(nspawn=identity(self._nspawn.pid))
            return self._leader(notify)

    def _nspawn_words(self) -> list[str]:
        return [
            "systemd-nspawn",
            "--boot",
            "--quiet",
            f"--directory={self.folder}/root",
            f"--machine={self.name}",
            f"--hostname={self.hostname}",
            "--register=no",
            "--keep-unit",
            # Kernel uevents still arrive in a network namespace of its own, while udev's .link
            # rules and the ports on 127.0.0.1 stay off this machine's network.
            "--private-network",
            "--capability=all",
            f"--system-call-filter={SYSTEM_CALLS}",
            "--console=read-only",
            "--link-journal=no",
            "--resolv-conf=off",
            "--timezone=off",
            *(f"--bind-ro={source}:{target}" for source, target in self.binds),
        ]

    def _take_cgroups(self) -> list[str]:
        """Cgroups of the node's own; a machine that systemd runs gives one out, by the returned
        prefix."""
        unit = f"gpu-gate-{self.name}"
        if Path("/run/systemd/system").is_dir():
            self._save(cgroups=[str(hierarchies()[0] / "system.slice" / f"{unit}.scope")])
            scope = ["--scope", "--quiet", "--collect", f"--unit={unit}", "--slice=system.slice"]
            return ["systemd-run", *scope, "--property=Delegate=yes", "--"]
        for top in hierarchies():
            (top / unit).mkdir(exist_ok=True)
        self._save(cgroups=[str(top / unit) for top in hierarchies()])
        return []

    @contextlib.contextmanager
    def _notify_socket(self) -> Iterator[tuple[socket.socket, str]]:
        """nspawn tells the pid of the node's PID 1 by sd_notify. An abstract name: a path may be
        too long."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.bind(f"\0gpu-gate-{self.name}-{secrets.token_hex(4)}")
            notify.settimeout(0.1)
            yield notify, "@" + notify.getsockname().decode()[1:]

    def _leader(self, notify: socket.socket) -> int:
        assert self._nspawn is not None
        while self._nspawn.poll() is None:
            with contextlib.suppress(TimeoutError):
                for line in notify.recv(4096).decode(errors="replace").splitlines():
                    if line.startswith("X_NSPAWN_LEADER_PID="):
                        return int(line.partition("=")[2])
        said = self.console()
        self._halt()
        raise NodeError(f"systemd-nspawn ended before {self.name} came up. It said:\n{said}")

    def _wait_up(self, until: str, end: float) -> bool:
        bus = Path(f"/proc/{self.leader}/root/run/dbus/system_bus_socket")
        if not poll(
            lambda: bus.exists() or not alive(self._state["leader"]), end - time.monotonic()
        ):
            return False
        lines = Path(f"/proc/{self.leader}/cgroup").read_text().splitlines()
        inner = next(x[3:] for x in lines if x.startswith("0::"))
        self._cgroup = (
            hierarchies()[0] / inner.removesuffix("/init.scope").lstrip("/") / "gpu-gate-run"
        )
        self._cgroup.mkdir(exist_ok=True)
        asked = ["systemctl", "is-active", "--quiet", until]

        def settled() -> bool:
            return self.run(asked, check=False).returncode == 0 or not alive(self._state["leader"])

        return poll(settled, end - time.monotonic()) and alive(self._state["leader"])

    def _halt(self) -> None:
        kill(self._state.get("leader"))
        if self._nspawn is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._nspawn.wait(30)  # it reports its payload's end and goes
            kill(self._state.get("nspawn"))
            self._nspawn.wait()
        for name in self._state["cgroups"]:
            remove_cgroup(Path(name))
        self._nspawn = self.leader = self._cgroup = None
        if self.folder.exists():
            self._save(leader=None, nspawn=None, cgroups=[])

    def _enter(self, command: Command, env: dict[str, str] | None) -> tuple[Path | None, list[str]]:
        words = ["sh", "-ec", command] if isinstance(command, str) else list(command)
        pairs = {
            "PATH": PATH,
            "HOME": "/root",
            "LANG": "C.UTF-8",
            "TERM": os.environ.get("TERM", "dumb"),
        }
        inner = [
            "env",
            "-i",
            *(f"{key}={value}" for key, value in {**pairs, **(env or {})}.items()),
            *words,
        ]
        if self.leader is None:
            return None, self._enter_disk(inner)
        if self._cgroup is None:
            raise NodeError(f"{self.name} is still coming up.")
        self._runs += 1
        cgroup = self._cgroup / str(self._runs)
        cgroup.mkdir()
        join = 'echo $$ >"$0"/cgroup.procs && exec "$@"'
        return cgroup, [
            "sh",
            "-c",
            join,
            str(cgroup),
            "nsenter",
            f"--target={self.leader}",
            "--all",
            *inner,
        ]

    def _enter_disk(self, inner: list[str]) -> list[str]:
        root = shlex.quote(f"{self.folder}/root")
        script = (
            f"set -e; {self._overlay()}; mount -t proc proc {root}/proc; mount --rbind /dev "
            f"{root}/dev; "
            f"mount -t tmpfs tmpfs {root}/run; mount -t tmpfs tmpfs {root}/tmp; exec chroot "
            f'{root} "$@"'
        )
        alone = ["--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"]
        return ["unshare", *alone, "sh", "-c", script, "sh", *inner]

    def _end(self, proc: subprocess.Popen[Any], cgroup: Path | None) -> None:
        if cgroup is not None:
            remove_cgroup(cgroup)
        if proc.poll() is None:
            proc.kill()
        for pipe in (proc.stdin, proc.stdout, proc.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        proc.wait()


def shown(command: Command) -> str:
    text = command if isinstance(command, str) else shlex.join(command)
    return f"“{text.strip()[:300]}”"
