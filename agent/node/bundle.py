"""An evidence bundle: the tape of one look as a folder of plain files.

    manifest.json   what was asked, in order, and what was answered
    files/…         what files held, at their own paths, to be read with ls and cat
    tails/…         the ends of logs
    documents/…     CDI specs as JSON
    journal.txt     with the evidence of a repair: the journal that led to it

A bundle is written whole or not at all (a folder is renamed into place), fsynced, readable by root only.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from pathlib import Path
from typing import Any

from .. import __version__
from ..model.errors import BundleError
from .codec import decode
from .tape import Tape

FORMAT = 1
LIMIT_BYTES = 64 << 20


def write(tape: Tape, folder: Path, beside: dict[str, bytes] | None = None) -> None:
    """Write the bundle, and files `beside` the tape; BundleError, and nothing left behind, where that fails."""
    try:
        is_there = folder.exists()
    except OSError as exc:
        raise BundleError(f"{str(folder)[:80]} is no name for a folder ({exc.strerror})") from exc
    if is_there:
        raise BundleError(f"{folder} is there already: name a folder that is not")
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        temporary.mkdir(mode=0o700, parents=True)
        answers = [_stored(key, answer, temporary) for key, answer in tape.answers.items()]
        manifest = {"format": FORMAT, "gpu_gate": __version__, "answers": answers}
        (temporary / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
        for name, data in (beside or {}).items():
            (temporary / name).write_bytes(data)
        _sync(temporary)
        temporary.rename(folder)
        _sync_one(folder.parent)
    except OSError as exc:
        shutil.rmtree(temporary, ignore_errors=True)
        raise BundleError(f"{folder} could not be written ({exc.strerror}): df {folder.parent}") from exc


def _sync(folder: Path) -> None:
    """On disk, with its names, before it is renamed into place: what a power failure cuts off is no evidence."""
    for path in (*folder.rglob("*"), folder):
        _sync_one(path)


def _sync_one(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _stored(key: str, answer: Any, folder: Path) -> dict[str, Any]:
    """One answer; a file's contents go into a file of their own."""
    question = json.loads(key)
    if question[0] not in ("file", "tail", "document") or answer.get("is") != "Seen":
        return {"question": question, "answer": answer}
    path = folder / f"{question[0]}s" / question[1].lstrip("/")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_bytes(decode(bytes, answer["value"]))
    return {"question": question, "answer": {**answer, "value": {"file": str(path.relative_to(folder))}}}


def read(folder: Path) -> Tape:
    """The tape in a bundle. BundleError for what is torn, hostile or not a bundle."""
    manifest = _json(folder / "manifest.json")
    if not isinstance(manifest, dict) or not isinstance(manifest.get("answers"), list):
        raise BundleError(f"{folder} is no evidence bundle: its manifest.json has no list of answers")
    if manifest.get("format") != FORMAT:
        raise BundleError(f"{folder} has format {manifest.get('format')!r}; this gpu-gate reads {FORMAT}")
    tape, left = Tape(), LIMIT_BYTES
    for item in manifest["answers"]:
        if not (isinstance(item, dict) and isinstance(item.get("question"), list) and "answer" in item):
            raise BundleError(f"{folder}/manifest.json: an answer without its question")
        answer = item["answer"]
        value = answer.get("value") if isinstance(answer, dict) else None
        if isinstance(value, dict) and isinstance(value.get("file"), str):
            data = _bytes(folder, value["file"], left)
            left -= len(data)
            answer = {**answer, "value": data}
        tape.answers[json.dumps(item["question"])] = answer
    return tape


def _bytes(folder: Path, name: str, left: int) -> bytes:
    """What a file of the bundle holds; a name that leads out of the bundle, also by a link, is refused."""
    path = folder / name
    try:
        if folder.resolve() not in path.resolve().parents:
            raise BundleError(f"{name!r} leads out of the bundle")
        if not path.is_file() or path.stat().st_size > left:
            raise BundleError(f"{name!r} is no plain file, or larger than {LIMIT_BYTES >> 20} MiB in all")
        return path.read_bytes()
    except (OSError, ValueError, RuntimeError) as exc:
        raise BundleError(f"{name!r} could not be read: {exc}") from exc


def _json(path: Path) -> Any:
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > LIMIT_BYTES:
            raise BundleError(f"{path} is no plain file, or larger than {LIMIT_BYTES >> 20} MiB")
        return json.loads(path.read_bytes())
    except OSError as exc:
        raise BundleError(f"{path} could not be read ({exc.strerror}): is that an evidence bundle?") from exc
    except (ValueError, RecursionError) as exc:
        raise BundleError(f"{path} is torn: {exc}") from exc
