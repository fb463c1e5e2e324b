"""The ledger and the evidence folder, which are on disk before a repair does anything. Both are
limited in number and size."""

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
from ..core.plugin.ledger import REPAIR_FAILED
from ..model.errors import ActionFailed, BundleError
from ..model.runtime import LedgerEntry
from ..transport.atomic_write import write_whole
from .tape import Tape

LEDGER_LINES = 500
LEDGER_BYTES = 1 << 20
"""A cycle reads no more of it, and twice 500 lines are half of that: gpu-gate wrote no larger
file."""
EVIDENCE_KEPT = 20
EVIDENCE_BYTES = 200 << 20
OURS = re.compile(r"\d+-\d+|\.\d+-\d+\.\d+")
"""Names of bundles: Unix time in seconds and the action's number. A bundle that is being written,
or whose agent was killed meanwhile, has a dot before and a pid after (host/evidence/bundle.py)."""
FREE_BYTES = 32 << 20
"""No bundle is written with less free space: evidence must not fill the disk."""


def append(root: Path, entry: LedgerEntry) -> None:
    """Append one line, which is on disk when this returns. Raises ActionFailed if it cannot be
    written: then the repair must not begin."""
    path = _state(root) / "ledger.jsonl"
    line = json.dumps(asdict(entry)).encode() + b"\n"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _refuse_non_regular(path)
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
            f"could not write the ledger {path} ({exc.strerror}), so no repair was begun: "
            f"df {path.parent}"
        ) from exc


def _refuse_non_regular(path: Path) -> None:
    """The file is read whole: a device or a fifo in its place, or a file of gigabytes, would fill
    the memory, or never end."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return
    if (
        not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode))
        or found.st_size > LEDGER_BYTES
    ):
        raise ActionFailed(
            f"the ledger {path} is not a regular file, or larger than {LEDGER_BYTES >> 20} MiB, so "
            f"no repair was begun: ls -lL {path}, and move it away"
        )


def _cut_torn_line(fd: int) -> None:
    """Drop a last line that a power failure or a full disk cut off: no action followed it, and
    with a malformed line in the middle the ledger could not be read."""
    size = os.fstat(fd).st_size
    stored = os.pread(fd, size, 0)
    os.ftruncate(fd, stored.rfind(b"\n") + 1)


def _trim(path: Path) -> None:
    """Keep the newest lines only. A power failure leaves either the old file or the new one."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return
    if len(lines) > 2 * LEDGER_LINES:
        write_whole(str(path), b"".join(lines[-LEDGER_LINES:]), 0o600)


def keep_evidence(root: Path, tape: Tape, name: str, beside: dict[str, bytes]) -> Path:
    """Write the tape of this snapshot as a bundle, and the files `beside` it. Raises ActionFailed,
    and leaves nothing, if the bundle cannot be written whole."""
    from .evidence import (
        bundle,  # with tarfile and gzip, which a node that needs no repair never uses
    )

    folder = _state(root) / "evidence"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _forget_oldest(folder)
        if shutil.disk_usage(folder).free < FREE_BYTES:
            raise ActionFailed(
                f"less than {FREE_BYTES >> 20} MiB are free for evidence, so no repair was begun: "
                f"df {folder}"
            )
        bundle.write(tape, folder / name, beside)
    except OSError as exc:
        raise ActionFailed(
            f"could not write evidence to {folder} ({exc.strerror}), so no repair was begun: "
            f"df {folder.parent}"
        ) from exc
    except BundleError as exc:
        raise ActionFailed(
            f"could not write evidence, so no repair was begun: {exc.sentence}"
        ) from exc
    return folder / name


def note_outcome(root: Path, evidence: str, outcome: str) -> None:
    """Write the outcome beside the evidence, unless that bundle was removed meanwhile. Raises
    ActionFailed."""
    folder = root / evidence.lstrip("/")
    if evidence and folder.is_dir():
        try:
            (folder / "outcome").write_text(outcome + "\n")
        except OSError as exc:
            raise ActionFailed(
                f"could not write {folder}/outcome ({exc.strerror}): df {folder}"
            ) from exc


def _forget_oldest(folder: Path) -> None:
    """Remove bundles beyond the limits: first those of repairs that changed nothing, of which there
    may be many, then the oldest. Whatever else is in the folder stays, and does not count: an
    administrator's own folder, a link to another disk."""
    bundles = sorted(
        (p for p in folder.iterdir() if OURS.fullmatch(p.name) and _is_folder(p)),
        reverse=True,
        key=lambda p: (not _changed_nothing(p), p.stat().st_mtime),
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


def _changed_nothing(folder: Path) -> bool:
    try:
        return (folder / "outcome").read_text().startswith(REPAIR_FAILED)
    except (OSError, UnicodeDecodeError):
        return False


def _state(root: Path) -> Path:
    return root / STATE.lstrip("/")
