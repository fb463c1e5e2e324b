"""What may the processes of containers do with device nodes now? The one program that gpu-gate
execs to ask the kernel.

    access_program.py --pid PID DEVICE... [--pid PID DEVICE...]...    one JSON line for each --pid
    access_program.py --sweep    a JSON line out for each JSON line in, until stdin ends

DEVICE is a node of this host by its path (/dev/nvidiactl), or c:MAJOR:MINOR, or b:MAJOR:MINOR.

    {"v": 1, "pid": 4711, "started": "731", "cgroup": "/kubepods…", "version": "v2", "rules":
    "programs 12,15",
     "way": "scratch", "place": "/sys/fs/cgroup/…",
     "answers": [{"path": "/dev/nvidiactl", "kind": "c", "major": 195, "minor": 255,
                  "access": "allowed", "errno": 0, "detail": ""}]}

How (docs/access.md): on cgroup v2 the programs in force for the process's own cgroup, those of all
levels above it included, are attached to a scratch cgroup of ours in which only this program sits,
and access(2) is asked there on a node of our own making: inode_permission() runs the device check
(kernel, fs/namei.c, security/device_cgroup.c) and no driver is entered. On v1 devices.list is read.
Nothing of the process or its cgroup is touched, so it may be frozen, or out of pids or memory.
"denied" is reported only where the kernel denied; all else is "unknown".

--sweep tries every device of this host, before and after a scope's DeviceAllow= is added to:

    {"pid": 4711, "started": "81723", "devices": ["c:195:0"]}     these only; without "devices": all
    of the host's
    {"v": 1, "pid": 4711, "rules": "programs 7,9", "allowed": {"c:1:3": "rwm", "c:136:*": "rw",
    "c:*:*": "m"},
     "detail": ""}

A device that no entry of `allowed` matches is denied. Where access could not be determined,
`detail` is a sentence and `allowed` is empty.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
import sys

if not __package__:
    # Exec'd by path: the one room used is found beside this one, after all that is Python's own.
    here = os.path.dirname(os.path.abspath(__file__))
    host = os.path.dirname(here)
    package = os.path.dirname(host)
    sys.path.append(os.path.dirname(package))
    __package__ = ".".join(map(os.path.basename, (package, host, here)))

from ...transport.device_cgroups import (
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
from ...transport.scratch_cgroup import DeviceNode, Scratch

TYPE_CHECKING = False  # as typing has it; to import typing would slow every start
if TYPE_CHECKING:
    from ...transport.device_sweep import Sweep

EVERYTHING = "Its devices.list allows everything; denials beside that the kernel does not show."


class Device:
    """A device node asked for."""

    def __init__(self, word: str) -> None:
        self.path, self.kind, self.major, self.minor = word, "c", -1, -1
        self.access, self.errno, self.detail = "unknown", 0, ""
        parts = word.split(":")
        if (
            len(parts) == 3
            and parts[0] in ("b", "c")
            and parts[1].isdecimal()
            and parts[2].isdecimal()
        ):
            self.kind = parts[0]
            if (
                len(parts[1]) > 9
                or len(parts[2]) > 9
                or int(parts[1]) >= 1 << 12
                or int(parts[2]) >= 1 << 20
            ):
                self.unsure(
                    errno.ENODEV,
                    f"{word} is no device number: Linux has 12 bits for the major, 20 for the "
                    "minor.",
                )
                return
            self.major, self.minor = int(parts[1]), int(parts[2])
            return
        try:
            found = os.stat(word)  # no driver is entered
        except (OSError, ValueError) as exc:
            self.unsure(
                getattr(exc, "errno", errno.EINVAL), f"{word} is not on this host: {said(exc)}"
            )
            return
        if stat.S_ISCHR(found.st_mode) or stat.S_ISBLK(found.st_mode):
            self.kind = "c" if stat.S_ISCHR(found.st_mode) else "b"
            self.major, self.minor = os.major(found.st_rdev), os.minor(found.st_rdev)
        else:
            self.unsure(errno.ENODEV, f"{word} is no device node on this host.")

    def settle(self, access: str, number: int = 0, detail: str = "") -> None:
        self.access, self.errno, self.detail = access, number, detail

    def unsure(self, number: int, detail: str) -> None:
        self.settle("unknown", number, detail)

    @property
    def node(self) -> DeviceNode:
        return DeviceNode(
            self.kind, self.major, self.minor, self.path if self.path.startswith("/") else ""
        )


def look(
    pid: int, devices: list[Device], mounts: Mounts, scratch: Scratch, out: dict[str, object]
) -> None:
    """Settle the devices for one process."""
    if os.geteuid() != 0:
        raise AccessUndetermined(errno.EPERM, "Only root can look at the device access of others.")
    since = started(pid)
    if not since:
        raise AccessUndetermined(errno.ESRCH, f"Process {pid} is gone.")
    cgroups = Cgroups.of(pid)
    out["started"] = since
    out["cgroup"] = cgroups.v1 if cgroups.v2 is None else cgroups.v2
    has_list, has_programs = governing(cgroups, mounts, scratch.own)
    out["version"] = "v1" if cgroups.v2 is None else "hybrid" if has_list else "v2"
    ways, rest = [], [device for device in devices if not device.detail]
    text: str | None = None
    ids: list[int] | None = None
    if has_list and cgroups.v1 is not None:
        ways.append("devices.list")
        text, rest = by_list(mounts.folder(mounts.v1, cgroups.v1), rest)
    if has_programs:
        way, ids = by_programs(cgroups, rest, mounts, scratch)
        ways += [way] if rest else []
        out["place"] = os.path.dirname(scratch.path)
    out["rules"] = rules_word(text, ids)
    out["way"] = "+".join(ways)
    if started(pid) != since or Cgroups.of(pid) != cgroups:
        raise AccessUndetermined(
            errno.ESRCH, f"Process {pid} ended or moved to another cgroup while it was looked at."
        )


def listed(text: str, kind: str, major: int, minor: int) -> bool:
    """Whether a v1 devices.list lets a node be opened for reading and writing; ValueError where it
    is none.

    One line must grant both (match_exception in security/device_cgroup.c): "c *:* m" is no access.
    """
    found = False
    for line in text.splitlines():
        what, numbers, rights = line.split()
        line_major, line_minor = numbers.split(":")
        if what not in ("a", "b", "c") or not rights or set(rights) - set("rwm"):
            raise ValueError(line)
        if not (line_major + line_minor).replace("*", "0").isdecimal():
            raise ValueError(line)
        if (
            line_major in ("*", str(major))
            and line_minor in ("*", str(minor))
            and what in ("a", kind)
        ):
            found |= {"r", "w"} <= set(rights)
    return found


def by_list(folder: str, devices: list[Device]) -> tuple[str, list[Device]]:
    """Settle by v1's devices.list; the list, and those that it allows. Levels above are in it:
    denials propagate."""
    try:
        text = read(f"{folder}/devices.list")
        for device in devices:
            if listed(text, device.kind, device.major, device.minor):
                device.settle("allowed", 0, EVERYTHING if text == "a *:* rwm\n" else "")
            else:
                device.settle(
                    "denied", errno.EPERM, "devices.list of its cgroup does not grant rw."
                )
    except OSError as exc:
        raise AccessUndetermined(
            exc.errno or 0, f"devices.list of its cgroup cannot be read: {said(exc)}"
        ) from exc
    except ValueError as exc:
        raise AccessUndetermined(
            errno.EPROTO, f"devices.list of its cgroup has a line that is none: {exc}."
        ) from exc
    return text, [device for device in devices if device.access == "allowed"]


def by_programs(
    cgroups: Cgroups, devices: list[Device], mounts: Mounts, scratch: Scratch
) -> tuple[str, list[int]]:
    """Settle by the device programs in force. Returns the way (no-program or scratch), and their
    ids. Raises AccessUndetermined."""
    path = mounts.folder(mounts.v2, cgroups.v2 or "/")
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as exc:
        raise AccessUndetermined(
            exc.errno or 0, f"Its cgroup cannot be looked at: {said(exc)}"
        ) from exc
    try:
        for _ in range(3):
            ids = programs(fd)
            if not ids and (cgroups.v1 is None or mounts.v1):
                for device in devices:
                    device.settle("allowed")
                return "no-program", ids
            if not devices:
                return "", ids
            if by_scratch(fd, ids, cgroups, devices, scratch):
                return "scratch", ids
    except OSError as exc:
        raise AccessUndetermined(
            exc.errno or 0, f"The device programs of its cgroup cannot be read: {said(exc)}"
        ) from exc
    finally:
        os.close(fd)
    raise AccessUndetermined(
        errno.EAGAIN, "Its device programs were replaced again and again while they were looked at."
    )


def by_scratch(
    fd: int, ids: list[int], cgroups: Cgroups, devices: list[Device], scratch: Scratch
) -> bool:
    """Settle by these programs, attached to the scratch cgroup; False, with nothing settled, where
    others replaced them meanwhile. Raises AccessUndetermined, OSError."""
    nodes = [device.node for device in devices]
    try:
        verdicts = scratch.ask(ids, nodes, cgroups.v1 == scratch.own.v1)
    except AccessUndetermined:
        if programs(fd) == ids:
            raise
        return False
    if programs(fd) != ids:
        return False
    for device, verdict in zip(devices, verdicts, strict=True):
        device.settle(*verdict)
    return True


def answer(pid: int, devices: list[Device], mounts: Mounts, scratch: Scratch) -> dict[str, object]:
    out: dict[str, object] = {
        "v": 1,
        "pid": pid,
        "started": "",
        "cgroup": "",
        "version": "",
        "rules": "",
        "way": "",
        "place": "",
    }
    try:
        look(pid, devices, mounts, scratch, out)
    except AccessUndetermined as unsure:
        give_up(devices, unsure.number, unsure.detail)
    except OSError as exc:
        give_up(devices, exc.errno or 0, f"Process {pid} could not be looked at: {said(exc)}")
    except (ValueError, IndexError) as exc:
        give_up(
            devices, errno.EPROTO, f"What /proc says of process {pid} is not understood: {exc}."
        )
    keys = ("path", "kind", "major", "minor", "access", "errno", "detail")
    return {**out, "answers": [{key: getattr(device, key) for key in keys} for device in devices]}


def give_up(devices: list[Device], number: int, detail: str) -> None:
    for device in devices:
        device.unsure(number, detail)


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


def pattern_of(node: DeviceNode) -> str:
    """As node_of reads it; "*" for every major or minor."""
    from ...transport.device_sweep import ANY

    numbers = ("*" if number == ANY else str(number) for number in (node.major, node.minor))
    return ":".join([node.kind, *numbers])


def node_of(text: str) -> DeviceNode:
    """Raises ValueError if the text is no device number."""
    kind, major, minor = text.split(":")
    if kind not in ("c", "b") or not 0 <= int(major) < 1 << 12 or not 0 <= int(minor) < 1 << 20:
        raise ValueError(f"{text} is no device number")
    return DeviceNode(kind, int(major), int(minor), "")


def swept(line: str, mounts: Mounts, sweep: Sweep, every: list[DeviceNode]) -> dict[str, object]:
    """The answer to one line of --sweep. Fills `every` when it is first needed."""
    from ...transport.device_sweep import allowed, numbers

    out: dict[str, object] = {"v": 1, "pid": 0, "rules": "", "allowed": {}, "detail": ""}
    try:
        asked = json.loads(line)
        out["pid"] = pid = int(asked["pid"])
        if "devices" not in asked and not every:
            every += numbers()
        nodes = [node_of(text) for text in asked["devices"]] if "devices" in asked else every
        out["rules"], found = allowed(pid, asked["started"], nodes, mounts, sweep)
        out["allowed"] = {pattern_of(node): can for node, can in found.items()}
    except AccessUndetermined as unsure:
        out["detail"] = unsure.detail
    except (OSError, ValueError, KeyError, TypeError) as exc:
        out["detail"] = f"It could not be looked at: {said(exc)}"
    return out


def sweep_lines() -> int:
    # Here, and not above: a run with --pid starts without it.
    from ...transport.device_sweep import Sweep

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by way of finally
    mounts = Mounts(read("/proc/self/mountinfo"))
    sweep = Sweep(mounts)
    every: list[DeviceNode] = []
    try:
        for line in sys.stdin:
            print(json.dumps(swept(line, mounts, sweep, every)), flush=True)
    finally:
        sweep.leave()
    return 0


def main(argv: list[str]) -> int:
    if argv == ["--sweep"]:
        return sweep_lines()
    try:
        asked = questions(argv)
    except ValueError as exc:
        print(f"access_probe: {exc}. Usage: access_probe.py --pid PID DEVICE...", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by way of finally
    mounts = Mounts(read("/proc/self/mountinfo"))
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
