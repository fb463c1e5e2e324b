"""A bundle in one file: packed and unpacked alike, and read as if an enemy had packed it."""

from __future__ import annotations

import gzip
import io
import os
import random
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.host.evidence import archive, bundle
from agent.model.errors import BundleError

from .test_bundle import read, tape

ENDINGS = [e for e in archive.ENDINGS if shutil.which("zstd") or not e.endswith("zst")]


def packed(path: Path) -> Path:
    bundle.write(tape(), path)
    return path


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_written_bundle_can_be_read(tmp_path: Path, ending: str) -> None:
    path = packed(tmp_path / f"b{ending}")
    assert bundle.read(path).answers == bundle.read(packed(tmp_path / "folder")).answers
    assert os.stat(path).st_mode & 0o7777 == 0o600
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([path.name, "folder"])


@pytest.mark.parametrize("ending", ENDINGS)
def test_any_tar_reads_it(tmp_path: Path, ending: str) -> None:
    packed(tmp_path / f"b{ending}")
    subprocess.run(["tar", "-xf", f"b{ending}"], cwd=tmp_path, check=True, timeout=60)
    assert read(tmp_path / "b")
    subprocess.run(
        ["sha256sum", "--quiet", "-c", "SHA256SUMS"], cwd=tmp_path / "b", check=True, timeout=60
    )


@pytest.mark.parametrize("form", ["ustar", "gnu", "pax", "posix"])
def test_a_packed_folder_is_read(tmp_path: Path, form: str) -> None:
    folder = packed(tmp_path / "b")
    subprocess.run(
        ["tar", f"--format={form}", "-czf", "sent.tgz", "./b"], cwd=tmp_path, check=True, timeout=60
    )
    assert bundle.read(tmp_path / "sent.tgz").answers == bundle.read(folder).answers


@pytest.mark.parametrize("form", ["gnu", "pax"])
def test_long_names(tmp_path: Path, form: str) -> None:
    name = "/".join(["n" * 120] * 3)
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).write_text("long")
    subprocess.run(
        ["tar", f"--format={form}", "-cf", "t.tar", name], cwd=tmp_path, check=True, timeout=60
    )
    assert archive.unpack(tmp_path / "t.tar") == {name: b"long"}


def tar(*members: tuple[str, bytes, bytes]) -> bytes:
    """(name, type, content) each."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as file:
        for name, kind, content in members:
            info = tarfile.TarInfo(name)
            info.type, info.size, info.linkname = (
                kind,
                len(content),
                "/etc/shadow" if kind in b"12" else "",
            )
            file.addfile(info, io.BytesIO(content))
    return out.getvalue()


def plain(name: str = "manifest.json", content: bytes = b"{}") -> tuple[str, bytes, bytes]:
    return name, b"0", content


def grown(data: bytes) -> bytes:
    """Its first member claims to be larger than the archive."""
    header = bytearray(data[:512])
    header[124:136] = b"77777777777\0"
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + data[512:]


HOSTILE: dict[str, Callable[[], bytes]] = {
    "nothing": lambda: b"",
    "junk": lambda: b"\xff" * 5000,
    "only zeros": lambda: bytes(10240),
    "no manifest": lambda: tar(plain("a")),
    "climbs out": lambda: tar(plain(), plain("../../tmp/x")),
    "climbs out within": lambda: tar(plain(), plain("files/../../x")),
    "absolute": lambda: tar(plain(), plain("/etc/cron.d/x")),
    "a link": lambda: tar(plain(), ("files/a", b"2", b"")),
    "a hard link": lambda: tar(plain(), ("files/a", b"1", b"")),
    "a device": lambda: tar(plain(), ("files/a", b"3", b"")),
    "a fifo": lambda: tar(plain(), ("files/a", b"6", b"")),
    "twice": lambda: tar(plain(), plain()),
    "a name of other bytes": lambda: tar(plain("manifest.jsoX")).replace(
        b"manifest.jsoX", b"manifest.jso\xff", 1
    ),
    "a size beyond its end": lambda: grown(tar(plain())),
    "cut off": lambda: tar(plain("manifest.json", b"x" * 3000))[:2000],
    "a bomb": lambda: gzip.compress(bytes(archive.LIMIT_BYTES + 1), 9),
    "half a gzip": lambda: gzip.compress(tar(plain()))[:40],
    "not a gzip": lambda: b"\x1f\x8b" + b"x" * 99,
    "not a zstd": lambda: b"\x28\xb5\x2f\xfd" + b"x" * 99,
    "too many": lambda: (
        tar(plain()).rstrip(b"\0").ljust(1024, b"\0")
        + b"".join(tar(plain(f"f{n}", b""))[:512] for n in [0]) * (archive.MEMBERS + 1)
    ),
    "names of names": lambda: tar(*[("././@LongLink", b"L", b"x\0")] * (archive.MEMBERS + 2)),
}


TORN = ("a size beyond its end", "cut off", "half a gzip", "not a gzip")


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_is_a_sentence(name: str, tmp_path: Path) -> None:
    path = tmp_path / "b.tar"
    path.write_bytes(HOSTILE[name]())
    with pytest.raises(BundleError) as refused:
        bundle.read(path)
    assert refused.value.sentence
    assert "copy it again" in refused.value.sentence or name not in TORN
    assert [p.name for p in tmp_path.iterdir()] == ["b.tar"]


@pytest.mark.skipif(not shutil.which("zstd"), reason="no zstd")
def test_a_bomb_of_zstd(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(bytes(archive.LIMIT_BYTES + 1))
    subprocess.run(
        ["zstd", "-q", "--rm", "b", "-o", "b.tar.zst"], cwd=tmp_path, check=True, timeout=60
    )
    with pytest.raises(BundleError, match="more than 64 MiB"):
        bundle.read(tmp_path / "b.tar.zst")


@pytest.mark.parametrize("ending", [".tar", ".tar.gz"])
def test_random_damage_is_refused_or_harmless(ending: str, tmp_path: Path) -> None:
    dice, path = random.Random(ending), tmp_path / f"b{ending}"
    whole = packed(path).read_bytes()
    meant = bundle.read(path).answers
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(dice.choice((1, 1, 3))):
            data[dice.randrange(len(data))] = dice.randrange(256)
        path.write_bytes(data[: dice.choice((len(data), dice.randrange(len(data))))])
        try:
            assert bundle.read(path).answers == meant
        except BundleError:
            continue
