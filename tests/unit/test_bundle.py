"""An evidence bundle is written whole or not at all, and read as if an enemy had written it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent.core.collect import collect
from agent.core.diagnose import diagnose
from agent.host.codec import encode
from agent.host.evidence import bundle
from agent.host.tape import Replay, Tape
from agent.model.errors import BundleError
from agent.model.reading import Refusal, Seen, Why
from agent.model.snapshot import Clock

from .snapshots import DEFAULTS

Manifest = dict[str, Any]


def tape() -> Tape:
    return Tape(
        {
            Tape.key("clock"): encode(Clock(1.0, 1.0, 2.0)),
            Tape.key("file", "/proc/devices"): encode(Seen(b"195 nvidia\n", 1.0)),
            Tape.key("file", "/proc/driver/nvidia/version"): encode(Seen(b"\x00\xff\n", 1.0)),
        }
    )


def written(folder: Path) -> Path:
    bundle.write(tape(), folder)
    return folder


def seal(folder: Path) -> None:
    """Recompute the checksums, as an attacker would."""
    files = sorted(
        p
        for p in folder.rglob("*")
        if p.is_file() and not p.is_symlink() and p.name != "SHA256SUMS"
    )
    (folder / "SHA256SUMS").write_text(
        "".join(
            f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.relative_to(folder)}\n"
            for p in files
        )
    )


def read(folder: Path) -> Any:
    """Read it as doctor does, to the end."""
    return diagnose(asyncio.run(collect(Replay(bundle.read(folder)), DEFAULTS)), DEFAULTS)


def test_a_bundle_is_plain_files_for_root_only(tmp_path: Path) -> None:
    folder = written(tmp_path / "b")
    assert (folder / "files/proc/devices").read_bytes() == b"195 nvidia\n"
    assert (folder / "files/proc/driver/nvidia/version").read_bytes() == b"\x00\xff\n"
    assert os.stat(folder).st_mode & 0o7777 == 0o700
    assert [p.name for p in tmp_path.iterdir()] == ["b"]


def test_a_written_bundle_can_be_read(tmp_path: Path) -> None:
    host = Replay(bundle.read(written(tmp_path / "b")))
    assert asyncio.run(host.file("/proc/driver/nvidia/version")) == Seen(b"\x00\xff\n", 1.0)
    assert asyncio.run(host.file("/proc/devices", 3)) == Seen(b"195", 1.0)


def test_parent_folders_are_created(tmp_path: Path) -> None:
    assert read(written(tmp_path / "a/b/c"))


@pytest.mark.parametrize("there", ["folder", "file"])
def test_an_existing_target_is_not_changed(tmp_path: Path, there: str) -> None:
    target = tmp_path / "b"
    target.mkdir() if there == "folder" else target.write_text("mine")
    with pytest.raises(BundleError, match="exists: choose"):
        bundle.write(tape(), target)
    assert list(tmp_path.iterdir()) == [target]


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path) -> None:
    clashing = Tape({Tape.key("file", path): encode(Seen(b"x", 1.0)) for path in ("/a", "/a/b")})
    with pytest.raises(BundleError, match="could not write"):
        bundle.write(clashing, tmp_path / "b")
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_is_too_long_is_an_error_message(tmp_path: Path) -> None:
    with pytest.raises(BundleError):
        bundle.write(tape(), tmp_path / ("x" * 300))


def answer(question: list[str], value: Any, **more: Any) -> Callable[[Manifest], None]:
    """Replace the answers by one of these."""

    def change(manifest: Manifest) -> None:
        manifest["answers"] = [
            {"question": ["clock"], "answer": encode(Clock(1.0, 1.0, 2.0))},
            {"question": question, "answer": {"is": "Seen", "value": value, "at": 1.0, **more}},
        ]

    return change


def points_at(name: Any) -> Callable[[Manifest], None]:
    return answer(["file", "/proc/devices"], {"file": name})


def put(**parts: Any) -> Callable[[Manifest], None]:
    return lambda manifest: manifest.update(parts)


# name, what is done to the manifest
TORN: list[tuple[str, Callable[[Manifest], None]]] = [
    ("a name that climbs out", points_at("../../../../../../etc/hostname")),
    ("a name that climbs out behind a folder", points_at("files/../../outside")),
    ("an absolute name", points_at("/etc/hostname")),
    ("a name with a NUL", points_at("files/\0")),
    ("the bundle itself", points_at("")),
    ("a folder", points_at("files")),
    ("a file that is not there", points_at("files/none")),
    ("a name that is too long", points_at("x" * 5000)),
    ("a name that is a number", points_at(7)),
    ("a name that is a list", points_at(["files/proc/devices"])),
    ("another format", put(format=3)),
    ("no format", put(format=None)),
    ("no answers", put(answers=None)),
    ("answers by name", put(answers={"clock": 1})),
    ("an answer that is a word", put(answers=["clock"])),
    ("a question that is a word", put(answers=[{"question": "clock", "answer": {}}])),
    ("an answer without a question", put(answers=[{"answer": {}}])),
    ("a question without an answer", put(answers=[{"question": ["clock"]}])),
    ("no clock", put(answers=[])),
    ("a clock of another kind", put(answers=[{"question": ["clock"], "answer": "noon"}])),
    ("a clock without parts", put(answers=[{"question": ["clock"], "answer": {}}])),
    ("a file of numbers", answer(["file", "/proc/driver/nvidia/version"], [1, 2])),
    ("a folder of numbers", answer(["folder", "/sys/bus/pci/devices", "*"], [1, 2])),
    (
        "a folder of bytes",
        answer(["folder", "/sys/bus/pci/devices", "*"], {"file": "files/proc/devices"}),
    ),
    ("a probe of another kind", answer(["probe"], {"is": "ProbeState", "last": []})),
    ("an instant in words", answer(["probe"], {"is": "ProbeState"}, at="noon")),
]


@pytest.mark.parametrize(("name", "change"), TORN, ids=[row[0] for row in TORN])
def test_a_hostile_manifest_is_a_sentence(
    tmp_path: Path, name: str, change: Callable[[Manifest], None]
) -> None:
    folder = written(tmp_path / "b")
    (tmp_path / "outside").write_text("secret")
    manifest = json.loads((folder / "manifest.json").read_text())
    change(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    seal(folder)
    with pytest.raises(BundleError) as refused:
        read(folder)
    assert refused.value.sentence
    assert "secret" not in refused.value.sentence


def link(target: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / "files/proc/devices").unlink()
        (folder / "files/proc/devices").symlink_to(target)

    return change


def sparse(name: str, size: int) -> Callable[[Path], None]:
    return lambda folder: os.truncate(folder / name, size)


def fifo(folder: Path) -> None:
    (folder / "files/proc/devices").unlink()
    os.mkfifo(folder / "files/proc/devices")


def manifest_of(data: bytes) -> Callable[[Path], Any]:
    return lambda folder: (folder / "manifest.json").write_bytes(data)


# name, what is done to the folder
HOSTILE: list[tuple[str, Callable[[Path], Any]]] = [
    ("gone", shutil.rmtree),
    ("a file instead of a folder", lambda f: (shutil.rmtree(f), f.write_text("x"))),
    ("no manifest", lambda f: (f / "manifest.json").unlink()),
    (
        "a folder as manifest",
        lambda f: ((f / "manifest.json").unlink(), (f / "manifest.json").mkdir()),
    ),
    ("an empty manifest", manifest_of(b"")),
    ("half a manifest", lambda f: os.truncate(f / "manifest.json", 60)),
    ("a manifest of junk", manifest_of(b"\xff\xfe\x00")),
    ("a manifest that is a list", manifest_of(b"[]")),
    ("a manifest nested without end", manifest_of(b"[" * 500_000)),
    ("a manifest with a number without end", manifest_of(b'{"format": %s}' % (b"9" * 10_000))),
    ("a huge manifest", sparse("manifest.json", 65 << 20)),
    ("a huge file", sparse("files/proc/devices", 65 << 20)),
    (
        "two files that are huge together",
        lambda f: (
            sparse("files/proc/devices", 40 << 20)(f),
            sparse("files/proc/driver/nvidia/version", 40 << 20)(f),
        ),
    ),
    ("a link out", link("/etc/hostname")),
    ("a link to nowhere", link("/nowhere")),
    ("a link to itself", link("devices")),
    ("a link within the bundle", link("driver/nvidia/version")),
    ("a link to a device", link("/dev/zero")),
    ("a fifo", fifo),
]


@pytest.mark.parametrize(("name", "change"), HOSTILE, ids=[row[0] for row in HOSTILE])
def test_a_hostile_folder_is_a_sentence(
    tmp_path: Path, name: str, change: Callable[[Path], Any]
) -> None:
    folder = written(tmp_path / "b")
    change(folder)
    with pytest.raises(BundleError) as refused:
        read(folder)
    assert refused.value.sentence


def test_a_manifest_that_is_no_plain_file_is_not_read(tmp_path: Path) -> None:
    path = written(tmp_path / "b") / "manifest.json"
    path.unlink()
    path.symlink_to("/dev/null")
    with pytest.raises(BundleError, match="is a link"):
        bundle.read(path.parent)


def test_a_link_that_replaces_a_folder_during_a_read_is_not_followed(tmp_path: Path) -> None:
    folder = written(tmp_path / "b")
    (folder / "files/proc").rename(tmp_path / "away")
    (folder / "files/proc").symlink_to(tmp_path / "away")
    with pytest.raises(OSError):
        bundle._opened(folder, "files/proc/devices")
    os.close(bundle._opened(tmp_path, "away/devices"))


def test_a_file_of_a_bundle_that_no_parser_expects(tmp_path: Path) -> None:
    folder = written(tmp_path / "b")
    (folder / "files/proc/devices").write_text("² nvidia\n")
    seal(folder)
    assert read(folder)


def test_a_bundle_of_the_first_format_is_read(tmp_path: Path) -> None:
    folder = written(tmp_path / "b")
    (folder / "SHA256SUMS").unlink()
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(
        json.dumps({**manifest, "format": 1, "gpu_gate": "0.1.0"})
    )
    assert bundle.read(folder).answers == bundle.read(written(tmp_path / "new")).answers


@pytest.mark.parametrize("name", ["manifest.json", "files/proc/devices", "SHA256SUMS"])
def test_a_byte_that_differs_is_refused(tmp_path: Path, name: str) -> None:
    folder = written(tmp_path / "b")
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 2 if name != "SHA256SUMS" else 0] ^= 1
    (folder / name).write_bytes(data)
    with pytest.raises(BundleError):
        read(folder)


def test_a_newer_format_shows_the_version_that_wrote_it(tmp_path: Path) -> None:
    folder = written(tmp_path / "b")
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "format": 99, "gpu_gate": "7.0"}))
    with pytest.raises(BundleError, match=r"format 99, written by gpu-gate 7\.0.*a newer one"):
        bundle.read(folder)


def test_content_over_the_limit_is_omitted_and_listed(tmp_path: Path) -> None:
    held = tape()
    for number in range(3):
        held.answers[Tape.key("tail", f"/{number}.log")] = encode(Seen(bytes(20 << 20), 1.0))
    held.answers[Tape.key("runtime", "/s")] = encode(Seen(["x" * 1000] * 5000, 1.0))
    bundle.write(held, tmp_path / "b")
    left_out = json.loads((tmp_path / "b/manifest.json").read_text())["left_out"]
    assert left_out == ["tails/2.log", Tape.key("runtime", "/s")]
    found = asyncio.run(Replay(bundle.read(tmp_path / "b")).tail("/2.log"))
    assert isinstance(found, Refusal) and found.why is Why.NOT_RECORDED


def test_a_path_with_parent_references_is_no_file_name(tmp_path: Path) -> None:
    held = Tape(
        {**tape().answers, Tape.key("tail", "/var/log/../../../x"): encode(Seen(b"log", 1.0))}
    )
    bundle.write(held, tmp_path / "a/b")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a"]
    found = asyncio.run(Replay(bundle.read(tmp_path / "a/b")).tail("/var/log/../../../x"))
    assert isinstance(found, Seen) and found.value == b"log"
