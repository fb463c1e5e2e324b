"""A whole machine, emulated: one boot of the disk, until it switches itself off or its time is
over.

    seen = boot(disk, {"etc/simgpu.conf": "plug --gpus 8\\n"}, "systemd.unified_cgroup_hierarchy=0",
    within_s=240)

Without KVM: the processor is emulated (TCG), and the machine's clock counts its instructions
(-icount), a thousand million a second; only while it idles does it go with the host's. So a busy
host makes a boot longer to wait for, and hardly slower in its own eyes: its timeouts are about it.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from disk import CACHE, Disk

MEMORY = "2048"
"""MiB; containerd, a kubelet, agent and plugin together take about 400."""
KERNEL_WORDS = (
    "root=/dev/vda rw console=ttyS0 init=/opt/vm/init mitigations=off fsck.mode=skip audit=0 quiet"
)
PROCESSOR = ["-accel", "tcg,thread=single", "-icount", "shift=0", "-cpu", "Nehalem", "-smp", "1"]


class Boot(NamedTuple):
    results: dict[str, dict[str, Any]]
    "what the program inside reported, by the check's name"
    console: str
    took_s: float
    ended: bool
    "it switched itself off"

    def told(self) -> str:
        """For a test that fails: the end of the console."""
        return (
            f"{'' if self.ended else 'It did not end in time. '}Its console "
            f"said:\n{self.console[-6000:]}"
        )


def boot(
    disk: Disk, files: Mapping[str, str | Path], words: str = "", within_s: float = 300.0
) -> Boot:
    """Boots with these files over its disk and these arguments on its kernel command line. One at a
    time."""
    with _alone(), tempfile.TemporaryDirectory(dir=CACHE) as folder:
        at = Path(folder)
        (at / "files.tar").write_bytes(packed(files))
        channels = ["-serial", f"file:{at}/console", "-serial", f"file:{at}/results"]
        began, ended = time.monotonic(), True
        try:
            subprocess.run(
                argv(
                    disk,
                    at / "files.tar",
                    words,
                    [*channels, "-display", "none", "-monitor", "none"],
                ),
                check=True,
                stdin=subprocess.DEVNULL,
                timeout=within_s,
            )
        except subprocess.TimeoutExpired:
            ended = False
        took_s = time.monotonic() - began
        console = (at / "console").read_text(errors="replace") if (at / "console").exists() else ""
        lines = (
            (at / "results").read_text(errors="replace").splitlines()
            if (at / "results").exists()
            else []
        )
        rows = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
        return Boot({row["check"]: row for row in rows}, console, took_s, ended)


def argv(disk: Disk, files: Path, words: str, more: Sequence[str]) -> list[str]:
    """QEMU's command line. What the machine writes to its disk is thrown away; setpriv: it dies
    with its caller."""
    return [
        "setpriv",
        "--pdeathsig",
        "KILL",
        "nice",
        "-n",
        "5",
        "qemu-system-x86_64",
        "-machine",
        "q35",
        *PROCESSOR,
        "-m",
        MEMORY,
        "-nodefaults",
        "-no-reboot",
        "-snapshot",
        "-kernel",
        str(disk.kernel),
        "-initrd",
        str(disk.initrd),
        "-append",
        f"{KERNEL_WORDS} {words}",
        "-drive",
        f"file={disk.image},format=raw,if=virtio,cache=unsafe",
        "-drive",
        f"file={files},format=raw,if=virtio,cache=unsafe",
        *more,
    ]


def packed(files: Mapping[str, str | Path]) -> bytes:
    """A tar: a text is a file's content, a path a file or folder of this checkout, "-> target" a
    link."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, content in files.items():
            if isinstance(content, Path):
                tar.add(content, name, filter=_roots)
                continue
            info = tarfile.TarInfo(name)
            info.mode = 0o644
            if content.startswith("-> "):
                info.type, info.linkname = tarfile.SYMTYPE, content[3:]
            info.size = 0 if info.linkname else len(content.encode())
            tar.addfile(info, io.BytesIO(content.encode()))
    return out.getvalue()


def _roots(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    info.uid = info.gid = 0
    info.uname = info.gname = "root"
    return None if "__pycache__" in info.name else info


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / ".one").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
