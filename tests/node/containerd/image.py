"""Writes a docker archive with the two images of a node: localhost/sim/base:1 and
localhost/sim/pause:1.

    python3 image.py BUSYBOX OUT.tar

One layer for both: busybox and empty folders, over which a pod mounts the node's /usr, /etc and so
on. Made without a registry and without a build tool, and the same bytes each time.
"""

from __future__ import annotations

import hashlib
import io
import json
import sys
import tarfile
from pathlib import Path

FOLDERS = """
    bin dev etc lib lib64 opt opt/gpu-gate-sim proc root run run/simgpu sbin sys tmp usr
    var var/lib var/lib/kubelet
"""
APPLETS = "sh cat ls sleep test stat readlink mknod kill ps grep touch rm mkdir id env true false"
WHEN = "2026-01-01T00:00:00Z"
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# As PID 1 a plain sleep would ignore SIGTERM and hold up each shutdown of the node for 90 s.
PAUSE = "trap 'exit 0' TERM INT; while :; do sleep 86400 & wait $!; done"
COMMANDS = {"base": ["/bin/sh"], "pause": ["/bin/sh", "-c", PAUSE]}


def add(tar: tarfile.TarFile, name: str, data: bytes | None, mode: int, link: str = "") -> None:
    info = tarfile.TarInfo(name)
    info.mode, info.uname, info.gname = mode, "root", "root"
    info.type = tarfile.SYMTYPE if link else tarfile.DIRTYPE if data is None else tarfile.REGTYPE
    info.linkname, info.size = link, len(data or b"")
    tar.addfile(info, io.BytesIO(data) if data else None)


def layer(busybox: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for folder in FOLDERS.split():
            add(tar, folder, None, 0o1777 if folder == "tmp" else 0o755)
        add(tar, "bin/busybox", busybox, 0o755)
        for applet in APPLETS.split():
            add(tar, f"bin/{applet}", None, 0o777, link="busybox")
    return out.getvalue()


def archive(busybox: bytes, target: Path) -> None:
    content = layer(busybox)
    digest = hashlib.sha256(content).hexdigest()
    manifest = []
    with tarfile.open(target, "w") as tar:
        add(tar, f"{digest}/layer.tar", content, 0o644)
        for name, command in COMMANDS.items():
            config = json.dumps(
                {
                    "architecture": "amd64",
                    "os": "linux",
                    "created": WHEN,
                    "config": {"Cmd": command, "Env": [PATH]},
                    "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
                    "history": [{"created": WHEN, "created_by": "image.py"}],
                }
            ).encode()
            file = f"{hashlib.sha256(config).hexdigest()}.json"
            add(tar, file, config, 0o644)
            tags = [f"localhost/sim/{name}:1"]
            manifest.append({"Config": file, "RepoTags": tags, "Layers": [f"{digest}/layer.tar"]})
        add(tar, "manifest.json", json.dumps(manifest).encode(), 0o644)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("Usage: image.py BUSYBOX OUT.tar")
    archive(Path(sys.argv[1]).read_bytes(), Path(sys.argv[2]))
