"""Archives of regular files: .tar, .tar.gz, .tar.zst. They are read in memory, within limits;
nothing is written to disk.

This module has a parser of its own, because hostile archives make tarfile of Python 3.10 to 3.13
loop and recurse (CVE-2019-20907, CVE-2025-8194), and because only regular files matter. It reads
POSIX.1-1988 ustar, and the long names of GNU tar ("L") and of pax ("x").
"""

from __future__ import annotations

import asyncio
import gzip
import io
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path

from ...model.errors import BundleError, ErrorKind
from ...transport.process import run_once

LIMIT_BYTES = 64 << 20
MEMBERS = 20_000
NAME_BYTES = 4096
ZSTD_WITHIN_S = 30.0
ENDINGS = (".tar", ".tar.gz", ".tgz", ".tar.zst")
_BLOCK = 512
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


def is_named(path: Path) -> bool:
    """True if the name is that of an archive, not of a folder."""
    return path.name.endswith(ENDINGS)


def pack(files: Mapping[str, bytes], folder: str, at: float) -> bytes:
    """A tar of files below one folder, readable by their owner only. `at` is Unix time."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(f"{folder}/{name}")
            info.size, info.mode, info.mtime = len(data), 0o600, int(at)
            tar.addfile(info, io.BytesIO(data))
    return packed.getvalue()


def compress(packed: bytes, path: Path, beside: Path) -> bytes:
    """Compress by the suffix of `path`. `beside` is a temporary file for zstd, which is removed.
    Raises BundleError or OSError."""
    if path.name.endswith(".zst"):
        try:
            beside.touch(mode=0o600, exist_ok=False)
            beside.write_bytes(packed)
            return _zstd("-qc", beside)
        finally:
            beside.unlink(missing_ok=True)
    return gzip.compress(packed, 6) if path.name.endswith("gz") else packed


def unpack(path: Path) -> dict[str, bytes]:
    """The regular files of an archive, by name. Raises BundleError if it is damaged, hostile, or
    too large."""
    try:
        if not path.is_file() or path.stat().st_size > LIMIT_BYTES:
            raise BundleError(
                f"{path} is not a folder or regular file, or is larger than "
                f"{LIMIT_BYTES >> 20} MiB: is it an evidence bundle?"
            )
        stored = path.read_bytes()
    except OSError as exc:
        raise BundleError(f"could not read {path} ({exc.strerror})") from exc
    if stored.startswith(_ZSTD):
        stored = _zstd("-dqc", path)
    elif stored.startswith(_GZIP):
        stored = _gunzip(stored)
    if stored[257:262] != b"ustar":
        raise BundleError(
            f"{path} is not an evidence bundle: neither a folder nor a .tar, .tar.gz or .tar.zst"
        )
    return _members(stored)


def _gunzip(stored: bytes) -> bytes:
    engine = zlib.decompressobj(wbits=31)
    try:
        plain = engine.decompress(stored, LIMIT_BYTES + 1)
    except zlib.error as exc:
        raise _torn(str(exc)) from exc
    if len(plain) > LIMIT_BYTES:
        raise _too_large()
    if not engine.eof:
        raise _torn("it ends early")
    return plain


def _zstd(flags: str, path: Path) -> bytes:
    """Run zstd: Python has no zstd module before 3.14. Raises BundleError."""
    done = asyncio.run(
        run_once(["zstd", flags, "-M64MB", "--", str(path.resolve())], ZSTD_WITHIN_S, LIMIT_BYTES)
    )
    if done.kind is ErrorKind.TOO_LARGE:
        raise _too_large()
    if done.kind is ErrorKind.NOT_STARTED:
        raise BundleError("zstd is not installed: apt-get install zstd, or use .tar.gz")
    if done.code != 0 or done.kind is not None:
        raise BundleError(f"zstd {flags} {path} failed: {done.sentence or done.err.strip()[-200:]}")
    return done.out


def _torn(how: str) -> BundleError:
    return BundleError(
        f"the archive is damaged ({how}): copy it again, or create another (gpu-gate evidence)"
    )


def _too_large() -> BundleError:
    return BundleError(
        f"the archive has more than {LIMIT_BYTES >> 20} MiB: it is not an evidence bundle"
    )


def _members(tar: bytes) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    at, count, long_name = 0, 0, ""
    while at + _BLOCK <= len(tar) and any(tar[at : at + _BLOCK]):
        header, count = tar[at : at + _BLOCK], count + 1
        kind, size = header[156:157], _octal(header[124:136])
        _check_sum(header)
        start, at = at + _BLOCK, at + _BLOCK + -(-size // _BLOCK) * _BLOCK
        if start + size > len(tar):
            raise _torn("it ends within a file")
        if count > MEMBERS:
            raise BundleError(
                f"the archive has more than {MEMBERS} files: it is not an evidence bundle"
            )
        if kind in (b"L", b"x"):
            content = tar[start : start + min(size, 2 * NAME_BYTES)]
            long_name = (
                _text(content.rstrip(b"\0")) if kind == b"L" else _pax_path(content) or long_name
            )
        elif kind in (b"0", b"\0"):
            name = _safe(long_name or _name(header))
            if name in files:
                raise BundleError(f"the archive has {name!r} twice")
            files[name], long_name = tar[start : start + size], ""
        elif kind in (b"5", b"g"):
            long_name = ""
        else:
            raise BundleError(
                f"the archive has {_name(header)[:80]!r}, which is not a regular file"
            )
    return files


def _octal(field: bytes) -> int:
    digits = field.strip(b" \0")
    if len(digits) > 11 or any(c not in b"01234567" for c in digits):
        raise _torn("a malformed size")
    return int(digits or b"0", 8)


def _check_sum(header: bytes) -> None:
    if sum(header) - sum(header[148:156]) + 8 * ord(" ") != _octal(header[148:156]):
        raise _torn("wrong checksum in a header")


def _name(header: bytes) -> str:
    name, prefix = (_text(part.split(b"\0", 1)[0]) for part in (header[:100], header[345:500]))
    return f"{prefix}/{name}" if prefix and header[257:263] == b"ustar\0" else name


def _pax_path(content: bytes) -> str:
    """The NAME of a record "LENGTH path=NAME\\n"; empty where there is none."""
    while content:
        length, _, rest = content.partition(b" ")
        if not (length.isdigit() and len(length) < 6) or int(length) <= len(length) + 1:
            return ""
        if rest.startswith(b"path="):
            return _text(rest[5 : int(length) - len(length) - 2])
        content = content[int(length) :]
    return ""


def _text(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError as exc:
        raise BundleError("the archive has a name that is not UTF-8") from exc


def _safe(name: str) -> str:
    name = name.removeprefix("./")
    if (
        not name
        or name.startswith("/")
        or len(name) > NAME_BYTES
        or "\0" in name
        or ".." in name.split("/")
    ):
        raise BundleError(f"{name[:80]!r} points outside the bundle")
    return name
