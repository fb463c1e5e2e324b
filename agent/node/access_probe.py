"""May the processes of a container open these device nodes now? An exec'd program: one JSON line for each --pid.

    access_probe.py --pid PID DEVICE... [--pid PID DEVICE...]...

DEVICE is a node of this host by its path (/dev/nvidiactl), or c:MAJOR:MINOR, or b:MAJOR:MINOR.

    {"v": 1, "pid": 4711, "cgroup": "/kubepods…", "version": "v2", "way": "scratch", "place": "/sys/fs/cgroup/…",
     "answers": [{"path": "/dev/nvidiactl", "kind": "c", "major": 195, "minor": 255,
                  "access": "allowed", "errno": 0, "detail": ""}]}

How (docs/access.md): on cgroup v2 the programs in force for the process's own cgroup, those of all levels above it
included, are attached to a scratch cgroup of ours in which only this program sits, and access(2) is asked there on
a node of our own making: inode_permission() runs the device check (kernel, fs/namei.c, security/device_cgroup.c)
and no driver is entered. On v1 devices.list is read. Nothing of the process or its cgroup is touched, so it may be
frozen, or out of pids or memory. "denied" is said only where the kernel was seen to deny; all else is "unknown".
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import stat
import struct
import sys

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
FOLDERS = ("/run/gpu-gate", "/run", "/dev")
"""Where a device node may be made for the blink of an eye. nodev does not matter to access(2)."""

libc = ctypes.CDLL(None, use_errno=True)


class Unsure(Exception):
    """We could not look; says why in a sentence."""

    def __init__(self, number: int, detail: str) -> None:
        super().__init__(detail)
        self.number = number
        self.detail = detail


class Device:
    """A device node asked for."""

    def __init__(self, word: str) -> None:
        self.path, self.kind, self.major, self.minor = word, "c", -1, -1
        self.access, self.errno, self.detail = "unknown", 0, ""
        parts = word.split(":")
        if len(parts) == 3 and parts[0] in ("b", "c") and parts[1].isdecimal() and parts[2].isdecimal():
            self.kind, self.major, self.minor = parts[0], int(parts[1]), int(parts[2])
            return
        try:
            found = os.stat(word)  # no driver is entered
        except (OSError, ValueError) as exc:
            self.unsure(getattr(exc, "errno", errno.EINVAL), f"{word} is not on this host: {said(exc)}")
            return
        if stat.S_ISCHR(found.st_mode) or stat.S_ISBLK(found.st_mode):
            self.kind = "c" if stat.S_ISCHR(found.st_mode) else "b"
            self.major, self.minor = os.major(found.st_rdev), os.minor(found.st_rdev)
        else:
            self.unsure(errno.ENODEV, f"{word} is no device node on this host.")

    def unsure(self, number: int, detail: str) -> None:
        self.access, self.errno, self.detail = "unknown", number, detail

    def settle(self, access: str, number: int = 0, detail: str = "") -> None:
        self.access, self.errno, self.detail = access, number, detail


def said(exc: Exception) -> str:
    return f"{os.strerror(exc.errno)}." if isinstance(exc, OSError) and exc.errno else f"{exc}."


def read(path: str) -> str:
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read()


# --- the kernel's tables


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


def listed(text: str, kind: str, major: int, minor: int) -> bool:
    """Whether a v1 devices.list lets a node be opened for reading and writing; ValueError where it is none.

    One line must grant both (match_exception in security/device_cgroup.c): "c *:* m" is no access.
    """
    found = False
    for line in text.splitlines():
        what, numbers, rights = line.split()
        line_major, line_minor = numbers.split(":")
        if what not in ("a", "b", "c") or not rights or set(rights) - set("rwm"):
            raise ValueError(line)
        fits = all(asked == "*" or int(asked) == number
                   for asked, number in ((line_major, major), (line_minor, minor)))
        found |= fits and what in ("a", kind) and {"r", "w"} <= set(rights)
    return found


# --- cgroups


class Cgroups:
    """Where a process sits: its path in the v2 hierarchy, and in v1's with the devices controller; None for none."""

    def __init__(self, pid: int | str) -> None:
        self.v2: str | None = None
        self.v1: str | None = None
        for line in read(f"/proc/{pid}/cgroup").splitlines():
            number, controllers, path = line.split(":", 2)
            if number == "0":
                self.v2 = path
            elif "devices" in controllers.split(","):
                self.v1 = path

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cgroups) and (self.v1, self.v2) == (other.v1, other.v2)

    __hash__ = None  # type: ignore[assignment]

    @property
    def version(self) -> str:
        return "v2" if self.v1 is None else "v1" if self.v2 is None else "hybrid"


class Mounts:
    """Where this host shows the v2 hierarchy and v1's devices: (mount point, which cgroup it is the root of)."""

    def __init__(self) -> None:
        self.v2: tuple[str, str] | None = None
        self.v1: tuple[str, str] | None = None
        for line in read("/proc/self/mountinfo").splitlines():
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
            raise Unsure(errno.ENOENT, f"No mount shows the cgroup {path}.")
        point, root = mount[0], mount[1].rstrip("/")
        if ".." in path.split("/") or not (path + "/").startswith(root + "/"):
            raise Unsure(errno.ENOENT, f"Its cgroup {path} lies outside of what is seen at {point}.")
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
        try:
            if not folder.startswith("/sys"):
                for left in os.listdir(path):
                    os.unlink(f"{path}/{left}")
            os.rmdir(path)
        except OSError:
            pass  # another probe was faster


class Scratch:
    """A cgroup of our own with only this program in it, made at first need."""

    def __init__(self, mounts: Mounts) -> None:
        self.path, self.name = "", f"{NAME}{os.getpid()}-{started('self')}"
        self.own = Cgroups("self")
        self._mounts, self._fd = mounts, -1
        self._folder = ""
        self._nodes: dict[tuple[str, int, int], str] = {}
        self._inherited: list[int] = []

    def ask(self, device_programs: list[int], devices: list[Device], is_same_v1: bool) -> None:
        """Settle the devices, as the kernel would for a process under all of these programs."""
        self._enter()
        paths = [self._node(device) for device in devices]
        before = [access(path) for path in paths]
        attached: list[int] = []
        try:
            for number in device_programs:
                if number not in self._inherited:
                    attached.append(self._attach(number))
            after = [access(path) for path in paths]
        finally:
            for fd in attached:
                bpf(BPF_PROG_DETACH, attr_of(self._fd, fd, BPF_CGROUP_DEVICE))
                os.close(fd)
        # Were our own cgroup restricted by what the process is not under, a refusal would not be its own.
        is_ours = is_same_v1 and set(self._inherited) <= set(device_programs)
        for device, first, then in zip(devices, before, after):
            if then == 0:
                device.settle("allowed")
            elif first == 0 or (first == errno.EPERM and is_ours):
                device.settle("denied", then, "The device programs of its cgroup deny it.")
            else:
                device.unsure(then, f"gpu-gate itself may not open it: {os.strerror(then)}.")

    def leave(self) -> None:
        """Go back to where we were, and remove what was made."""
        if self._folder:
            os.rmdir(self._folder)
            self._folder = ""
        if self.path:
            path, self.path = self.path, ""
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
                self._inherited = programs(self._fd)
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

    def _node(self, device: Device) -> str:
        """A path of a node with the device's numbers that nobody else can reach."""
        key = (device.kind, device.major, device.minor)
        if key not in self._nodes:
            self._nodes[key] = self._make_node(device)
        return self._nodes[key]

    def _make_node(self, device: Device) -> str:
        problem: OSError | None = None
        mode = 0o600 | (stat.S_IFCHR if device.kind == "c" else stat.S_IFBLK)
        for top in (self._folder,) if self._folder else FOLDERS:
            try:
                if not self._folder:
                    sweep(top)
                    os.mkdir(f"{top}/{self.name}", 0o700)
                    self._folder = f"{top}/{self.name}"
                os.mknod(f"{self._folder}/node", mode, os.makedev(device.major, device.minor))
                try:
                    fd = os.open(f"{self._folder}/node", os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
                finally:
                    os.unlink(f"{self._folder}/node")
                return f"/proc/self/fd/{fd}"
            except OSError as exc:
                problem = exc
        if device.path.startswith("/"):
            return device.path  # the host's own node has the same numbers
        raise Unsure(problem.errno or 0 if problem else 0, "No device node of our own could be made: "
                     f"{said(problem) if problem else ''}")


# --- the question


def look(pid: int, devices: list[Device], mounts: Mounts, scratch: Scratch, out: dict[str, object]) -> None:
    """Settle the devices for one process."""
    since = started(pid)
    if not since:
        raise Unsure(errno.ESRCH, f"Process {pid} is gone.")
    cgroups = Cgroups(pid)
    out.update(cgroup=cgroups.v1 if cgroups.v2 is None else cgroups.v2, version=cgroups.version)
    if cgroups.v1 is None and cgroups.v2 is None:
        raise Unsure(errno.ENOENT, f"Process {pid} is in no cgroup that can be seen.")
    ways, rest = [], [device for device in devices if not device.detail]
    if cgroups.v1 is not None and (mounts.v1 or cgroups.v1 != scratch.own.v1):
        ways.append("devices.list")
        rest = by_list(mounts.folder(mounts.v1, cgroups.v1), rest)
    is_under_v2 = cgroups.v2 is not None and not (mounts.v2 is None and cgroups.v2 == "/")
    if rest and is_under_v2:
        ways.append(by_programs(cgroups, rest, mounts, scratch))
        out["place"] = os.path.dirname(scratch.path)
    out["way"] = "+".join(ways)
    if started(pid) != since or Cgroups(pid) != cgroups:
        raise Unsure(errno.ESRCH, f"Process {pid} ended or moved to another cgroup while it was looked at.")


def by_list(folder: str, devices: list[Device]) -> list[Device]:
    """Settle by v1's devices.list, and return those that it allows. Levels above are in it: denials propagate."""
    try:
        text = read(f"{folder}/devices.list")
        for device in devices:
            if listed(text, device.kind, device.major, device.minor):
                device.settle("allowed")
            else:
                device.settle("denied", errno.EPERM, "devices.list of its cgroup does not grant rw.")
    except OSError as exc:
        raise Unsure(exc.errno or 0, f"devices.list of its cgroup cannot be read: {said(exc)}") from exc
    except ValueError as exc:
        raise Unsure(errno.EPROTO, f"devices.list of its cgroup has a line that is none: {exc}.") from exc
    return [device for device in devices if device.access == "allowed"]


def by_programs(cgroups: Cgroups, devices: list[Device], mounts: Mounts, scratch: Scratch) -> str:
    """Settle by the device programs in force. Returns the way: no-program or scratch."""
    path = mounts.folder(mounts.v2, cgroups.v2 or "/")
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as exc:
        raise Unsure(exc.errno or 0, f"Its cgroup cannot be looked at: {said(exc)}") from exc
    try:
        for _ in range(3):
            ids = programs(fd)
            if not ids and (cgroups.v1 is None or mounts.v1):
                for device in devices:
                    device.settle("allowed")
                return "no-program"
            scratch.ask(ids, devices, cgroups.v1 == scratch.own.v1)
            if programs(fd) == ids:
                return "scratch"
    except OSError as exc:
        raise Unsure(exc.errno or 0, f"The device programs of its cgroup cannot be read: {said(exc)}") from exc
    finally:
        os.close(fd)
    raise Unsure(errno.EAGAIN, "Its device programs were replaced again and again while they were looked at.")


def answer(pid: int, devices: list[Device], mounts: Mounts, scratch: Scratch) -> dict[str, object]:
    out: dict[str, object] = {"v": 1, "pid": pid, "cgroup": "", "version": "", "way": "", "place": ""}
    try:
        if os.geteuid() != 0:
            raise Unsure(errno.EPERM, "Only root can look at the device access of others.")
        look(pid, devices, mounts, scratch, out)
    except Unsure as unsure:
        number, detail = unsure.number, unsure.detail
    except OSError as exc:
        number, detail = exc.errno or 0, f"It could not be looked at: {said(exc)}"
    except ValueError as exc:
        number, detail = errno.EPROTO, f"What /proc says of it is not understood: {exc}."
    else:
        number, detail = 0, ""
    for device in devices if detail else ():
        device.unsure(number, detail)
    keys = ("path", "kind", "major", "minor", "access", "errno", "detail")
    return {**out, "answers": [{key: getattr(device, key) for key in keys} for device in devices]}


def questions(words: list[str]) -> list[tuple[int, list[str]]]:
    found: list[tuple[int, list[str]]] = []
    rest = iter(words)
    for word in rest:
        if word == "--pid":
            number = next(rest, "")
            if not number.isdecimal() or int(number) < 1:
                raise ValueError("--pid wants a number")
            found.append((int(number), []))
        elif not found:
            raise ValueError("--pid comes first")
        else:
            found[-1][1].append(word)
    if not found or not all(devices for _, devices in found):
        raise ValueError("each --pid wants one device node at least")
    return found


def main(argv: list[str]) -> int:
    try:
        asked = questions(argv)
    except ValueError as exc:
        print(f"access_probe: {exc}. Usage: access_probe.py --pid PID DEVICE...", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by way of finally
    mounts = Mounts()
    scratch = Scratch(mounts)
    try:
        for pid, words in asked:
            line = json.dumps(answer(pid, [Device(word) for word in words], mounts, scratch))
            print(line, flush=True)
    finally:
        scratch.leave()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
