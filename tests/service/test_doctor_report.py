"""The doctor's output as text files: REWRITE=1 writes them again; read them before you commit."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from agent import __version__
from agent.core.common.known_fault import KnownFault
from agent.core.diagnose import diagnose
from agent.core.doctor import journal
from agent.core.doctor.suspects import FAULTS
from agent.host.codec import encode
from agent.host.evidence import bundle
from agent.host.tape import Tape
from agent.model.diagnostics import (
    NO_DIAGNOSTICS,
    CudaReport,
    DiagnosticData,
    JournalLine,
    SocketSight,
    Version,
)
from agent.model.settings import Settings
from agent.model.snapshot import Clock, Snapshot
from agent.model.suspect import Strength, Suspect
from agent.service.doctor_report import DoctorReport, assess, report, text
from tests.unit import access_snapshots, snapshots
from tests.unit.snapshots import DENIED, NOW, seen, snapshot

from .sandbox import ENDS_WITHIN_S, REPO

FOLDER = Path(__file__).parent / "doctor_reports"
COLUMNS = 80
ASKED = DiagnosticData(
    journal=seen(
        journal.words(
            [
                JournalLine(
                    105.0,
                    "nvidia-persistenced.service",
                    "device 0000:07:00.0 - persistence mode enabled.",
                ),
                JournalLine(
                    940.0,
                    "systemd",
                    "Reloading requested from client PID 77 ('systemctl') (unit apt)...",
                ),
            ]
        )
    ),
    versions=(
        Version("containerd", seen("containerd github.com/containerd/containerd v1.6.34 abc")),
        Version("runc", seen("runc version 1.1.13")),
        Version("crio", snapshots.MISSING),
    ),
    kernel=seen("5.10.134"),
    cgroup="v2",
    cpu_policy=seen("none"),
    sockets=(SocketSight("kubelet.sock", seen(812)),),
)
OLD_PLUGIN = snapshot(
    allocatable=seen(()),
    checkpoint=seen({"nvidia.com/gpu": 2}),
    plugins=(snapshots.sight(snapshots.FAILED_LOG, access=True),),
)
LOST = access_snapshots.access_scene(
    verdicts=(access_snapshots.verdict((access_snapshots.CTL, access_snapshots.UVM)),),
    sightings=(
        access_snapshots.sighting(access_snapshots.GPU0, denied_at=NOW - 3, reload_at=NOW - 50),
    ),
)


def opinion(of: Snapshot, diagnostics: DiagnosticData = NO_DIAGNOSTICS) -> DoctorReport:
    return assess(of, diagnose(of, Settings()), diagnostics)


@pytest.mark.parametrize(
    ("name", "of", "diagnostics"),
    [
        (
            "healthy",
            snapshot(),
            DiagnosticData(cuda=seen(CudaReport("cuDeviceGetCount", 0, 2)), cgroup="v2"),
        ),
        ("plugin_too_early", OLD_PLUGIN, ASKED),
        ("lost_by_a_reload", LOST, ASKED),
        (
            "nothing_may_be_read",
            snapshot(
                units=DENIED,
                runtime=DENIED,
                allocatable=DENIED,
                kernel=DENIED,
                probe=DENIED,
                processes=DENIED,
                access=DENIED,
            ),
            DiagnosticData(journal=DENIED),
        ),
    ],
)
def test_the_printed_report(name: str, of: Snapshot, diagnostics: DiagnosticData) -> None:
    file, lines = FOLDER / f"{name}.txt", text(opinion(of, diagnostics))
    printed = "\n".join(lines).replace(f"gpu-gate {__version__}", "gpu-gate X") + "\n"
    if os.environ.get("REWRITE"):
        file.write_text(printed)
    assert printed == file.read_text()
    assert len(lines[0]) <= COLUMNS
    assert all(len(line) <= COLUMNS or line.lstrip().startswith("$ ") for line in lines)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.id)
def test_what_a_fault_is_not_is_always_shown(
    fault: KnownFault,
) -> None:
    one = Suspect(
        fault.id,
        fault.link,
        fault.title,
        Strength.CONSISTENT,
        "so",
        fault.decide,
        fault.capture,
        fault.remedy,
        fault.do,
        fault.is_not,
        fault.source,
        fault.is_cause,
    )
    for causes in ((one,), ()):
        lines = text(replace(opinion(snapshot()), suspects=(one,), causes=causes))
        assert all(len(line) <= COLUMNS or line.lstrip().startswith("$ ") for line in lines)
        assert not fault.is_not or f"is not {fault.is_not}" in " ".join(" ".join(lines).split())


def test_links_after_the_broken_one_are_dim() -> None:
    lines = text(opinion(OLD_PLUGIN, ASKED), colour=True)
    links = {
        line.removeprefix("\033[2m")[:2].strip(): line
        for line in lines
        if line.strip("\033[2m ")[:1].isdigit()
    }
    assert "\033[31mFAILS" in links["8"] and not links["8"].startswith("\033[2m")
    assert links["10"].startswith("\033[2m") and "\033[3" not in links["10"]
    assert not links["7"].startswith("\033[2m")


def test_json_has_the_same_report() -> None:
    said = json.loads(json.dumps(report(opinion(OLD_PLUGIN, ASKED))))
    assert (said["version"], said["exit_code"], said["causes"][0]) == (1, 1, "EarlyNvml")
    assert said["first_broken"]["link"] == 8
    strength = {fault["id"]: fault["strength"] for fault in said["faults"]}
    assert strength == {
        "EarlyNvml": "confirmed",
        "DeafPlugin": "confirmed",
        "StaleCheckpoint": "confirmed",
    }
    assert said["versions"]["runc"] == "1.1.13" and said["versions"]["containerd"] == "1.6.34"


@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_colour_on_a_terminal_only_and_not_with_no_color(
    tmp_path: Path, no_color: str, coloured: bool
) -> None:
    bundle.write(Tape({Tape.key("clock"): encode(Clock(9.0, 9.0, 9.0))}), tmp_path / "b")
    ours, theirs = pty.openpty()
    env = {**os.environ, "NO_COLOR": no_color, "TERM": "xterm"}
    with subprocess.Popen(
        [sys.executable, "-m", "agent", "doctor", str(tmp_path / "b")],
        cwd=REPO,
        env=env,
        stdout=theirs,
    ) as program:
        assert program.wait(ENDS_WITHIN_S) == 4
    os.close(theirs)
    said = os.read(ours, 1 << 16)
    os.close(ours)
    assert (b"\x1b[" in said) is coloured
