"""Files and folders in memory, read as a Host answers: a value or a refusal."""

from __future__ import annotations

from fnmatch import fnmatchcase

from agent.model.reading import Reading, Refusal, Seen, Why
from agent.model.snapshot import Entry


class Disk:
    """What a simulated node shows under /sys, /proc, /dev, /run and elsewhere."""

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}
        self._folders: dict[str, dict[str, Entry]] = {"/": {}}
        self._refused: dict[str, Refusal] = {}

    def write(self, path: str, data: str | bytes, mtime: float = 0.0) -> None:
        self._files[path] = data.encode() if isinstance(data, str) else data
        self._enter(path, "file", mtime=mtime)

    def folder(self, path: str) -> None:
        if path not in self._folders:
            self._folders[path] = {}
            self._enter(path, "dir")

    def link(self, path: str, target: str) -> None:
        self._enter(path, "link", target=target)

    def node(self, path: str, major: int, minor: int) -> None:
        self._enter(path, "char", major=major, minor=minor)

    def socket(self, path: str) -> None:
        self._enter(path, "socket")

    def remove(self, path: str) -> None:
        """A file, a link, a node, or a folder with all that is in it."""
        for name in list(self._folders.get(path, ())):
            self.remove(f"{path}/{name}")
        self._folders.pop(path, None)
        self._files.pop(path, None)
        parent, name = _split(path)
        self._folders.get(parent, {}).pop(name, None)

    def has(self, path: str) -> bool:
        parent, name = _split(path)
        return name in self._folders.get(parent, ())

    def names(self, path: str) -> list[str]:
        return sorted(self._folders.get(path, ()))

    def entries(self, path: str) -> list[Entry]:
        """What is really there, whatever is refused."""
        return list(self._folders.get(path, {}).values())

    def refuse(self, path: str, refusal: Refusal) -> None:
        """Every question about this path and what is under it is refused."""
        self._refused[path] = refusal

    def allow(self, path: str) -> None:
        self._refused.pop(path, None)

    def read(self, path: str, limit: int, now: float, from_end: bool = False) -> Reading[bytes]:
        if refusal := self._refusal(path):
            return refusal
        if path not in self._files:
            return Refusal(Why.MISSING, f"No such file or directory: {path}")
        data = self._files[path]
        return Seen(data[-limit:] if from_end else data[:limit], now)

    def list(self, path: str, match: str, now: float) -> Reading[tuple[Entry, ...]]:
        if refusal := self._refusal(path):
            return refusal
        if path not in self._folders:
            return Refusal(Why.MISSING, f"No such file or directory: {path}")
        entries = self._folders[path]
        if match == "*":
            found = [entries[name] for name in sorted(entries)]
        else:
            found = [entries[name] for name in sorted(entries) if fnmatchcase(name, match)]
        return Seen(tuple(found), now)

    def _refusal(self, path: str) -> Refusal | None:
        for refused, refusal in self._refused.items():
            if path == refused or path.startswith(f"{refused}/"):
                return refusal
        return None

    def _enter(
        self,
        path: str,
        kind: str,
        *,
        major: int = 0,
        minor: int = 0,
        target: str = "",
        mtime: float = 0.0,
    ) -> None:
        parent, name = _split(path)
        if parent not in self._folders:
            self.folder(parent)
        self._folders[parent][name] = Entry(name, kind, major, minor, target=target, mtime=mtime)


def _split(path: str) -> tuple[str, str]:
    parent, _, name = path.rpartition("/")
    return parent or "/", name
