"""Every page of docs/ can be reached from the README, and what pages point to is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\]\(([^)#\s]+)")
PATH = re.compile(
    r"`((?:agent|core|node|wire|app|model|barrier|tests|packaging|systemd)/[\w./*-]+)`"
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


def test_every_file_of_ours_that_a_page_names_is_there() -> None:
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


def test_the_rooms_of_the_design_are_rooms() -> None:
    table = (
        (ROOT / "docs/design.md").read_text().partition("| floor | rooms |")[2].partition("\n\n")[0]
    )
    rooms = {
        path.stem for path in (ROOT / "agent").rglob("*") if path.is_dir() or path.suffix == ".py"
    }
    words = set(re.findall(r"`(\w+)/?`", table))
    assert len(words) > 80
    assert words - rooms == {"diagnose"}
