#!/usr/bin/env python3
"""Trees that nodes boot from, cached under .cache/trees and made from this machine's own package
mirrors.

    python3 tree.py bookworm trixie

A tree is a Debian userland by mmdebstrap. Layers lie over it, each a folder with only what changed,
named after a hash of what it was made of: `base` (containerd with its images, looking like bare
metal), then the stand-ins and the .deb under test. A node is an overlay of them, so nothing is ever
copied or built twice.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from nspawn import Node, NodeError

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "standins"))
import install  # noqa: E402

TREES = HERE.parents[1] / ".cache" / "trees"
SUITES = ("bookworm", "trixie")
PACKAGES = """
    systemd systemd-sysv dbus udev kmod libpam-systemd
    python3 python3-dbus-next python3-pyudev python3-sdnotify python3-grpcio python3-protobuf
    python3-prometheus-client python3-yaml python3-pytest python3-pytest-timeout
    containerd runc busybox-static
    iproute2 procps curl less socat strace jq
    python3-kubernetes openssl
""".split()
# sysctl would change this machine's kernel; the others are noise in a node that lives for seconds.
MASKED = """
    systemd-sysctl.service console-getty.service e2scrub_reap.service e2scrub_all.timer
    apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer
""".split()


def digest(*parts: str | Path) -> str:
    """Of texts and files; a folder counts with the names, modes and contents of all files in it."""
    total = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            total.update(part.encode())
            continue
        inside = [p for p in part.rglob("*") if p.is_file() and "__pycache__" not in p.parts]
        for file in sorted(inside) if part.is_dir() else [part]:
            total.update(f"\0{os.path.relpath(file, part)} {file.stat().st_mode:o}\0".encode())
            total.update(file.read_bytes())
    return total.hexdigest()[:12]


def tree(suite: str, more: Sequence[str] = ()) -> Path:
    """The Debian userland of a suite, with `more` packages."""
    packages = [*PACKAGES, *more]
    target = TREES / f"{suite}-{digest(suite, ' '.join(packages))}"
    with once(target) as missing:
        if missing:
            _say(f"Building the {suite} tree, about half a minute")
            _debootstrap(suite, target, packages)
    return target


def base(suite: str, more: Sequence[str] = ()) -> list[Path]:
    """The layers of a bare node, the topmost first, for Node()."""
    parts = [HERE / "host", HERE / "containerd"]
    return layer("base", [tree(suite, more)], _furnish, digest(*parts))


def layer(
    name: str, below: Sequence[Path], build: Callable[[Node], None], made_of: str
) -> list[Path]:
    """One more layer: the changes of `build` to the disk of a node that never boots, cached."""
    target = TREES / f"{name}-{digest(below[0].name, made_of, Path(__file__))}"
    with once(target) as missing:
        if missing:
            with Node(below, nodes=TREES / "building") as node:
                build(node)
                node.run("rm -f /etc/machine-id /etc/hostname")
                (node.folder / "upper").rename(target)
    return [target, *below]


def standins(below: Sequence[Path]) -> list[Path]:
    """The layer with the stand-ins in /opt/gpu-gate-sim, set up by their own installer."""
    return layer("standins", below, install.onto, install.made_of())


def deb(below: Sequence[Path], package: Path) -> list[Path]:
    """The layer with the .deb installed as an image build installs it: enabled, not started."""
    return layer("deb", below, lambda node: install_deb(node, package), digest(package))


def layers(suite: str, package: Path | None = None, sim: bool = True) -> list[Path]:
    """The layers for Node(): a bare node of the suite, with the stand-ins, with a .deb."""
    below = base(suite)
    if sim:
        below = standins(below)
    return deb(below, package) if package else below


def build_deb() -> Path:
    """The .deb of this checkout, as `make deb` builds it."""
    words = [str(HERE.parents[1] / "packaging/deb/build")]
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        raise NodeError(f"packaging/deb/build failed. It said:\n{done.stderr[-3000:]}")
    return Path(done.stdout.splitlines()[-1])


def install_deb(node: Node, package: Path) -> None:
    """dpkg --install, on the disk of a node that is down or on one that is up."""
    node.copy(package, f"/var/cache/{package.name}")
    words = ["dpkg", "--install", f"/var/cache/{package.name}"]
    node.run(words, env={"DEBIAN_FRONTEND": "noninteractive"}, timeout=120)


def _furnish(node: Node) -> None:
    node.copy(HERE / "host", "/")
    node.copy(HERE / "containerd/config.toml", "/etc/containerd/config.toml")
    node.copy(HERE / "containerd/runc-node", "/usr/local/sbin/runc-node")
    node.copy(HERE / "containerd", "/root/containerd")
    # mmdebstrap takes over this machine's name and resolver.
    node.run("rm -f /etc/resolv.conf")
    node.put("/etc/hosts", "127.0.0.1 localhost gpu-node\n::1 localhost\n")
    node.systemctl("enable", "--quiet", "bare-metal.service")
    node.systemctl("mask", "--quiet", *MASKED)
    node.run(["/root/containerd/import", "/root/containerd"])
    node.run("rm -rf /root/containerd")


def _debootstrap(suite: str, target: Path, included: Sequence[str]) -> None:
    building = TREES / f".{target.name}.new"
    shutil.rmtree(building, ignore_errors=True)
    packages = f"--include={','.join(included)}"
    slim = ["--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-exclude=/usr/share/locale/*"]
    sources = _sources(suite, TREES)
    # mmdebstrap mounts /proc and /sys below it: killed, it must not leave them for the rmtree above
    # to walk into.
    alone = ["unshare", "--mount", "--propagation", "private", "--"]
    words = [
        *alone,
        "mmdebstrap",
        "--variant=minbase",
        packages,
        *slim,
        suite,
        str(building),
        str(sources),
    ]
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        shutil.rmtree(building, ignore_errors=True)
        raise NodeError(
            f"mmdebstrap could not build the {suite} tree. Check that this machine's mirror "
            f"has {suite} "
            f"and that .cache has 2 GB free, then try again. It said:\n{done.stderr[-3000:]}"
        )
    building.rename(target)


def _sources(suite: str, folder: Path) -> Path:
    """This machine's own sources with the suite exchanged, so that its mirrors and snapshots are
    used."""
    for name in ("/etc/apt/sources.list.d/debian.sources", "/etc/apt/sources.list"):
        source = Path(name)
        if source.exists() and re.search(r"^(URIs:|deb )", source.read_text(), re.M):
            copy = folder / f".{suite}{source.suffix}"
            copy.write_text(re.sub(r"\b(bookworm|trixie|forky|sid)\b", suite, source.read_text()))
            return copy
    raise NodeError(
        "Nodes are built from this machine's own Debian sources, but "
        "/etc/apt/sources.list.d/debian.sources and /etc/apt/sources.list name none. "
        "Add one, run apt-get update, then try again."
    )


@contextlib.contextmanager
def once(target: Path) -> Iterator[bool]:
    """Holds a lock while `target` is missing, so that parallel runs build it once."""
    if target.exists():
        yield False
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / f".{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield not target.exists()


def _say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def main(suites: Sequence[str]) -> int:
    unknown = [suite for suite in suites if suite not in SUITES]
    if unknown or not suites:
        print(f"Usage: tree.py SUITE…, each one of {', '.join(SUITES)}", file=sys.stderr)
        return 2
    failures: list[Exception] = []

    def build(suite: str) -> None:
        try:
            base(suite)
        except Exception as error:
            failures.append(error)

    workers = [threading.Thread(target=build, args=(suite,)) for suite in suites]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for error in failures:
        print(error, file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
