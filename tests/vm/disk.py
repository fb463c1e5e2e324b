#!/usr/bin/env python3
"""The disk of a whole machine: an ext4 image with a kernel, made of the same layers as a node,
cached in .cache/vm.

A node shares the kernel of the machine that it runs on; this one has Debian's own, with every
controller of cgroup v2, or with cgroup v1.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "node"))
import tree  # noqa: E402
from nspawn import Node, NodeError  # noqa: E402

CACHE = tree.TREES.parent / "vm"
KERNEL = ("linux-image-cloud-amd64", "initramfs-tools", "zstd")
INSTALL = HERE.parents[1] / "packaging/images/install"
SIZE = "3G"
"""Sparse: it takes what is in it, about 0.8 GB."""
KEPT, KEPT_FOR_S = 4, 7 * 86400
"""Images are cached by their inputs, for other checkouts and for switching back: this many, this
long after use."""


class Disk(NamedTuple):
    image: Path
    kernel: Path
    initrd: Path


def disk() -> Disk:
    """The disk with this checkout's .deb on it; built when an input changed, about two minutes the
    first time."""
    package = tree.build_deb()
    node = tree.standins(tree.base("bookworm", KERNEL))
    below = tree.layer("machine", node, _furnish, tree.digest(HERE / "machine"))
    layers = tree.layer(
        "image", below, lambda node: _install(node, package), tree.digest(package, INSTALL)
    )
    folder = CACHE / layers[0].name
    with tree.once(folder) as missing:
        if missing:
            _write(layers, folder)
    os.utime(folder)
    _tidy()
    return Disk(folder / "disk.ext4", folder / "vmlinuz", folder / "initrd.img")


def _furnish(node: Node) -> None:
    """Files that a node lacks, or has only because it has no kernel of its own."""
    node.systemctl("disable", "--quiet", "bare-metal.service")
    node.systemctl("unmask", "--quiet", "systemd-sysctl.service")
    node.copy(HERE / "machine", "/")
    node.run(
        "sed -i 's,/usr/local/sbin/runc-node,/usr/sbin/runc,; /restrict_oom/d' "
        "/etc/containerd/config.toml"
    )
    node.run("update-initramfs -u 2>&1", timeout=300)


def _install(node: Node, package: Path) -> None:
    """By the script that image builds use. What it would check, a driver and a toolkit, only has
    stand-ins here."""
    for file in (INSTALL, package):
        node.copy(file, f"/var/cache/gpu-gate/{file.name}")
    node.run(["/var/cache/gpu-gate/install", "--no-check"], timeout=300)


def _write(layers: Sequence[Path], folder: Path) -> None:
    """One file system of all the layers, and the kernel as a separate file, which QEMU loads
    without a boot loader."""
    new = folder.with_name(f".{folder.name}.new")
    subprocess.run(["rm", "-rf", str(new)], check=True)
    (new / "root").mkdir(parents=True)
    lower, at = ":".join(map(str, layers)), shlex.quote(str(new))
    script = f"""
        mount -t overlay overlay -o {shlex.quote(f"lowerdir={lower}")} {at}/root
        cp -L {at}/root/vmlinuz {at}/root/initrd.img {at}
        mkfs.ext4 -q -m 0 -d {at}/root {at}/disk.ext4 {SIZE}
    """
    words = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", script]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NodeError(
            f"The machine's disk could not be written to {new}. It was said:\n{done.stderr[-3000:]}"
        )
    new.rename(folder)


def _tidy() -> None:
    """Removes the least recently used first."""
    with contextlib.suppress(FileNotFoundError):  # somebody else tidies
        used = sorted(
            ((path.stat().st_mtime, path) for path in CACHE.glob("image-*")), reverse=True
        )
        for number, (at, path) in enumerate(used):
            if number >= KEPT or time.time() - at > KEPT_FOR_S:
                subprocess.run(["rm", "-rf", str(path)], check=True)


if __name__ == "__main__":
    print(disk().image)
