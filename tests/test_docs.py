"""Every page of docs/ can be reached from the README, and every link and path in a page exists."""

from __future__ import annotations

import re
from pathlib import Path

from agent.core.gate.phases import REPAIR_TABLE, TABLE
from agent.core.gate.states import Phase

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\]\(([^)#\s]+)")
PATH = re.compile(
    r"`((?:agent|core|model|transport|engine|host|barrier|service|tests|packaging|systemd)/[\w./*-]+)`"
)


def links(page: Path) -> list[Path]:
    return [
        (page.parent / link).resolve()
        for link in LINK.findall(page.read_text())
        if "://" not in link
    ]


def test_every_page_is_reached_from_the_readme_and_no_link_is_dead() -> None:
    reached, following, dead = set(), [ROOT / "README.md"], []
    while following:
        page = following.pop()
        reached.add(page)
        found = links(page)
        dead += [
            f"{page.relative_to(ROOT)}: {link.relative_to(ROOT)}"
            for link in found
            if not link.exists()
        ]
        following += [
            link for link in found if link.suffix == ".md" and link.exists() and link not in reached
        ]
    assert dead == []
    assert {page.relative_to(ROOT) for page in (ROOT / "docs").rglob("*.md")} - {
        page.relative_to(ROOT) for page in reached
    } == set()


def test_every_file_that_a_page_names_exists() -> None:
    pages = [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "tests").rglob("README.md"),
    ]
    named = {
        (page.relative_to(ROOT), path) for page in pages for path in PATH.findall(page.read_text())
    }
    assert len(named) > 50
    gone = {
        (page, path)
        for page, path in named
        if not any(ROOT.glob(path)) and not any(ROOT.glob(f"agent/{path}"))
    }
    assert gone == set()


def table(page: str, head: str) -> str:
    """The rows under a table's head."""
    text = (ROOT / page).read_text()
    assert head in text
    return text.partition(head)[2].partition("\n\n")[0]


def test_the_rooms_of_the_design_exist() -> None:
    named = set(re.findall(r"`(\w+)/?`", table("docs/design.md", "| floor | packages |")))
    package = ROOT / "agent"
    folders = {p.parent.name for p in package.rglob("*.py") if p.parent != package}
    modules = {p.stem for p in package.rglob("*.py")}
    assert folders - named - {"gpu_gate"} == set()
    assert named - folders - modules == set()
    assert len(named) > 80


def test_the_phases_of_the_design_are_those_of_the_gate() -> None:
    """Row by row: which phase, and when."""
    head = "| phase | when: the first row that fits |"
    text = (ROOT / "docs/design.md").read_text()
    of_gpus, of_repairs = (part.partition("\n\n")[0] for part in text.split(head)[1:])
    for shown, rows in ((of_gpus, TABLE), (of_repairs, REPAIR_TABLE)):
        described = [tuple(re.findall(r"\| (.+?) (?=\|)", row)) for row in shown.splitlines()[2:]]
        assert described == [(row.phase.value, row.when) for row in rows]
    assert {row.phase for row in (*TABLE, *REPAIR_TABLE)} == set(Phase)


def moves_of_the_stories() -> dict[tuple[str, str], set[str]]:
    """Moves from phase to phase, with the transcripts that show them. A new agent begins anew."""
    phases = "|".join(phase.value for phase in Phase)
    line = re.compile(rf" *[\d.]+  (?:({phases}): |\* the agent dies)")
    moves: dict[tuple[str, str], set[str]] = {}
    for story in (ROOT / "tests/stories").glob("*.txt"):
        before: str | None = Phase.WAITING.value
        for found in filter(None, map(line.match, story.read_text().splitlines())):
            phase = found.group(1)
            if before and phase and phase != before:
                moves.setdefault((before, phase), set()).add(story.stem)
            before = phase
    return moves


def test_the_moves_of_the_design_are_those_of_the_stories() -> None:
    rows = table("docs/design.md", "| from | to | when, for example | story |").splitlines()[2:]
    described = [[cell.strip(" `") for cell in row.strip("|").split("|")] for row in rows]
    shown = moves_of_the_stories()
    assert sorted((before, after) for before, after, _, _ in described) == sorted(shown)
    assert [row for row in described if row[3] not in shown[row[0], row[1]]] == []
