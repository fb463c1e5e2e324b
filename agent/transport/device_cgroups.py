"""Device cgroups of both versions: what is in force for a process. Nothing is tried here;
transport/scratch_cgroup.py does that.

Nothing but the standard library is imported: programs that are exec'd by path use this.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

# include/uapi/linux/bpf.h: enum bpf_cmd, enum bpf_attach_type, attach flags, query flags.
BPF_PROG_GET_FD_BY_ID, BPF_OBJ_GET_INFO_BY_FD, BPF_PROG_QUERY = 13, 15, 16
BPF_CGROUP_DEVICE = 6
BPF_F_QUERY_EFFECTIVE = 1 << 0
# arch/x86/entry/syscalls/syscall_64.tbl; include/uapi/asm-generic/unistd.h, which aarch64 uses.
SYS_BPF = {"x86_64": 321, "aarch64": 280}
ATTR_BYTES = 64  # of union bpf_attr; the kernel takes more than it knows where that is zero
MOST_PROGRAMS = 256  # BPF_CGROUP_MAX_PROGS is 64 a level (kernel/bpf/cgroup.c, include/linux/bpf.h)

libc = ctypes.CDLL(None, use_errno=True)


class AccessUndetermined(Exception):
    """The device access of a process could not be determined; `detail` is a sentence with the
    reason, `number` an errno."""

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
    result = libc.syscall(
        ctypes.c_long(number), ctypes.c_long(command), attr, ctypes.c_long(ATTR_BYTES)
    )
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(result)


def attr_of(*words: int) -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(struct.pack(f"={len(words)}I", *words), ATTR_BYTES)


def programs(cgroup_fd: int) -> list[int]:
    """Ids of the device programs in force for a cgroup; those of the levels above it are among
    them."""
    ids = (ctypes.c_uint32 * MOST_PROGRAMS)()
    attr = ctypes.create_string_buffer(ATTR_BYTES)
    struct.pack_into(
        "=IIIIQI",
        attr,
        0,
        cgroup_fd,
        BPF_CGROUP_DEVICE,
        BPF_F_QUERY_EFFECTIVE,
        0,
        ctypes.addressof(ids),
        MOST_PROGRAMS,
    )
    bpf(BPF_PROG_QUERY, attr)
    return list(ids[: struct.unpack_from("=I", attr, 24)[0]])


def reads_maps(number: int) -> bool:
    """Whether a program uses maps: its text never changes, what they hold may. Raises
    OSError if the kernel does not show it."""
    fd = bpf(BPF_PROG_GET_FD_BY_ID, attr_of(number))
    try:
        info = ctypes.create_string_buffer(ATTR_BYTES)  # struct bpf_prog_info, nr_map_ids at 52
        attr = ctypes.create_string_buffer(ATTR_BYTES)
        struct.pack_into("=IIQ", attr, 0, fd, ATTR_BYTES, ctypes.addressof(info))
        bpf(BPF_OBJ_GET_INFO_BY_FD, attr)
        return bool(struct.unpack_from("=I", info, 52)[0])
    finally:
        os.close(fd)


class Cgroups:
    """Where a process sits: its path in the v2 hierarchy, and in v1's with the devices controller;
    None for none."""

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
    """Where this host shows the v2 hierarchy and v1's devices: (mount point, which cgroup it is the
    root of)."""

    def __init__(self, text: str) -> None:
        self.v2: tuple[str, str] | None = None
        self.v1: tuple[str, str] | None = None
        for line in text.split("\n"):
            if " - cgroup" not in line:
                continue
            left, _, right = line.partition(" - ")
            place = [
                part.encode().decode("unicode_escape") if "\\" in part else part
                for part in left.split(" ")
            ]
            kind, _, options = right.split(" ", 2)
            if kind == "cgroup2" and self.v2 is None:
                self.v2 = (place[4], place[3])
            elif kind == "cgroup" and "devices" in options.split(",") and self.v1 is None:
                self.v1 = (place[4], place[3])

    @staticmethod
    def folder(mount: tuple[str, str] | None, path: str) -> str:
        """The folder of a cgroup. Raises AccessUndetermined if this host does not show it."""
        if path.endswith(" (deleted)"):
            raise AccessUndetermined(errno.ESRCH, f"Its cgroup {path} is gone.")
        if mount is None:
            raise AccessUndetermined(errno.ENOTSUP, f"No mount shows the cgroup {path}.")
        point, root = mount[0], mount[1].rstrip("/")
        if ".." in path.split("/") or not (path + "/").startswith(root + "/"):
            raise AccessUndetermined(
                errno.EXDEV, f"Its cgroup {path} lies outside of what is seen at {point}."
            )
        return point + path[len(root) :]


def started(pid: int | str) -> str:
    """When a process started, in ticks, so that a pid used again is told apart; "" where it is gone
    or a zombie."""
    try:
        fields = read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    except OSError:
        return ""
    return fields[19] if len(fields) > 19 and fields[0] not in "ZX" else ""


def governing(cgroups: Cgroups, mounts: Mounts, own: Cgroups) -> tuple[bool, bool]:
    """Which govern a process: v1's list, v2's programs. Raises AccessUndetermined if it is in no
    cgroup that this host shows."""
    if cgroups.v1 is None and cgroups.v2 is None:
        raise AccessUndetermined(errno.EPROTO, "It is in no cgroup that can be seen.")
    # Where the machine around a container node has v1, its cgroup is listed here and shown nowhere.
    # It is ours too then, and governs us as it governs the process.
    has_list = cgroups.v1 is not None and (mounts.v1 is not None or cgroups.v1 != own.v1)
    has_programs = cgroups.v2 is not None and not (mounts.v2 is None and cgroups.v2 == "/")
    if not has_list and not has_programs:
        raise AccessUndetermined(errno.ENOTSUP, "No mount shows its cgroups.")
    return has_list, has_programs


def rules_word(text: str | None, ids: list[int] | None) -> str:
    """What must stay equal for a verdict to stand: v1's list, the ids of the programs in force;
    None: governs not."""
    words = [] if text is None else [f"list {text}"]
    return "".join(words if ids is None else [*words, f"programs {','.join(map(str, ids))}"])


def rules(cgroups: Cgroups, mounts: Mounts, own: Cgroups) -> tuple[str, list[int]]:
    """The rules in force for a process now (see rules_word), and the ids of its programs. Raises
    AccessUndetermined or OSError if they cannot be read."""
    has_list, has_programs = governing(cgroups, mounts, own)
    text = read(f"{mounts.folder(mounts.v1, cgroups.v1 or '/')}/devices.list") if has_list else None
    if not has_programs:
        return rules_word(text, None), []
    fd = os.open(
        mounts.folder(mounts.v2, cgroups.v2 or "/"), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    )
    try:
        ids = programs(fd)
    finally:
        os.close(fd)
    return rules_word(text, ids), ids
