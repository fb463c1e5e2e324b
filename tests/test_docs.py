"""Every page of docs/ can be reached from the README, and every link between pages leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\]\(([^)#\s]+)")


def links(page: Path) -> list[Path]:
    return [(page.parent / link).resolve() for link in LINK.findall(page.read_text()) if "://" not in link]


def test_every_page_is_reached_from_the_readme_and_no_link_is_dead() -> None:
    reached, following, dead = set(), [ROOT / "README.md"], []
    while following:
        page = following.pop()
        reached.add(page)
        found = links(page)
        dead += [f"{page.relative_to(ROOT)}: {link.relative_to(ROOT)}" for link in found if not link.exists()]
        following += [link for link in found if link.suffix == ".md" and link.exists() and link not in reached]
    assert dead == []
    assert {page.relative_to(ROOT) for page in (ROOT / "docs").rglob("*.md")} - \
        {page.relative_to(ROOT) for page in reached} == set()
