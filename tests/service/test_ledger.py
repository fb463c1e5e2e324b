"""The ledger and the evidence on real folders: on disk before anything is done, whole, bounded, for
root only."""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from agent.core.plugin import ledger as reading
from agent.host import ledger
from agent.host.codec import encode
from agent.host.evidence import bundle
from agent.host.tape import Tape
from agent.model.errors import ActionFailed
from agent.model.reading import Seen
from agent.model.runtime import LedgerEntry
from agent.model.snapshot import Clock

from .sandbox import ENDS_WITHIN_S, REPO, needs_root, run_doctor

STATE = "var/lib/gpu-gate"


def entry(
    number: int = 1, cause: str = "PluginInitFailed kube-system/dp/ctr kubelet 0a1b"
) -> LedgerEntry:
    return LedgerEntry(
        1.7e9 + number,
        "6f1c",
        number,
        "rebuild",
        f"c{number}",
        cause,
        f"/{STATE}/evidence/{number}",
    )


def tape(size: int = 100) -> Tape:
    log = random.Random(0).randbytes(size)
    return Tape(
        {
            Tape.key("clock"): encode(Clock(1.0, 1.0, 2.0)),
            Tape.key("file", "/proc/devices"): encode(Seen(b"195 nvidia\n", 1.0)),
            Tape.key("tail", "/var/log/pods/p/0.log"): encode(Seen(log, 1.0)),
        }
    )


def stored(root: Path) -> bytes:
    return (root / STATE / "ledger.jsonl").read_bytes()


def entries(root: Path) -> tuple[LedgerEntry, ...] | None:
    return reading.read(stored(root))


def kept(root: Path) -> list[str]:
    return sorted(p.name for p in (root / STATE / "evidence").iterdir())


# --- the ledger


def test_an_appended_entry_is_read_back(tmp_path: Path) -> None:
    for n in (1, 2, 3):
        ledger.append(tmp_path, entry(n))
    assert entries(tmp_path) == (entry(1), entry(2), entry(3))
    assert [json.loads(line)["number"] for line in stored(tmp_path).splitlines()] == [1, 2, 3]


def test_state_is_readable_by_root_only(tmp_path: Path) -> None:
    ledger.append(tmp_path, entry())
    assert os.stat(tmp_path / STATE / "ledger.jsonl").st_mode & 0o7777 == 0o600
    assert os.stat(tmp_path / STATE).st_mode & 0o7777 == 0o700


def test_a_line_is_on_disk_when_append_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[bytes] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.pread(fd, 1 << 20, 0)))
    ledger.append(tmp_path, entry())
    assert synced == [stored(tmp_path)]


def test_an_entry_is_one_line_with_any_cause(tmp_path: Path) -> None:
    hostile = entry(1, "a\nb\r\u2028\x1c\0 “é” \ud800")
    ledger.append(tmp_path, hostile)
    ledger.append(tmp_path, entry(2))
    assert stored(tmp_path).count(b"\n") == 2
    found = entries(tmp_path)
    assert found is not None and found[0].cause.startswith("a\nb\r\u2028\x1c\0 “é” ")


@pytest.mark.parametrize("torn", [b'{"at": 17000', b"{", b"\0" * 30, b"x" * 5000])
@pytest.mark.parametrize("before", [0, 2])
def test_a_torn_line_does_not_lose_the_ledger(tmp_path: Path, torn: bytes, before: int) -> None:
    """The power went while a line was written: the next one begins where the last whole one
    ended."""
    ledger.append(tmp_path, entry(99))
    (tmp_path / STATE / "ledger.jsonl").write_bytes(b"")
    for n in range(before):
        ledger.append(tmp_path, entry(n))
    with (tmp_path / STATE / "ledger.jsonl").open("ab") as file:
        file.write(torn)
    ledger.append(tmp_path, entry(7))
    assert entries(tmp_path) == (*map(entry, range(before)), entry(7))


def test_a_malformed_ledger_line_needs_an_operator(tmp_path: Path) -> None:
    ledger.append(tmp_path, entry(1))
    with (tmp_path / STATE / "ledger.jsonl").open("ab") as file:
        file.write(b"junk\n")
    ledger.append(tmp_path, entry(2))
    assert b"junk\n" in stored(tmp_path)
    assert entries(tmp_path) is None


def test_the_ledger_does_not_grow_without_limit(tmp_path: Path) -> None:
    (tmp_path / STATE).mkdir(parents=True)
    ledger.append(tmp_path, entry(0))
    line = stored(tmp_path)
    (tmp_path / STATE / "ledger.jsonl").write_bytes(line * (2 * ledger.LEDGER_LINES))
    ledger.append(tmp_path, entry(1))
    assert stored(tmp_path).count(b"\n") == 2 * ledger.LEDGER_LINES + 1
    ledger.append(tmp_path, entry(2))
    found = entries(tmp_path)
    assert found is not None and len(found) == ledger.LEDGER_LINES + 1
    assert found[-2:] == (entry(1), entry(2)), "the newest are kept"
    assert os.stat(tmp_path / STATE / "ledger.jsonl").st_mode & 0o7777 == 0o600
    assert os.listdir(tmp_path / STATE) == ["ledger.jsonl"]


def is_folder(root: Path) -> None:
    (root / STATE / "ledger.jsonl").mkdir(parents=True)


def is_below_a_file(root: Path) -> None:
    (root / "var/lib").mkdir(parents=True)
    (root / STATE).write_text("")


def leads_nowhere(root: Path) -> None:
    (root / STATE).mkdir(parents=True)
    (root / STATE / "ledger.jsonl").symlink_to("/nowhere/at/all")


@pytest.mark.parametrize("spoil", [is_folder, is_below_a_file, leads_nowhere])
def test_a_failed_write_is_reported_with_a_next_step(tmp_path: Path, spoil) -> None:
    spoil(tmp_path)
    with pytest.raises(ActionFailed) as failed:
        ledger.append(tmp_path, entry())
    assert "so no repair was begun" in failed.value.sentence
    assert f"df {tmp_path / STATE}" in failed.value.sentence


def is_a_device_without_end(path: Path) -> None:
    path.symlink_to("/dev/zero")


def is_a_fifo(path: Path) -> None:
    os.mkfifo(path)


def is_far_too_large(path: Path) -> None:
    path.write_bytes(b"")
    os.truncate(path, 64 << 30)  # a hole: more than there is memory


@pytest.mark.parametrize("spoil", [is_a_device_without_end, is_a_fifo, is_far_too_large])
def test_a_file_that_is_no_ledger_is_refused(tmp_path: Path, spoil) -> None:
    """Each would hold the agent, or fill the machine's memory with it; so with a limit on ours."""
    (tmp_path / STATE).mkdir(parents=True)
    path = tmp_path / STATE / "ledger.jsonl"
    spoil(path)
    before = os.stat(path)
    usual = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, usual[1]))
    try:
        with pytest.raises(ActionFailed) as failed:
            ledger.append(tmp_path, entry())
    finally:
        resource.setrlimit(resource.RLIMIT_AS, usual)
    assert (
        "so no repair was begun" in failed.value.sentence
        and "move it away" in failed.value.sentence
    )
    assert (os.stat(path).st_ino, os.stat(path).st_size) == (before.st_ino, before.st_size)


# --- the evidence


def test_a_bundle_in_a_folder_with_other_files(tmp_path: Path) -> None:
    folder = ledger.keep_evidence(
        tmp_path, tape(), "1700000000-1", {"journal.txt": b"what happened\n"}
    )
    assert folder == tmp_path / STATE / "evidence/1700000000-1"
    assert (folder / "journal.txt").read_bytes() == b"what happened\n"
    assert (folder / "files/proc/devices").read_bytes() == b"195 nvidia\n"
    assert (folder / "tails/var/log/pods/p/0.log").stat().st_size == 100
    assert bundle.read(folder).answers.keys() == tape().answers.keys()
    ledger.note_outcome(tmp_path, f"/{STATE}/evidence/1700000000-1", "the kubelet lists every GPU")
    assert (folder / "outcome").read_text() == "the kubelet lists every GPU\n"
    for path in (folder, folder.parent):
        assert os.stat(path).st_mode & 0o7777 == 0o700


def test_doctor_reads_the_evidence_of_a_repair(tmp_path: Path) -> None:
    folder = ledger.keep_evidence(tmp_path, tape(), "1-1", {"journal.txt": b""})
    ledger.note_outcome(tmp_path, f"/{STATE}/evidence/1-1", "not cured")
    said = run_doctor("doctor", str(folder))
    assert "GpusOnPci is unknown" in said.stdout and "not-recorded" in said.stdout
    assert said.stderr == ""
    for words in (
        ("--json", "doctor", str(folder)),
        ("doctor", "--json", str(folder)),
        ("doctor", str(folder), "--json"),
    ):
        assert json.loads(run_doctor(*words).stdout)["findings"]


def test_the_number_of_bundles_is_limited(tmp_path: Path) -> None:
    for n in range(ledger.EVIDENCE_KEPT + 5):
        folder = ledger.keep_evidence(tmp_path, tape(), f"{n}-1", {})
        os.utime(folder, (n, n))
    assert len(kept(tmp_path)) == ledger.EVIDENCE_KEPT
    assert {f"{n}-1" for n in range(5, ledger.EVIDENCE_KEPT + 5)} == set(kept(tmp_path)), (
        "the oldest went"
    )


def test_the_size_of_bundles_is_limited(tmp_path: Path) -> None:
    for n in range(4):
        folder = ledger.keep_evidence(tmp_path, tape(), f"{n}-1", {})
        os.truncate(
            folder / "manifest.json", ledger.EVIDENCE_BYTES // 2
        )  # a hole: it only looks so big
        os.utime(folder, (n, n))
    assert kept(tmp_path) == ["2-1", "3-1"]


def test_evidence_of_repairs_without_effect_is_removed_first(tmp_path: Path) -> None:
    """A runtime that is stuck for a day must not push out what was done before."""
    ledger.keep_evidence(tmp_path, tape(), "0-1", {})
    for n in range(1, ledger.EVIDENCE_KEPT + 5):
        folder = ledger.keep_evidence(tmp_path, tape(), f"{n}-1", {})
        (folder / "outcome").write_text("failed: no answer within 15.0 s\n")
        os.utime(folder, (n, n))
    assert {"0-1", folder.name} <= set(kept(tmp_path))
    assert "1-1" not in kept(tmp_path)


def test_partial_evidence_of_a_killed_agent_is_removed(tmp_path: Path) -> None:
    evidence = tmp_path / STATE / "evidence"
    for n in range(ledger.EVIDENCE_KEPT):
        (evidence / f".{n}-1.4711").mkdir(parents=True)
        os.utime(evidence / f".{n}-1.4711", (n, n))
    for n in range(ledger.EVIDENCE_KEPT):
        ledger.keep_evidence(tmp_path, tape(), f"{n}-1", {})
    assert not [name for name in kept(tmp_path) if name.startswith(".")]


def test_an_existing_bundle_is_never_overwritten(tmp_path: Path) -> None:
    ledger.keep_evidence(tmp_path, tape(), "1-1", {"journal.txt": b"first"})
    with pytest.raises(ActionFailed, match="so no repair was begun"):
        ledger.keep_evidence(tmp_path, tape(), "1-1", {"journal.txt": b"second"})
    assert (tmp_path / STATE / "evidence/1-1/journal.txt").read_bytes() == b"first"


def test_a_link_among_the_evidence_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/file").write_text("mine")
    (tmp_path / STATE / "evidence").mkdir(parents=True)
    (tmp_path / STATE / "evidence/0-1").symlink_to(tmp_path / "precious")
    os.utime(tmp_path / "precious", (0, 0))
    for n in range(1, ledger.EVIDENCE_KEPT + 5):
        ledger.keep_evidence(tmp_path, tape(), f"{n}-1", {})
    assert (tmp_path / "precious/file").read_text() == "mine"


def test_foreign_files_among_the_evidence_stay_and_do_not_count(tmp_path: Path) -> None:
    """A case under work, larger than all of ours may be, and older."""
    case = tmp_path / STATE / "evidence/case-4711"
    (case / "files").mkdir(parents=True)
    (case / "files/log").write_bytes(b"")
    os.truncate(case / "files/log", 2 * ledger.EVIDENCE_BYTES)
    for n in range(ledger.EVIDENCE_KEPT + 5):
        ledger.keep_evidence(tmp_path, tape(), f"{n}-1", {})
    assert len(kept(tmp_path)) == ledger.EVIDENCE_KEPT + 1
    assert (case / "files/log").stat().st_size == 2 * ledger.EVIDENCE_BYTES


def test_an_outcome_of_removed_evidence(tmp_path: Path) -> None:
    ledger.note_outcome(tmp_path, f"/{STATE}/evidence/1-1", "cured")
    ledger.note_outcome(tmp_path, "", "cured")
    assert not (tmp_path / STATE).exists()


def test_an_outcome_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / STATE / "evidence/1-1/outcome").mkdir(parents=True)
    with pytest.raises(ActionFailed, match=r"could not write .*/outcome"):
        ledger.note_outcome(tmp_path, f"/{STATE}/evidence/1-1", "cured")


# --- disks that are full, or read-only


def on_disk(root: Path, mount: str, program: str) -> str:
    """What a program prints, with /var/lib/gpu-gate below `root` mounted so, in a mount namespace
    of its own."""
    needs_root()
    (root / STATE).mkdir(parents=True, exist_ok=True)
    head = f"""
        import os
        from pathlib import Path
        from agent.core.plugin import ledger as reading
        from agent.model.errors import ActionFailed
        from agent.host import ledger
        from tests.service.test_ledger import entry, entries, kept, stored, tape
        root = Path({str(root)!r})
        state = root / "{STATE}"
    """
    text = textwrap.dedent(head) + textwrap.dedent(program)
    script = f'set -e; {mount}; exec "$0" -c "$1"'
    words = ["unshare", "-m", "--propagation", "private", "sh", "-c", script, sys.executable, text]
    env = {"PATH": os.environ["PATH"], "STATE": str(root / STATE), "PYTHONPATH": str(REPO)}
    done = subprocess.run(
        words, cwd=REPO, env=env, capture_output=True, text=True, timeout=ENDS_WITHIN_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


SMALL = 'mount -t tmpfs -o size={} tmpfs "$STATE"'
READ_ONLY = 'mount --bind "$STATE" "$STATE"; mount -o remount,bind,ro "$STATE"'
EVIDENCE = """
    try:
        ledger.keep_evidence(root, tape({size}), "2-1", {{"journal.txt": b"x" * {size}}})
    except ActionFailed as failed:
        print(failed.sentence)
    print(sorted(str(p.relative_to(state)) for p in state.rglob("*")))
"""


def test_no_evidence_on_a_nearly_full_disk(tmp_path: Path) -> None:
    said = on_disk(tmp_path, SMALL.format("16m"), EVIDENCE.format(size=10))
    assert "less than 32 MiB are free for evidence, so no repair was begun" in said
    assert said.endswith("['evidence']\n")


def test_a_disk_that_fills_up_leaves_no_partial_evidence(tmp_path: Path) -> None:
    said = on_disk(tmp_path, SMALL.format("40m"), EVIDENCE.format(size=24 << 20))
    assert (
        "could not write evidence, so no repair was begun" in said
        and "No space left on device" in said
    )
    assert said.endswith("['evidence']\n")


def test_a_full_disk_loses_no_line_of_the_ledger(tmp_path: Path) -> None:
    """A line that only its beginning found room for is none; with room again, the next one is
    whole."""
    said = on_disk(
        tmp_path,
        SMALL.format("64k"),
        """
        ledger.append(root, entry(1))
        while len(stored(root)) % 4096 < 4096 - 2 * len(stored(root).splitlines()[0]):
            ledger.append(root, entry(1))
        try:
            with (state / "filler").open("wb", buffering=0) as filler:
                while True:
                    filler.write(b"x" * 4096)
        except OSError:
            pass
        before = entries(root)
        failures = 0
        for n in range(3):
            try:
                ledger.append(root, entry(2))
            except ActionFailed as failed:
                failures += 1
                print(failed.sentence)
        assert failures, "the disk was not full"
        whole = entries(root)
        assert whole == before + (entry(2),) * (3 - failures), "nothing but whole lines counts"
        (state / "filler").unlink()
        ledger.append(root, entry(3))
        assert entries(root) == whole + (entry(3),)
    """,
    )
    assert "No space left on device" in said and "so no repair was begun" in said


def test_a_read_only_disk(tmp_path: Path) -> None:
    ledger.append(tmp_path, entry(1))
    said = on_disk(
        tmp_path,
        READ_ONLY,
        """
        for act in (lambda: ledger.append(root, entry(2)), lambda: ledger.keep_evidence(root, tape(), "1-1", {})):
            try:
                act()
            except ActionFailed as failed:
                print(failed.sentence)
        assert entries(root) == (entry(1),)
    """,
    )
    assert said.count("Read-only file system") == 2 and said.count("so no repair was begun") == 2
