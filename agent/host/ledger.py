"""The ledger and the evidence folder: written, fsynced, before anything is done; bounded in number
and size."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
from dataclasses import asdict
from pathlib import Path

from ..core.common.paths import STATE
from ..core.plugin.ledger import DID_NOT_TAKE
from ..model.errors import ActionFailed, BundleError
from ..model.runtime import LedgerEntry
from ..transport.atomic_write import write_whole
from .tape import Tape

LEDGER_LINES = 500
LEDGER_BYTES = 1 << 20
"""No more of it is read by a look, and twice 500 lines are half of it: what is larger is not
ours."""
EVIDENCE_KEPT = 20
EVIDENCE_BYTES = 200 << 20
OURS = re.compile(r"\d+-\d+|\.\d+-\d+\.\d+")
"""Seconds and the action's number; one that is being written, or was when its agent was killed, has
a dot before them and a pid after them (host/evidence/bundle.py)."""
FREE_BYTES = 32 << 20
"""So much must be free before a bundle is written: evidence must not fill somebody's disk."""


def append(root: Path, entry: LedgerEntry) -> None:
    """One line, on disk when this returns; ActionFailed where that cannot be had: then nothing may
    be done."""
    path = _state(root) / "ledger.jsonl"
    line = json.dumps(asdict(entry)).encode() + b"\n"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _refuse_foreign(path)
        _trim(path)
        fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _cut_torn_line(fd)
            if os.write(fd, line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as exc:
        raise ActionFailed(
            f"the ledger {path} cannot be written ({exc.strerror}), so nothing is done: "
            f"df {path.parent}"
        ) from exc


def _refuse_foreign(path: Path) -> None:
    """Its lines are read whole: a device or a fifo in its place, or a file of gigabytes, would take
    the memory of the machine, or never end."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return
    if (
        not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode))
        or found.st_size > LEDGER_BYTES
    ):
        raise ActionFailed(
            f"the ledger {path} is no plain file, or larger than {LEDGER_BYTES >> 20} MiB, so "
            "nothing "
            f"is done: ls -lL {path}, and mv it away"
        )


def _cut_torn_line(fd: int) -> None:
    """A line that a power failure or a full disk cut off was never acted on. It goes: ended by a
    newline it would be a line of junk, and a ledger with one cannot be read."""
    size = os.fstat(fd).st_size
    stored = os.pread(fd, size, 0)
    os.ftruncate(fd, stored.rfind(b"\n") + 1)


def _trim(path: Path) -> None:
    """The newest lines only; the whole file or the old one, whenever the power goes."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return
    if len(lines) > 2 * LEDGER_LINES:
        write_whole(str(path), b"".join(lines[-LEDGER_LINES:]), 0o600)


def keep_evidence(root: Path, tape: Tape, name: str, beside: dict[str, bytes]) -> Path:
    """Write the tape of this look as a bundle; ActionFailed, and nothing left, where it cannot be
    kept whole."""
    from .evidence import (
        bundle,  # with tarfile and gzip, which a node that needs no repair never uses
    )

    folder = _state(root) / "evidence"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _forget_oldest(folder)
        if shutil.disk_usage(folder).free < FREE_BYTES:
            raise ActionFailed(
                f"less than {FREE_BYTES >> 20} MiB are free for evidence, so nothing is done: "
                f"df {folder}"
            )
        bundle.write(tape, folder / name, beside)
    except OSError as exc:
        raise ActionFailed(
            f"evidence cannot be kept in {folder} ({exc.strerror}), so nothing is done: "
            f"df {folder.parent}"
        ) from exc
    except BundleError as exc:
        raise ActionFailed(f"evidence cannot be kept, so nothing is done: {exc.sentence}") from exc
    return folder / name


def note_outcome(root: Path, evidence: str, outcome: str) -> None:
    """Beside the evidence: what came of it. The bundle may have been cleared away meanwhile."""
    folder = root / evidence.lstrip("/")
    if evidence and folder.is_dir():
        try:
            (folder / "outcome").write_text(outcome + "\n")
        except OSError as exc:
            raise ActionFailed(
                f"{folder}/outcome could not be written ({exc.strerror}): df {folder}"
            ) from exc


def _forget_oldest(folder: Path) -> None:
    """The oldest go first; before them those of repairs that changed nothing, which may be many.
    What somebody else put there is neither removed nor counted: a case under work, a link to
    another disk."""
    bundles = sorted(
        (p for p in folder.iterdir() if OURS.fullmatch(p.name) and _is_folder(p)),
        reverse=True,
        key=lambda p: (not _did_not_take(p), p.stat().st_mtime),
    )
    total = 0
    for number, path in enumerate(bundles, 1):
        total += sum(
            f.stat().st_size for f in path.rglob("*") if f.is_file() and not f.is_symlink()
        )
        if number >= EVIDENCE_KEPT or total > EVIDENCE_BYTES:
            shutil.rmtree(path, ignore_errors=True)


def _is_folder(path: Path) -> bool:
    return stat.S_ISDIR(path.lstat().st_mode)


def _did_not_take(folder: Path) -> bool:
    try:
        return (folder / "outcome").read_text().startswith(DID_NOT_TAKE)
    except (OSError, UnicodeDecodeError):
        return False


def _state(root: Path) -> Path:
    return root / STATE.lstrip("/")
