"""Device cgroups of both versions: which programs are in force, and what they answer, without disturbing anyone.

Nothing but the standard library is imported: programs that are exec'd by path use this.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from collections import namedtuple
from contextlib import suppress

# include/uapi/linux/bpf.h: enum bpf_cmd, enum bpf_attach_type, attach flags, query flags.
BPF_PROG_ATTACH, BPF_PROG_DETACH, BPF_PROG_GET_FD_BY_ID, BPF_PROG_QUERY = 8, 9, 13, 16
BPF_CGROUP_DEVICE = 6
BPF_F_ALLOW_MULTI = 1 << 1
BPF_F_QUERY_EFFECTIVE = 1 << 0
# arch/x86/entry/syscalls/syscall_64.tbl; include/uapi/asm-generic/unistd.h, which aarch64 uses.
SYS_BPF = {"x86_64": 321, "aarch64": 280}
ATTR_BYTES = 64  # of union bpf_attr; the kernel takes more than it knows where that is zero
MOST_PROGRAMS = 256  # BPF_CGROUP_MAX_PROGS is 64 a level (kernel/bpf/cgroup.c, include/linux/bpf.h)
NAME = "gpu-gate-access-"
FOLDERS = ("/run/gpu-gate", "/run")
"""Where a device node may be made for the blink of an eye. nodev does not matter to access(2)."""

libc = ctypes.CDLL(None, use_errno=True)

DeviceNode = namedtuple("DeviceNode", "kind major minor host_path")
"""kind is "c" or "b"; host_path a node of this host with these numbers, or ""."""
Verdict = namedtuple("Verdict", "access errno detail")
"""access is allowed, denied or unknown; detail a sentence."""


class Unsure(Exception):
    """We could not look; says why in a sentence."""

    def __init__(self, number: int, detail: str) -> None:
        super().__init__(detail)
        self.number = number
        self.detail = detail


def said(exc: Exception) -> str:
    return f"{os.strerror(exc.errno)}." if isinstance(exc, OSError) and exc.errno else f"{exc}."


def read(path: str) -> str:
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read()


def bpf(command: int, attr: ctypes.Array[ctypes.c_char]) -> int:
    number = SYS_BPF.get(os.uname().machine)
    if number is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    result = libc.syscall(ctypes.c_long(number), ctypes.c_long(command), attr, ctypes.c_long(ATTR_BYTES))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(result)


def attr_of(*words: int) -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(struct.pack(f"={len(words)}I", *words), ATTR_BYTES)


def programs(cgroup_fd: int) -> list[int]:
    """Ids of the device programs in force for a cgroup; those of the levels above it are among them."""
    ids = (ctypes.c_uint32 * MOST_PROGRAMS)()
    attr = ctypes.create_string_buffer(ATTR_BYTES)
    struct.pack_into("=IIIIQI", attr, 0, cgroup_fd, BPF_CGROUP_DEVICE, BPF_F_QUERY_EFFECTIVE, 0,
                     ctypes.addressof(ids), MOST_PROGRAMS)
    bpf(BPF_PROG_QUERY, attr)
    return list(ids[: struct.unpack_from("=I", attr, 24)[0]])


def access(path: str) -> int:
    """errno of access(path, R_OK | W_OK), 0 where it is allowed. os.access() would hide it."""
    failed = libc.access(os.fsencode(path), os.R_OK | os.W_OK)
    return ctypes.get_errno() if failed else 0


class Cgroups:
    """Where a process sits: its path in the v2 hierarchy, and in v1's with the devices controller; None for none."""

    def __init__(self, text: str) -> None:
        self.v2: str | None = None
        self.v1: str | None = None
        for line in text.split("\n"):
            if not line:
                continue
            number, controllers, path = line.split(":", 2)
            if number == "0":
                self.v2 = path
            elif "devices" in controllers.split(","):
                self.v1 = path

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cgroups) and (self.v1, self.v2) == (other.v1, other.v2)

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def of(cls, pid: int | str) -> Cgroups:
        return cls(read(f"/proc/{pid}/cgroup"))


class Mounts:
    """Where this host shows the v2 hierarchy and v1's devices: (mount point, which cgroup it is the root of)."""

    def __init__(self, text: str) -> None:
        self.v2: tuple[str, str] | None = None
        self.v1: tuple[str, str] | None = None
        for line in text.split("\n"):
            if " - cgroup" not in line:
                continue
            left, _, right = line.partition(" - ")
            place = [part.encode().decode("unicode_escape") if "\\" in part else part for part in left.split(" ")]
            kind, _, options = right.split(" ", 2)
            if kind == "cgroup2" and self.v2 is None:
                self.v2 = (place[4], place[3])
            elif kind == "cgroup" and "devices" in options.split(",") and self.v1 is None:
                self.v1 = (place[4], place[3])

    @staticmethod
    def folder(mount: tuple[str, str] | None, path: str) -> str:
        """The folder of a cgroup; Unsure where this host does not show it."""
        if path.endswith(" (deleted)"):
            raise Unsure(errno.ESRCH, f"Its cgroup {path} is gone.")
        if mount is None:
            raise Unsure(errno.ENOTSUP, f"No mount shows the cgroup {path}.")
        point, root = mount[0], mount[1].rstrip("/")
        if ".." in path.split("/") or not (path + "/").startswith(root + "/"):
            raise Unsure(errno.EXDEV, f"Its cgroup {path} lies outside of what is seen at {point}.")
        return point + path[len(root):]


def started(pid: int | str) -> str:
    """When a process started, in ticks, so that a pid used again is told apart; "" where it is gone or a zombie."""
    try:
        fields = read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    except OSError:
        return ""
    return fields[19] if len(fields) > 19 and fields[0] not in "ZX" else ""


def sweep(folder: str) -> None:
    """Remove what a probe that was killed has left here."""
    for name in os.listdir(folder):
        pid, _, ticks = name.removeprefix(NAME).partition("-")
        if not name.startswith(NAME) or (pid.isdecimal() and started(pid) == ticks):
            continue
        path = f"{folder}/{name}"
        with suppress(OSError):  # another probe was faster
            if os.path.lexists(f"{path}/node"):
                os.unlink(f"{path}/node")
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

    def ask(self, device_programs: list[int], nodes: list[DeviceNode], is_same_v1: bool) -> list[Verdict]:
        """What the kernel answers a process under all of these programs. Unsure where it cannot be asked."""
        self._enter()
        self._inherited = programs(self._fd)
        paths = [self._path(node) for node in nodes]
        before = [access(path) for path in paths]
        attached: list[int] = []
        try:
            for number in device_programs:
                if number not in self._inherited:
                    attached.append(self._attach(number))
            after = [access(path) for path in paths]
            if set(programs(self._fd)) != {*self._inherited, *device_programs}:
                raise Unsure(errno.EAGAIN, "The programs of gpu-gate's own cgroup were replaced meanwhile.")
        finally:
            self._detach(attached)
        # Were our own cgroup restricted by what the process is not under, a refusal would not be its own.
        is_ours = is_same_v1 and set(self._inherited) <= set(device_programs)
        return [_verdict(first, then, is_ours) for first, then in zip(before, after, strict=True)]

    def leave(self) -> None:
        """Go back to where we were, and remove what was made. What cannot be removed is at the next start."""
        folder, self._folder = self._folder, ""
        path, self.path = self.path, ""
        with suppress(OSError):
            if folder:
                os.rmdir(folder)
        with suppress(OSError, Unsure):
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
                sweep(place)
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
            except Unsure as unsure:
                problem = problem or unsure.detail
        raise Unsure(errno.EACCES, "No scratch cgroup could be used; the service wants Delegate= and no "
                                   f"ProtectControlGroups=. {problem}")

    @staticmethod
    def _join(place: str) -> None:
        with open(f"{place}/cgroup.procs", "wb", 0) as procs:
            procs.write(b"0")

    def _attach(self, number: int) -> int:
        try:
            fd = bpf(BPF_PROG_GET_FD_BY_ID, attr_of(number))
        except OSError as exc:
            raise Unsure(exc.errno or 0, f"Its device program {number} cannot be read: {said(exc)}") from exc
        try:
            bpf(BPF_PROG_ATTACH, attr_of(self._fd, fd, BPF_CGROUP_DEVICE, BPF_F_ALLOW_MULTI))
        except OSError as exc:
            os.close(fd)
            raise Unsure(exc.errno or 0, f"Its device program {number} cannot be tried: {said(exc)}") from exc
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
            raise Unsure(problem.errno or 0, f"The scratch cgroup could not be cleared: {said(problem)}")

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
                fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)  # O_PATH opens no device
            finally:
                os.unlink(path)
        except (OSError, OverflowError) as exc:
            if node.host_path:
                return str(node.host_path)
            raise Unsure(getattr(exc, "errno", errno.EINVAL),
                         f"No device node of our own could be made: {said(exc)}") from exc
        return f"/proc/self/fd/{fd}"

    def _private_folder(self) -> str:
        problem: OSError | None = None
        for top in () if self._folder else FOLDERS:
            try:
                sweep(top)
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
