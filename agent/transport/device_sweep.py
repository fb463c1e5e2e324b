"""Everything that a cgroup's device programs allow now: every device number of this host, and whole
majors.

Nothing but the standard library is imported: programs that are exec'd by path use this.
"""

from __future__ import annotations

import errno
import os
import resource
import stat
from collections.abc import Iterator

from .device_cgroups import (
    AccessUndetermined,
    Cgroups,
    Mounts,
    governing,
    programs,
    read,
    rules_word,
    said,
    started,
)
from .scratch_cgroup import DeviceNode, Scratch, access

NO_MINOR, NO_MAJOR = (1 << 20) - 1, (1 << 12) - 1
"""The last numbers there are: who may open such a node may open every minor, or everything."""
ANY = -1
MOST_NUMBERS, MOST_DEPTH = 8192, 4
"""of /dev and /sys/dev, and how deep /dev is walked"""
RIGHTS = (("r", os.R_OK), ("w", os.W_OK))


def numbers() -> list[DeviceNode]:
    """Every device number this host knows, after the wildcards: everything, then every major."""
    found = {
        *_of_sysfs("c", "/sys/dev/char"),
        *_of_sysfs("b", "/sys/dev/block"),
        *_of_folder("/dev", MOST_DEPTH),
    }
    if len(found) > MOST_NUMBERS:
        raise AccessUndetermined(
            errno.E2BIG, f"This host knows {len(found)} device numbers, more than can be tried."
        )
    majors = {*_of_proc(), *((kind, major) for kind, major, _ in found)}
    wild = [(kind, ANY, ANY) for kind in "cb"] + [
        (kind, major, ANY) for kind, major in sorted(majors)
    ]
    return [DeviceNode(*number, "") for number in (*wild, *sorted(found))]


def _of_sysfs(kind: str, folder: str) -> Iterator[tuple[str, int, int]]:
    for name in os.listdir(folder):
        major, _, minor = name.partition(":")
        yield kind, int(major), int(minor)


def _of_folder(folder: str, depth: int) -> Iterator[tuple[str, int, int]]:
    """NVIDIA's driver registers nothing in sysfs: its numbers are known by their nodes only."""
    with os.scandir(folder) as entries:
        for entry in entries:
            found = entry.stat(follow_symlinks=False)
            if stat.S_ISCHR(found.st_mode) or stat.S_ISBLK(found.st_mode):
                yield (
                    "c" if stat.S_ISCHR(found.st_mode) else "b",
                    os.major(found.st_rdev),
                    os.minor(found.st_rdev),
                )
            elif stat.S_ISDIR(found.st_mode) and depth:
                yield from _of_folder(entry.path, depth - 1)


def _of_proc() -> Iterator[tuple[str, int]]:
    kind = "c"
    for line in read("/proc/devices").splitlines():
        number, _, name = line.strip().partition(" ")
        if line.startswith("Block"):
            kind = "b"
        elif number.isdecimal() and name and int(number) < NO_MAJOR:
            yield kind, int(number)


class Sweep(Scratch):
    """A scratch cgroup in which every right is tried."""

    def __init__(self, mounts: Mounts) -> None:
        super().__init__(mounts)
        self._before: dict[DeviceNode, str] = {}
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (most, most)
        )  # a descriptor is kept for each number

    def try_all(
        self, device_programs: list[int], nodes: list[DeviceNode], is_same_v1: bool
    ) -> dict[DeviceNode, str]:
        """Of rwm, what a process under all of these programs may do with each node; wildcards come
        first.

        Unsure where our own cgroup denies something by itself: what we may not try cannot be told.
        """
        self._enter()
        self._inherited = programs(self._fd)
        for node in nodes:  # while nothing but our own cgroup's rules can forbid it
            self._path(_tried(node))
        if not (is_same_v1 and set(self._inherited) <= set(device_programs)):
            for node in nodes:
                if node not in self._before:
                    self._before[node] = self._of(node, "")
                if not {"r", "w"} <= set(self._before[node]):
                    raise AccessUndetermined(
                        errno.EPERM,
                        "gpu-gate's own cgroup restricts devices, so not all could be tried.",
                    )
        found: dict[DeviceNode, str] = {}
        with self._under(device_programs):
            for node in nodes:
                found[node] = self._of(node, "".join(found.get(wild, "") for wild in _above(node)))
        return found

    def _of(self, node: DeviceNode, known: str) -> str:
        """`known` is allowed by a wildcard above it. Only a node that may be opened is tried for
        mknod as well."""
        tried = _tried(node)
        path = self._path(tried)
        can = "".join(right for right, mode in RIGHTS if right in known or access(path, mode) == 0)
        if "m" in known or ((can or node.minor == ANY) and self._may_make(tried)):
            can += "m"
        return can


def _tried(node: DeviceNode) -> DeviceNode:
    """The node that stands for a wildcard: with the last number there is."""
    return DeviceNode(
        node.kind,
        NO_MAJOR if node.major == ANY else node.major,
        NO_MINOR if node.minor == ANY else node.minor,
        "",
    )


def _above(node: DeviceNode) -> tuple[DeviceNode, ...]:
    """The wildcards that a number falls under."""
    kind, major, minor, _ = node
    everything = DeviceNode(kind, ANY, ANY, "")
    if major == ANY:
        return ()
    return (everything,) if minor == ANY else (everything, DeviceNode(kind, major, ANY, ""))


def allowed(
    pid: int, since: str, nodes: list[DeviceNode], mounts: Mounts, sweep: Sweep
) -> tuple[str, dict[DeviceNode, str]]:
    """The rules in force, and what a process may do with each node beyond what a wildcard lets it.
    Unsure where it cannot be told."""
    if started(pid) != since:
        raise AccessUndetermined(errno.ESRCH, f"Process {pid} is gone.")
    cgroups = Cgroups.of(pid)
    if governing(cgroups, mounts, sweep.own) != (False, True):
        raise AccessUndetermined(
            errno.ENOTSUP, "cgroup v1: what it allows is only told of, nothing is added there."
        )
    fd = os.open(
        mounts.folder(mounts.v2, cgroups.v2 or "/"), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    )
    try:
        for _ in range(3):
            ids = programs(fd)
            found = sweep.try_all(ids, nodes, cgroups.v1 == sweep.own.v1)
            if programs(fd) == ids:
                break
        else:
            raise AccessUndetermined(
                errno.EAGAIN,
                "Its device programs were replaced again and again while they were tried.",
            )
    except OSError as exc:
        raise AccessUndetermined(
            exc.errno or 0, f"The device programs of its cgroup cannot be tried: {said(exc)}"
        ) from exc
    finally:
        os.close(fd)
    if started(pid) != since or Cgroups.of(pid) != cgroups:
        raise AccessUndetermined(
            errno.ESRCH, f"Process {pid} ended or moved to another cgroup while it was looked at."
        )
    return rules_word(None, ids), {
        node: can
        for node, can in found.items()
        if set(can) - set("".join(found.get(wild, "") for wild in _above(node)))
    }
