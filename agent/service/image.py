"""An image's tree: files below a folder, as a machine that boots from it will see them."""

from __future__ import annotations

import glob
import os
import re

UNIT_FOLDERS = (
    "etc/systemd/system",
    "usr/local/lib/systemd/system",
    "usr/lib/systemd/system",
    "lib/systemd/system",
)
"""Of them that outlive a boot, the first wins (systemd.unit(5))."""
STATUS = "var/lib/dpkg/status"
STATUS_BYTES = 32 << 20
FILE_BYTES = 1 << 20
MOST_LINKS = 40
"""As the kernel has it (path_resolution(7))."""


class Image:
    """Paths are given without the leading slash; a link to /x leads to the image's /x, not to this
    machine's."""

    def __init__(self, root: str) -> None:
        self.root = root

    def is_running_machine(self) -> bool:
        """Booted by systemd, and this folder is what PID 1 calls /: a build may have been given its
        host's /run."""
        try:
            with open("/proc/1/comm", encoding="ascii") as file:
                is_systemd = file.read().strip() in ("systemd", "init")
            return (
                is_systemd
                and os.path.isdir("/run/systemd/system")
                and os.path.samefile("/proc/1/root", self.root)
            )
        except (OSError, ValueError):
            return False

    def exists(self, path: str) -> bool:
        return os.path.exists(self._inside(path))

    def read(self, path: str, most: int = FILE_BYTES) -> bytes | None:
        """At most so many bytes; None where it is absent or no plain file."""
        real = self._inside(path)
        if not os.path.isfile(real):
            return None
        with open(real, "rb") as file:
            return file.read(most)

    def leads_to(self, path: str) -> str:
        """Where it lies in the image once every link is followed."""
        return self._inside(path).removeprefix(self.root.rstrip("/"))

    def glob(self, *patterns: str) -> list[str]:
        """With a leading slash, sorted, as the image has them."""
        found: set[str] = set()
        for pattern in patterns:
            fixed = re.split(r"/[^/]*[*?\[]", pattern)[0]
            real = self._inside(fixed)
            rest = pattern[len(fixed) :]
            found |= {
                f"/{fixed}{path[len(real) :]}" for path in glob.glob(glob.escape(real) + rest)
            }
        return sorted(found)

    def unit_file(self, name: str) -> str:
        """Where a unit, or `unit.d/drop-in`, lies that is in force, be it a link to /dev/null; ""
        where none does."""
        folder, slash, base = name.rpartition("/")
        return next(
            (
                f"{where}/{name}"
                for where in UNIT_FOLDERS
                if os.path.lexists(os.path.join(self._inside(f"{where}{slash}{folder}"), base))
            ),
            "",
        )

    def is_masked(self, unit: str) -> bool:
        path = os.path.join(self._inside("etc/systemd/system"), unit)
        if os.path.islink(path):
            return os.readlink(path) == "/dev/null"
        return os.path.isfile(path) and os.path.getsize(path) == 0

    def is_enabled(self, unit: str) -> bool:
        """By a link in some target's folder."""
        folder = self._inside("etc/systemd/system")
        return any(
            os.path.lexists(path)
            for kind in ("wants", "requires")
            for path in glob.glob(f"{glob.escape(folder)}/*.{kind}/{unit}")
        )

    def package(self, name: str) -> str:
        """The version of an installed Debian package; "" where there is none."""
        text = (self.read(STATUS, STATUS_BYTES) or b"").decode("utf-8", "replace")
        found = re.search(rf"^Package: {re.escape(name)}$(?:\n.+)*", text, re.M)
        if found is None or not re.search(r"^Status: .* installed$", found[0], re.M):
            return ""
        version = re.search(r"^Version: (.*)$", found[0], re.M)
        return version[1] if version else ""

    def _inside(self, path: str) -> str:
        """The path on this machine, every link followed within the image."""
        done, todo, links = self.root, [part for part in path.split("/") if part][::-1], 0
        while todo:
            part = todo.pop()
            if part in (".", ""):
                continue
            if part == "..":
                done = done if done == self.root else os.path.dirname(done)
                continue
            step = os.path.join(done, part)
            links += os.path.islink(step)
            if not os.path.islink(step) or links > MOST_LINKS:
                done = step
                continue
            target = os.readlink(step)
            done = self.root if target.startswith("/") else done
            todo += target.split("/")[::-1]
        return done
