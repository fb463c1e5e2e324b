"""The Chinese pages have the same faults, commands and settings as the English ones."""

from __future__ import annotations

import re
from pathlib import Path

from agent.core.doctor.suspects import FAULTS
from agent.model.settings import Settings
from tests.tools.fault_pages import page

ROOT = Path(__file__).resolve().parents[1]
FAULTS_PAGE = ROOT / "docs/zh/faults.md"
HAN = re.compile("[\u4e00-\u9fff]")
BLOCK = re.compile(r"```(?:console)?\n(.*?)```", re.S)


def commands(text: str) -> list[str]:
    """The commands of the blocks, without their comments."""
    lines = "\n".join(BLOCK.findall(text)).splitlines()
    return [re.split(r"\s{2,}#", line)[0].strip() for line in lines if line.startswith("# ")]


def test_every_fault_has_its_entry_with_the_same_commands() -> None:
    head, *entries = FAULTS_PAGE.read_text().split("\n## ")
    said = dict(entry.split("\n", 1) for entry in entries)
    assert list(said) == [fault.id for fault in FAULTS]
    for fault in FAULTS:
        body = said[fault.id]
        assert f"](#{fault.id.lower()})" in head and f"链路 {fault.link}（" in body, fault.id
        assert len(HAN.findall(body)) > 20, fault.id
        assert commands(body) == commands(page(fault)), fault.id
        assert ("**吻合**" in body) == bool(fault.consistent), fault.id


def test_the_readme_has_the_same_sections_and_commands() -> None:
    english, chinese = (ROOT / "README.md").read_text(), (ROOT / "README.zh-CN.md").read_text()
    assert len(re.findall("^## ", english, re.M)) == len(re.findall("^## ", chinese, re.M))
    assert [c for c in commands(english) if "<" not in c] == [
        c for c in commands(chinese) if "<" not in c
    ]
    for table in re.findall(r"^\| .*$", english, re.M):
        for word in re.findall(r"`([^`]+)`", table):
            assert word in chinese, word


def test_settings_and_links_of_the_guide_exist() -> None:
    for file in (ROOT / "README.zh-CN.md", *(ROOT / "docs/zh").glob("*.md")):
        text = file.read_text()
        for link in re.findall(r"\]\(([^)#]+)\)", text):
            assert (file.parent / link).resolve().exists(), link
        keys = {f.metadata.get("key") for f in Settings.__dataclass_fields__.values()}
        for key in re.findall(r"^\| `\[\w+\] (\w+)=", text, re.M):
            assert key in keys, key
