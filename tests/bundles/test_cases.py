"""Every field case in sight of a doctor: recorded, written as a bundle, read back, judged."""

from __future__ import annotations

import asyncio
import os
import random
import re
from pathlib import Path

import pytest

from agent.core.collect import collect
from agent.core.doctor.collect import collect_diagnostics
from agent.host.evidence import bundle
from agent.host.tape import FullRecorder, Replay, Tape
from agent.model.settings import Settings
from agent.model.snapshot import Snapshot
from agent.service.commands.doctor import examine
from agent.service.doctor_report import DoctorReport, text

from .casebook import FOLDER, CaseScene, cases, snapshots
from .casenode import CaseNode
from .repairer import and_when, would_do

ALL = list(snapshots())
each_scene = pytest.mark.parametrize(
    "snapshot", ALL, ids=[f"{s.case}-{s.name}".replace(" ", "-") for s in ALL]
)


def taped(snapshot: CaseScene) -> tuple[Snapshot, Tape]:
    node = CaseNode(snapshot.node)
    recorder = FullRecorder(node)

    async def ask() -> Snapshot:
        of = await collect(recorder, node.settings)
        await collect_diagnostics(recorder, node.settings, of)
        return of

    return asyncio.run(ask()), recorder.tape


def assessment(snapshot: CaseScene, tape: Tape) -> tuple[DoctorReport, Settings]:
    settings = CaseNode(snapshot.node).settings
    return asyncio.run(examine(Replay(tape), settings)), settings


@each_scene
def test_a_case_gives_the_expected_diagnosis_and_repair(
    snapshot: CaseScene, tmp_path: Path
) -> None:
    live, tape = taped(snapshot)
    if (
        next(s for s in ALL if s.case == snapshot.case) is snapshot
    ):  # to disk and back: once a case, for fsync takes long
        bundle.write(tape, tmp_path / "bundle")
        tape = bundle.read(tmp_path / "bundle")
    opinion, settings = assessment(snapshot, tape)
    assert opinion.snapshot == live
    page = re.sub(r"\s+", " ", " ".join(text(opinion)))
    broken, cause = opinion.broken, next(iter(opinion.causes), None)
    shown = {s.id: s.strength.value for s in opinion.suspects}
    assert [f"{broken.link} {broken.reason}" if broken else "-"] == snapshot.said("says"), page
    assert and_when(opinion.snapshot, opinion.diagnosis, settings) == snapshot.said("mender")[0], (
        page
    )
    for word in snapshot.said("cause"):
        assert cause and f"{cause.id} {cause.strength.value}" == word, page
    for word in snapshot.said("also"):
        fault, strength = word.split()
        assert shown.get(fault) == strength, page
    for fault in snapshot.said("never"):
        assert fault not in shown, page
    for words in snapshot.said("told") + snapshot.said("remedy"):
        assert words in page, page


TORN = [
    n
    for n, snapshot in enumerate(ALL)
    if n % 2 == 0 and "8 NeverStartedAgain" not in snapshot.said("says")
]
"""A restartPolicy that cannot be read counts as Always, which nearly every plugin's is: that one is
left out."""


@pytest.mark.parametrize("number", TORN)
def test_a_torn_bundle_of_a_case_causes_no_false_finding(number: int) -> None:
    """A fifth of the answers is lost: no repair that the complete node would not get, and no
    crash."""
    snapshot, rolled = ALL[number], random.Random(number)
    _, tape = taped(snapshot)
    opinion, settings = assessment(snapshot, tape)
    was = would_do(opinion.snapshot, opinion.diagnosis, settings)
    for _ in range(4):
        left = {
            k: answer
            for k, answer in tape.answers.items()
            if rolled.random() > 0.2 or k == Tape.key("clock")
        }
        opinion, settings = assessment(snapshot, Tape(left))
        assert text(opinion)
        # Where its access is not on the tape any more, the plugin is not trusted with a signal.
        allowed = {was, "none", "held", *(["rebuild"] if was == "hup" else [])}
        assert would_do(opinion.snapshot, opinion.diagnosis, settings) in allowed, (
            tape.answers.keys() - left.keys()
        )


PAGE = FOLDER.parents[2] / "docs/cases.md"


def row(case: str, title: str) -> str:
    """A row of the table: results, repairs and the number of nodes."""
    mine = [s for s in ALL if s.case == case]
    said = [word.split()[1] for s in mine for word in s.said("says") if word != "-"]
    said += [word.split()[0] for s in mine for key in ("cause", "also") for word in s.said(key)]
    words = ", ".join(f"`{w}`" for w in dict.fromkeys(said)) or "nothing is broken"
    does = ", ".join(dict.fromkeys(s.said("mender")[0] for s in mine))
    return f"| {case} | {title} | {words} | {does} | {len(mine)} |"


def test_the_table_matches_the_bundles() -> None:
    titles = cases()
    rows = [row(case, titles[case]) for case in sorted(titles, key=lambda c: (c[0], int(c[1:])))]
    page = PAGE.read_text()
    begin, end = page.index("| A1 |"), page.index("\n\n", page.index("| A1 |"))
    if os.environ.get("REWRITE"):
        PAGE.write_text(page[:begin] + "\n".join(rows) + page[end:])
    assert page[begin:end].splitlines() == rows, "REWRITE=1 writes them"


def test_every_case_is_in_the_table_once() -> None:
    every = (FOLDER.parent / "cases.ids").read_text().split()
    page = PAGE.read_text()
    assert sorted(re.findall(r"^\| ([A-E]\d+) \|", page, re.M)) == sorted(every)
    bundled = len(cases())
    assert (
        f"{len(every)} cases: {bundled} are bundles ({len(ALL)} nodes), {len(every) - bundled} "
        in page
    )
    for path in re.findall(r"`(tests/[\w./]+)`", page):
        assert (PAGE.parents[1] / path).exists(), path
