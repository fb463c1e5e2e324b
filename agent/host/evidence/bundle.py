"""An evidence bundle: the tape of one snapshot as plain files, in a folder or in one .tar, .tar.gz
or .tar.zst.

    manifest.json   the questions in order, and their answers
    files/…         the contents of files, at their own paths, for ls and cat
    tails/…         the ends of logs
    documents/…     CDI specs as JSON
    journal.txt     in the evidence of a repair: the journal before it
    SHA256SUMS      of all of them: a bundle with a changed or missing file is refused

A bundle is renamed into place when it is complete. Only root can read it, it contains no secrets
(host/evidence/redact.py), and its size is limited. docs/evidence.md.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import time
from pathlib import Path
from typing import Any, Protocol

from ... import __version__
from ...model.errors import BundleError
from ..codec import decode, encode
from ..tape import Tape
from . import archive, redact

FORMAT = 2
"""Format 1 had no sums; it can still be read."""
LIMIT_BYTES = 64 << 20
KEPT_BYTES = 48 << 20
"""When writing: a file beyond this is left out, and the manifest lists it."""
MANIFEST_BYTES = 16 << 20
ANSWER_BYTES = 4 << 20
ANSWERS = 20_000
TOO_LARGE = {"is": "Refusal", "why": "not-recorded", "detail": "too large"}
SUMS = "SHA256SUMS"


def write(tape: Tape, target: Path, beside: dict[str, bytes] | None = None) -> None:
    """Write the bundle, with files `beside` the tape. Raises BundleError, and leaves nothing
    behind."""
    try:
        is_there = os.path.lexists(target)
    except ValueError as exc:
        raise BundleError(f"{str(target)[:80]!r} is not a valid file name") from exc
    if is_there:
        raise BundleError(f"{target} exists: choose another name")
    files = _files(tape, beside or {})
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if archive.is_named(target):
            folder = target.name.partition(".tar")[0].removesuffix(".tgz")
            packed = archive.pack(files, folder, time.time())
            _put(
                temporary,
                archive.compress(packed, target, temporary.with_name(temporary.name + ".tar")),
            )
        else:
            temporary.mkdir(mode=0o700)
            for name, data in files.items():
                _put(_below(temporary, name), data)
        _sync(temporary)
        temporary.rename(target)
        _sync_one(target.parent)
    except (OSError, ValueError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else exc
        raise BundleError(
            f"could not write {str(target)[:200]} ({why}): df {target.parent}"
        ) from exc
    finally:
        _remove(temporary)


def _sync(bundle: Path) -> None:
    """Flush files and folders to disk before the rename: a bundle that a power failure cut off
    would not be evidence."""
    for path in (*(bundle.rglob("*") if bundle.is_dir() else ()), bundle):
        _sync_one(path)


def _sync_one(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _files(tape: Tape, beside: dict[str, bytes]) -> dict[str, bytes]:
    """Every file of the bundle, by name."""
    files: dict[str, bytes] = {}
    left_out: list[str] = []
    answers = [_stored(key, answer, files, left_out) for key, answer in tape.answers.items()]
    manifest = {"format": FORMAT, "gpu_gate": __version__, "left_out": left_out, "answers": answers}
    for name, data in beside.items():
        files[name] = redact.data(data)
    files["manifest.json"] = json.dumps(manifest, indent=1).encode() + b"\n"
    sums = "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in files.items())
    return {**files, SUMS: sums.encode()}


def _stored(key: str, answer: Any, files: dict[str, bytes], left_out: list[str]) -> dict[str, Any]:
    """One answer for the manifest; the contents of a file go into a file of their own."""
    question = json.loads(key)
    if question[0] not in ("file", "tail", "document") or answer.get("is") != "Seen":
        plain = redact.answer(answer)
        if len(json.dumps(plain)) > ANSWER_BYTES:
            left_out.append(key[:200])
            plain = TOO_LARGE
        return {"question": question, "answer": plain}
    data = decode(bytes, answer["value"])
    data = redact.document(data) if question[0] == "document" else redact.data(data)
    name = f"{question[0]}s/{question[1].lstrip('/')}"
    if sum(map(len, files.values())) + len(data) > KEPT_BYTES:
        left_out.append(name)
        return {"question": question, "answer": TOO_LARGE}
    if not _is_safe(name):
        return {"question": question, "answer": {**answer, "value": encode(data)}}
    files[name] = data
    return {"question": question, "answer": {**answer, "value": {"file": name}}}


def _is_safe(name: str) -> bool:
    return (
        all(part not in ("", ".", "..") for part in name.split("/"))
        and "\0" not in name
        and "\n" not in name
    )


def _put(path: Path, data: bytes) -> None:
    with open(
        path, "xb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o600)
    ) as file:
        file.write(data)


def _below(folder: Path, name: str) -> Path:
    """The path of `name`, with its parent folders created for their owner only."""
    *parts, last = name.split("/")
    for part in parts:
        folder = folder / part
        folder.mkdir(mode=0o700, exist_ok=True)
    return folder / last


def _remove(temporary: Path) -> None:
    try:
        if temporary.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            temporary.unlink(missing_ok=True)
    except OSError:
        return  # a name that is too long never existed


class _Files(Protocol):
    """The files of a bundle, by name."""

    def get(self, name: str, limit: int) -> bytes: ...


def read(path: Path) -> Tape:
    """The tape in a bundle. Raises BundleError if it is damaged, hostile or not a bundle."""
    try:
        files: _Files = _Folder(path) if path.is_dir() else _Archive(path)
    except (OSError, ValueError) as exc:
        raise BundleError(f"could not read {str(path)[:200]!r}: {exc}") from exc
    manifest = _json(path, files.get("manifest.json", MANIFEST_BYTES))
    _check_version(path, manifest)
    sums = _sums(files) if manifest["format"] > 1 or _has(files, SUMS) else None
    if sums is not None:
        _check("manifest.json", files.get("manifest.json", MANIFEST_BYTES), sums)
    tape, left = Tape(), LIMIT_BYTES
    for item in manifest["answers"]:
        question, answer = _item(path, item)
        value = answer.get("value") if isinstance(answer, dict) else None
        if isinstance(value, dict) and isinstance(value.get("file"), str):
            data = files.get(value["file"], left)
            left -= len(data)
            if sums is not None:
                _check(value["file"], data, sums)
            answer = {**answer, "value": data}
        tape.answers[json.dumps(question)] = answer
    return tape


def _check_version(path: Path, manifest: Any) -> None:
    if not isinstance(manifest, dict) or not isinstance(manifest.get("answers"), list):
        raise BundleError(
            f"{path} is not an evidence bundle: its manifest.json has no list of answers"
        )
    written = manifest.get("format")
    if type(written) is not int or not 1 <= written <= FORMAT:
        raise BundleError(
            f"{path} has format {str(written)[:20]}, written by gpu-gate "
            f"{str(manifest.get('gpu_gate'))[:20]}; version {__version__} reads formats 1 to "
            f"{FORMAT}: read it with that version or a newer one"
        )
    if len(manifest["answers"]) > ANSWERS:
        raise BundleError(f"{path} has more than {ANSWERS} answers: it is not an evidence bundle")


def _item(path: Path, item: Any) -> tuple[list[Any], Any]:
    if not (isinstance(item, dict) and isinstance(item.get("question"), list) and "answer" in item):
        raise BundleError(f"{path}/manifest.json: an answer without its question")
    question = item["question"]
    if not question or not all(isinstance(word, (str, int)) for word in question):
        raise BundleError(f"{path}/manifest.json: a malformed question")
    return question, item["answer"]


def _sums(files: _Files) -> dict[str, str]:
    lines = files.get(SUMS, MANIFEST_BYTES).decode("utf-8", "replace").splitlines()
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


def _check(name: str, data: bytes, sums: dict[str, str]) -> None:
    if sums.get(name) != hashlib.sha256(data).hexdigest():
        raise BundleError(
            f"{name[:200]!r} does not match {SUMS}: the bundle was truncated or changed"
        )


def _has(files: _Files, name: str) -> bool:
    try:
        files.get(name, MANIFEST_BYTES)
    except BundleError:
        return False
    return True


class _Archive:
    """A bundle in an archive, whose top folder may have any name."""

    def __init__(self, path: Path) -> None:
        self._held = archive.unpack(path)
        tops = [
            name.removesuffix("manifest.json")
            for name in self._held
            if name == "manifest.json" or name.endswith("/manifest.json")
        ]
        self._top = min(tops, key=len, default="")

    def get(self, name: str, limit: int) -> bytes:
        found = self._held.get(self._top + name)
        if found is None:
            raise BundleError(
                f"{name[:200]!r} is not in the bundle: is it a complete evidence bundle?"
            )
        if len(found) > limit:
            raise BundleError(
                f"with {name[:200]!r} the bundle is larger than {LIMIT_BYTES >> 20} MiB"
            )
        return found


class _Folder:
    """A bundle as a folder. It follows no link, and no name that points outside."""

    def __init__(self, path: Path) -> None:
        self._top = path.resolve()

    def get(self, name: str, limit: int) -> bytes:
        path = self._top / name
        try:
            if not _is_safe(name) or path.resolve() != path:
                raise BundleError(f"{name[:200]!r} points outside the bundle, or is a link")
            with open(_opened(self._top, name), "rb") as file:
                found = os.fstat(file.fileno())
                if not stat.S_ISREG(found.st_mode) or found.st_size > limit:
                    raise BundleError(
                        f"{name[:200]!r} is not a regular file, or with it the bundle is larger "
                        f"than {LIMIT_BYTES >> 20} MiB"
                    )
                return file.read(limit + 1)[:limit]
        except (OSError, ValueError, RuntimeError) as exc:
            raise BundleError(
                f"could not read {name[:200]!r} ({exc}): is it an evidence bundle?"
            ) from exc


def _opened(top: Path, name: str) -> int:
    """Open a file folder by folder: the owner of the bundle could replace a folder by a link while
    root reads it. Raises OSError."""
    at = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    *folders, last = name.split("/")
    for part, flags in (*((folder, os.O_DIRECTORY) for folder in folders), (last, os.O_NONBLOCK)):
        try:
            below = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | flags, dir_fd=at)
        finally:
            os.close(at)
        at = below
    return at


def _json(path: Path, data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise BundleError(f"{path}: its manifest.json is malformed: {str(exc)[:120]}") from exc
