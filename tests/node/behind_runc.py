#!/usr/bin/python3
"""Change a container without its runtime's knowledge; run on a node, as root.

    behind_runc.py created PID BUNDLE     as a hook of runc's: what LEGACY= in the container's
    environment says
    behind_runc.py hook PID RULE...       what the legacy NVIDIA runtime hook does: RULE is
    c:195:*:rw
    behind_runc.py deny PID MAJOR MINOR   one more device program, which denies this node
    behind_runc.py feel PID DEVICE...     a line for each change of access(2) in its cgroup, until
    stdin ends

The hook (libnvidia-container, nvcgo) reads the device programs of the container's own cgroup, puts
its rules in front and attaches them in their place. systemd and runc know nothing of it.
"""

from __future__ import annotations

import ctypes
import json
import os
import stat
import struct
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

# include/uapi/linux/bpf.h: commands, BPF_CGROUP_DEVICE, BPF_PROG_TYPE_CGROUP_DEVICE,
# BPF_F_ALLOW_MULTI.
LOAD, ATTACH, DETACH, BY_ID, INFO, QUERY = 5, 8, 9, 13, 15, 16
DEVICE, TYPE, MULTI = 6, 15, 2
SYSCALL = {"x86_64": 321, "aarch64": 280}[os.uname().machine]
KINDS, RIGHTS = {"b": 1, "c": 2}, {"m": 1, "r": 2, "w": 4}
libc = ctypes.CDLL(None, use_errno=True)


def bpf(command: int, form: str, *words: int) -> tuple[int, bytes]:
    attr = ctypes.create_string_buffer(struct.pack(form, *words), 128)
    done = libc.syscall(ctypes.c_long(SYSCALL), ctypes.c_long(command), attr, ctypes.c_long(128))
    if done < 0:
        raise OSError(ctypes.get_errno(), f"bpf {command}: {os.strerror(ctypes.get_errno())}")
    return int(done), attr.raw


def insn(code: int, dst: int = 0, src: int = 0, off: int = 0, imm: int = 0) -> bytes:
    """struct bpf_insn"""
    return struct.pack("=BBhi", code, dst | src << 4, off, imm)


def answer(value: int) -> bytes:
    return insn(0xB7, 0, imm=value) + insn(0x95)


def matches(kind: str, major: str, minor: str, rights: str, value: int) -> bytes:
    """Return `value` where struct bpf_cgroup_dev_ctx {access_type, major, minor} fits, else go
    on."""
    other = sum(bit for right, bit in RIGHTS.items() if right not in rights)
    tests = [(insn(0x61, 2, 1, 0) + insn(0x57, 2, imm=0xFFFF), KINDS[kind])]
    tests += [
        (insn(0x61, 2, 1, off), int(word)) for off, word in ((4, major), (8, minor)) if word != "*"
    ]
    parts = [(load, insn(0x55, 2, off=0, imm=wanted)) for load, wanted in tests]
    parts.append(
        (
            insn(0x61, 2, 1, 0) + insn(0x77, 2, imm=16) + insn(0x57, 2, imm=other),
            insn(0x55, 2, imm=0),
        )
    )
    out, end = answer(value), answer(value)
    for load, jump in reversed(parts):
        code, dst, _, imm = struct.unpack("=BBhi", jump)
        out = load + struct.pack("=BBhi", code, dst, len(out) // 8, imm) + out
    assert out.endswith(end)
    return out


def load(text: bytes) -> int:
    code, gpl = ctypes.create_string_buffer(text), ctypes.create_string_buffer(b"GPL")
    return bpf(LOAD, "=IIQQ", TYPE, len(text) // 8, ctypes.addressof(code), ctypes.addressof(gpl))[
        0
    ]


def own_programs(cgroup: int) -> list[int]:
    """File descriptors of the programs attached to this very cgroup."""
    ids = (ctypes.c_uint32 * 64)()
    count = struct.unpack_from(
        "=I", bpf(QUERY, "=IIIIQI", cgroup, DEVICE, 0, 0, ctypes.addressof(ids), 64)[1], 24
    )[0]
    return [bpf(BY_ID, "=I", number)[0] for number in ids[:count]]


def text_of(program: int) -> bytes:
    """struct bpf_prog_info: xlated_prog_len at 20, xlated_prog_insns at 32."""
    info = ctypes.create_string_buffer(256)
    bpf(INFO, "=IIQ", program, 256, ctypes.addressof(info))
    size = struct.unpack_from("=I", info, 20)[0]
    text, info = ctypes.create_string_buffer(size), ctypes.create_string_buffer(256)
    struct.pack_into("=I", info, 20, size)
    struct.pack_into("=Q", info, 32, ctypes.addressof(text))
    bpf(INFO, "=IIQ", program, 256, ctypes.addressof(info))
    return text.raw[:size]


def cgroup_of(pid: str) -> str:
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    return "/sys/fs/cgroup" + next(line[3:] for line in lines if line.startswith("0::"))


def hook(pid: str, rules: list[str]) -> None:
    cgroup = os.open(cgroup_of(pid), os.O_RDONLY)
    first = b"".join(matches(*rule.split(":"), value=1) for rule in rules)
    for old in own_programs(cgroup):
        bpf(ATTACH, "=IIII", cgroup, load(first + text_of(old)), DEVICE, MULTI)
        bpf(DETACH, "=III", cgroup, old, DEVICE)
    for kind, major, minor in (rule.split(":")[:3] for rule in rules):
        for path, number in host_nodes(kind):
            if (major, minor) in (
                (str(os.major(number)), str(os.minor(number))),
                (str(os.major(number)), "*"),
            ):
                make(Path(f"/proc/{pid}/root{path}"), kind, number)


def created(pid: str, bundle: str) -> None:
    """LEGACY contains rules in addition to those of the GPUs in NVIDIA_VISIBLE_DEVICES, which
    Allocate set."""
    with open(f"{bundle}/config.json") as file:
        said = dict(word.split("=", 1) for word in json.load(file)["process"]["env"])
    if "LEGACY" in said:
        uvm = next(
            line.split()[0]
            for line in Path("/proc/devices").read_text().splitlines()
            if line.endswith(" nvidia-uvm")
        )
        minors = [
            int(uuid[-12:]) for uuid in said.get("NVIDIA_VISIBLE_DEVICES", "").split(",") if uuid
        ]
        control = ["c:195:255:rw", f"c:{uvm}:0:rw", f"c:{uvm}:1:rw"] if minors else []
        hook(pid, [*control, *(f"c:195:{minor}:rw" for minor in minors), *said["LEGACY"].split()])


def host_nodes(kind: str) -> Iterator[tuple[str, int]]:
    wanted = stat.S_ISCHR if kind == "c" else stat.S_ISBLK
    for folder, _, names in os.walk("/dev"):
        for name in names:
            found = os.lstat(f"{folder}/{name}")
            if wanted(found.st_mode):
                yield f"{folder}/{name}", found.st_rdev


def make(path: Path, kind: str, number: int) -> None:
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        os.mknod(path, 0o666 | (stat.S_IFCHR if kind == "c" else stat.S_IFBLK), number)


def deny(pid: str, major: str, minor: str) -> None:
    text = matches("c", major, minor, "rwm", 0) + answer(1)
    bpf(ATTACH, "=IIII", os.open(cgroup_of(pid), os.O_RDONLY), load(text), DEVICE, MULTI)


def feel(pid: str, devices: list[str]) -> None:
    """Sits in the container's cgroup and tries, a thousand times a second."""
    folder = Path(f"/run/feel-{os.getpid()}")
    folder.mkdir()
    nodes = {}
    for device in devices:
        kind, major, minor = device.split(":")
        path = folder / device
        make(path, kind, os.makedev(int(major), int(minor)))
        nodes[device] = os.open(path, os.O_PATH)
        path.unlink()
    folder.rmdir()
    Path(f"{cgroup_of(pid)}/cgroup.procs").write_text("0")
    known: dict[str, bool] = {}
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    while True:
        for device, fd in nodes.items():
            can = libc.access(f"/proc/self/fd/{fd}".encode(), os.R_OK | os.W_OK) == 0
            if known.get(device) is not can:
                known[device] = can
                print(
                    json.dumps({"at": time.monotonic(), "device": device, "can": can}), flush=True
                )
        time.sleep(0.001)


if __name__ == "__main__":
    verb, of, *rest = sys.argv[1:]
    if verb == "created":
        created(of, *rest)
    elif verb == "hook":
        hook(of, rest)
    elif verb == "deny":
        deny(of, *rest)
    else:
        feel(of, rest)
