"""A scratch cgroup of our own, in which device programs of others are tried without disturbing
anyone.

Nothing but the standard library is imported: programs that are exec'd by path use this.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections import namedtuple
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from .device_cgroups import (
    BPF_CGROUP_DEVICE,
    BPF_PROG_GET_FD_BY_ID,
    AccessUndetermined,
    Cgroups,
    Mounts,
    attr_of,
    bpf,
    libc,
    programs,
    said,
    started,
)

# include/uapi/linux/bpf.h
BPF_PROG_ATTACH, BPF_PROG_DETACH = 8, 9
BPF_F_ALLOW_MULTI = 1 << 1
NAME = "gpu-gate-access-"
FOLDERS = ("/run/gpu-gate", "/run")
"""Where a device node may be made for the blink of an eye. nodev does not matter to access(2)."""

DeviceNode = namedtuple("DeviceNode", "kind major minor host_path")
"""kind is "c" or "b"; host_path a node of this host with these numbers, or ""."""
Verdict = namedtuple("Verdict", "access errno detail")
"""access is allowed, denied or unknown; detail a sentence."""


def access(path: str, mode: int = os.R_OK | os.W_OK) -> int:
    """errno of access(path, R_OK | W_OK), 0 where it is allowed. os.access() would hide it."""
    failed = libc.access(os.fsencode(path), mode)
    return ctypes.get_errno() if failed else 0


def clear(folder: str) -> None:
    """Remove what a probe that was killed has left here."""
    for name in os.listdir(folder):
        pid, _, ticks = name.removeprefix(NAME).partition("-")
        if not name.startswith(NAME) or (pid.isdecimal() and started(pid) == ticks):
            continue
        path = f"{folder}/{name}"
        with suppress(OSError):  # another probe was faster
            for left in ("node", "made"):
                if os.path.lexists(f"{path}/{left}"):
                    os.unlink(f"{path}/{left}")
            os.rmdir(path)


class Scratch:
    """A cgroup of our own with only this program in it, made at first need."""

    def __init__(self, mounts: Mounts) -> None:
        self.path, self.name = "", f"{NAME}{os.getpid()}-{started('self')}"
        self.own = Cgroups.of("self")
        self._mounts, self._fd = mounts, -1
        self._folder = ""
        self._nodes: dict[DeviceNode, str] = {}
        self._inherited: list[int] = []

    def ask(
        self, device_programs: list[int], nodes: list[DeviceNode], is_same_v1: bool
    ) -> list[Verdict]:
        """What the kernel answers a process under all of these programs. Unsure where it cannot be
        asked."""
        self._enter()
        self._inherited = programs(self._fd)
        paths = [self._path(node) for node in nodes]
        before = [access(path) for path in paths]
        with self._under(device_programs):
            after = [access(path) for path in paths]
        # Were our own cgroup restricted by what the process is not under, a refusal would not be
        # its own.
        is_ours = is_same_v1 and set(self._inherited) <= set(device_programs)
        return [_verdict(*each, is_ours) for each in zip(before, after, strict=True)]

    @contextmanager
    def _under(self, device_programs: list[int]) -> Iterator[None]:
        """With these programs in force for us. Unsure where they are not, or no longer at the
        end."""
        attached: list[int] = []
        try:
            for number in device_programs:
                if number not in self._inherited:
                    attached.append(self._attach(number))
            yield
            if set(programs(self._fd)) != {*self._inherited, *device_programs}:
                raise AccessUndetermined(
                    errno.EAGAIN, "The programs of gpu-gate's own cgroup were replaced meanwhile."
                )
        finally:
            self._detach(attached)

    def leave(self) -> None:
        """Go back to where we were, and remove what was made. What cannot be removed is at the next
        start."""
        folder, self._folder = self._folder, ""
        path, self.path = self.path, ""
        with suppress(OSError):
            if folder:
                os.rmdir(folder)
        with suppress(OSError, AccessUndetermined):
            if path:
                os.close(self._fd)
                self._join(self._mounts.folder(self._mounts.v2, self.own.v2 or "/"))
                os.rmdir(path)

    def _enter(self) -> None:
        if self.path:
            return
        problem = ""
        for path in dict.fromkeys((self.own.v2 or "/", "/")):
            try:
                place = self._mounts.folder(self._mounts.v2, path).rstrip("/")
                clear(place)
                os.mkdir(f"{place}/{self.name}", 0o700)
                self.path = f"{place}/{self.name}"
                self._fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                self._join(self.path)
                return
            except OSError as exc:
                problem = problem or f"{place}: {said(exc)}"
                if self.path:
                    os.rmdir(self.path)
                    self.path = ""
            except AccessUndetermined as unsure:
                problem = problem or unsure.detail
        raise AccessUndetermined(
            errno.EACCES,
            "No scratch cgroup could be used; the service wants Delegate= and no "
            f"ProtectControlGroups=. {problem}",
        )

    @staticmethod
    def _join(place: str) -> None:
        with open(f"{place}/cgroup.procs", "wb", 0) as procs:
            procs.write(b"0")

    def _attach(self, number: int) -> int:
        try:
            fd = bpf(BPF_PROG_GET_FD_BY_ID, attr_of(number))
        except OSError as exc:
            raise AccessUndetermined(
                exc.errno or 0, f"Its device program {number} cannot be read: {said(exc)}"
            ) from exc
        try:
            bpf(BPF_PROG_ATTACH, attr_of(self._fd, fd, BPF_CGROUP_DEVICE, BPF_F_ALLOW_MULTI))
        except OSError as exc:
            os.close(fd)
            raise AccessUndetermined(
                exc.errno or 0, f"Its device program {number} cannot be tried: {said(exc)}"
            ) from exc
        return fd

    def _detach(self, attached: list[int]) -> None:
        problem: OSError | None = None
        for fd in attached:
            try:
                bpf(BPF_PROG_DETACH, attr_of(self._fd, fd, BPF_CGROUP_DEVICE))
            except OSError as exc:
                problem = exc
            os.close(fd)
        if problem is not None:
            self.leave()  # the next question makes a clean one
            raise AccessUndetermined(
                problem.errno or 0, f"The scratch cgroup could not be cleared: {said(problem)}"
            )

    def _may_make(self, node: DeviceNode) -> bool:
        """mknod(2) runs the same device check (devcgroup_inode_mknod); what is made is taken away
        at once."""
        try:
            path = f"{self._private_folder()}/made"
            os.mknod(
                path,
                0o600 | (stat.S_IFCHR if node.kind == "c" else stat.S_IFBLK),
                os.makedev(node.major, node.minor),
            )
            os.unlink(path)
        except (OSError, OverflowError):
            return False
        return True

    def _path(self, node: DeviceNode) -> str:
        """A path of a node with these numbers that nobody else can reach."""
        if node not in self._nodes:
            self._nodes[node] = self._make_node(node)
        return self._nodes[node]

    def _make_node(self, node: DeviceNode) -> str:
        mode = 0o600 | (stat.S_IFCHR if node.kind == "c" else stat.S_IFBLK)
        try:
            path = f"{self._private_folder()}/node"
            os.mknod(path, mode, os.makedev(node.major, node.minor))
            try:
                fd = os.open(
                    path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
                )  # O_PATH opens no device
            finally:
                os.unlink(path)
        except (OSError, OverflowError) as exc:
            if node.host_path:
                return str(node.host_path)
            raise AccessUndetermined(
                getattr(exc, "errno", errno.EINVAL),
                f"No device node of our own could be made: {said(exc)}",
            ) from exc
        return f"/proc/self/fd/{fd}"

    def _private_folder(self) -> str:
        problem: OSError | None = None
        for top in () if self._folder else FOLDERS:
            try:
                clear(top)
                os.mkdir(f"{top}/{self.name}", 0o700)
                self._folder = f"{top}/{self.name}"
                break
            except OSError as exc:
                problem = exc
        if problem is not None and not self._folder:
            raise problem
        return self._folder


def _verdict(before: int, after: int, is_ours: bool) -> Verdict:
    if after == 0:
        return Verdict("allowed", 0, "")
    if before == 0 or (before == errno.EPERM and is_ours):
        return Verdict("denied", after, "The device programs of its cgroup deny it.")
    return Verdict("unknown", after, f"gpu-gate itself may not open it: {os.strerror(after)}.")
