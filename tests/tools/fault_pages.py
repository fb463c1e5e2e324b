#!/usr/bin/env python3
"""Generate docs/faults from the rules in agent/core/*/faults.py: one page for each known fault, and
a list of them.

Run it after a change to a fault; tests/test_fault_pages.py compares.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from agent.core.common.known_fault import KnownFault  # noqa: E402
from agent.core.doctor.suspects import FAULTS  # noqa: E402
from agent.service.chain import LINKS  # noqa: E402

FOLDER = ROOT / "docs/faults"
HEAD = """# Known faults

`gpu-gate doctor` compares a node with these faults. A fault is *confirmed* if the doctor observed its own mark. It is
*consistent* if the observations merely fit; its page then shows what would decide. `CONTAINER` and `UNIT` stand for the
device plugin's container and unit: the doctor prints their names. `tests/tools/fault_pages.py` generates these pages
from `agent/core/`.

No remedy replaces a cloud vendor's component with upstream's, and none edits or deletes the kubelet's checkpoint.

| link | fault | description |
| --- | --- | --- |
"""


def page(fault: KnownFault) -> str:
    parts = [
        f"# {fault.id}",
        f"{fault.title}.",
        f"Link {fault.link}, {LINKS[fault.link]}. Source: {fault.source}.",
        f"**Confirmed** by: {fault.confirmed}.",
    ]
    if fault.consistent:
        parts.append(f"**Consistent with it**: {fault.consistent}.")
    if fault.decide:
        parts += [f"**What decides**: {fault.decide}.", _console(fault.capture)]
    parts += [f"**Remedy**: {fault.remedy.rstrip('.')}.", _console(fault.do)]
    if fault.is_not:
        parts.append(f"**It is not** {fault.is_not}.")
    return "\n\n".join(part for part in parts if part) + "\n"


def _console(command: str) -> str:
    named = command.replace("{plugin}", "CONTAINER").replace("{unit}", "UNIT")
    return f"```console\n# {named}\n```" if command else ""


def pages() -> dict[str, str]:
    """By file name."""
    rows = "".join(
        f"| {f.link} {LINKS[f.link]} | [{f.id}]({f.id}.md) | {f.title} |\n" for f in FAULTS
    )
    return {"README.md": HEAD + rows, **{f"{fault.id}.md": page(fault) for fault in FAULTS}}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    wanted = pages()
    for old in FOLDER.glob("*.md"):
        if old.name not in wanted:
            old.unlink()
    for name, text in wanted.items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    main()
