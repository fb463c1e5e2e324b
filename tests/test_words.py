"""What users read is in the field's words: no name of a part or a thing that only we use.

Users read the sentences in the agent's strings, the pages of docs/ (decision records and the pages
made from the agent's strings aside), the manual, the web page, and the comments of configuration
and unit files.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
WHICH = r"(?:an?|the|this|that|its|each|every|one|no|another|any|last|next|first|second|same)"
PRIVATE = {
    "hand: action, executor": rf"\b{WHICH} hands?\b(?! over| back)",
    "mend: repair": r"\bmend(?:s|ed|ing|ers?)?\b",
    "nobody: none, no unit, no process": r"\bnobody\b",
    "kin: related": r"\bkin\b",
    "look: snapshot, check": rf"\b{WHICH} look\b|\b(?:two|three|few|many|both|between|of|these) looks\b",
    "HELD: BLOCKED": r"\bHELD\b",
    "printed junk: returned malformed output": r"\bprinted junk\b",
    "the word of: what it reports": r"\bthe words? of\b",
    "is told: is reported, is logged": r"\b(?:is|are) told\b",
}


def sentences(source: str) -> Iterator[str]:
    """The strings of a module that may be printed: no docstring, and more than a name."""
    tree = ast.parse(source)
    silent = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in silent
        ):
            if " " in node.value.strip():
                yield node.value


def comments(text: str) -> Iterator[str]:
    """Comments of a configuration or unit file, and what systemd prints of it."""
    for line in text.splitlines():
        if line.startswith(("#", ";", "Description=")):
            yield line


def read_by_users() -> dict[str, str]:
    """File → what users read of it."""
    found: dict[str, Iterator[str]] = {}
    for path in (ROOT / "agent").rglob("*.py"):
        found[path.relative_to(ROOT).as_posix()] = sentences(path.read_text())
    whole = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs/man").iterdir()]
    for path in (*whole, ROOT / "agent/service/page/page.html"):
        found[path.relative_to(ROOT).as_posix()] = iter((path.read_text(),))
    for folder in ("packaging/deb/conf", "systemd"):
        for path in (ROOT / folder).rglob("*"):
            if path.is_file():
                found[path.relative_to(ROOT).as_posix()] = comments(path.read_text())
    return {name: "\n".join(parts) for name, parts in found.items()}


def private_words(text: str) -> list[str]:
    plain = re.sub(r"\s+", " ", text)
    return [
        f"“…{plain[max(0, hit.start() - 30) : hit.end() + 20]}…” ({instead})"
        for instead, form in PRIVATE.items()
        for hit in re.finditer(form, plain, 0 if form == r"\bHELD\b" else re.IGNORECASE)
    ]


READ = read_by_users()


@pytest.mark.parametrize("name", sorted(READ))
def test_users_read_the_fields_words(name: str) -> None:
    assert not private_words(READ[name])


@pytest.mark.parametrize(
    ("text", "is_private"),
    [
        ("a hand did not take", True),
        ("made by hand", False),
        ("on the other hand", False),
        ("the next look", True),
        ("look at the log", False),
        ("it looks like EPERM", False),
        ("the phase is HELD", True),
        ("the kubelet is held back", False),
        ("the mender is off", True),
        ("kind of plugin", False),
        ("what the\nuser is told", True),
    ],
)
def test_what_counts(text: str, is_private: bool) -> None:
    assert bool(private_words(text)) is is_private
