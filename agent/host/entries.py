"""One name in a folder, as lstat(2) sees it."""

from __future__ import annotations

import os
import stat

from ..model.snapshot import Entry

_KINDS = {
    stat.S_IFCHR: "char",
    stat.S_IFBLK: "block",
    stat.S_IFDIR: "dir",
    stat.S_IFREG: "file",
    stat.S_IFLNK: "link",
    stat.S_IFSOCK: "socket",
    stat.S_IFIFO: "fifo",
}


def entry_of(name: os.DirEntry[str]) -> Entry | None:
    try:
        found = name.stat(follow_symlinks=False)
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "other")
        target = os.readlink(name.path) if kind == "link" else ""
    except OSError:  # gone between the two calls
        return None
    return Entry(
        name.name,
        kind,
        os.major(found.st_rdev),
        os.minor(found.st_rdev),
        stat.S_IMODE(found.st_mode),
        found.st_mtime,
        target,
    )
