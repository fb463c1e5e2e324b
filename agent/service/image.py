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
"""The persistent ones; the first has priority (systemd.unit(5))."""
STATUS = "var/lib/dpkg/status"
STATUS_BYTES = 32 << 20
FILE_BYTES = 1 << 20
MOST_LINKS = 40
"""The kernel's limit (path_resolution(7))."""


class Image:
    """Paths have no leading slash. A symlink to /x leads to the image's /x, not the machine's."""

    def __init__(self, root: str) -> None:
        self.root = root

    def is_running_machine(self) -> bool:
        """True if systemd booted this machine and this folder is PID 1's /.

        /run/systemd/system alone proves nothing: a build may see its host's /run.
        """
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
        """Read at most `most` bytes; None if it is missing or not a regular file."""
        real = self._inside(path)
        if not os.path.isfile(real):
            return None
        with open(real, "rb") as file:
            return file.read(most)

    def leads_to(self, path: str) -> str:
        """The path in the image after every symlink."""
        return self._inside(path).removeprefix(self.root.rstrip("/"))

    def glob(self, *patterns: str) -> list[str]:
        """Matching paths in the image, with a leading slash, sorted."""
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
        """The path of the unit or `unit.d/drop-in` in force, even if it is a link to /dev/null; ""
        if there is none."""
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
        """True if a target's folder has a symlink to it."""
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
        """The path on this machine; symlinks are resolved within the image."""
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
