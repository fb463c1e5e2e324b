"""Field cases as text: cases/ID.txt is one case, its sections are nodes, each with the expected
result.

    A10 Fallen off the bus while running          id and title
    == the last GPU of eight                       a scene
    with n: 7 | 0                                  it is tried once for each of these; {n} stands
    for it
    nvml lost {n}                                  how this node differs from a healthy one:
    casenode.py
    says 5 NvmlGpuIsLost                           the first broken link and its reason; "says -":
    nothing is broken
    cause FellOffBus consistent                    the known fault that explains it, and how sure
    that is
    also AllocatableButLost confirmed              another known fault that is shown
    never ContainerToolkit251                      a fault that is not shown
    remedy reboot                                  words that the remedy or the next step holds
    told 0000:bd:00.0                              words that the doctor's page holds
    mender none                                    what the mender does while the node stays as it
    is

BUS3, SLOT3, UUID3 are GPU 3's bus id, the same without its function, and its UUID.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .node import BUSES, UUIDS

FOLDER = Path(__file__).resolve().parent / "cases"
EXPECTED = ("says", "cause", "also", "never", "remedy", "told", "mender")
_NAMES = re.compile(r"\b(BUS|SLOT|UUID)(\d)\b")


@dataclass
class CaseScene:
    """One node of one case."""

    case: str
    name: str
    node: list[tuple[str, str]] = field(default_factory=list)
    expected: list[tuple[str, str]] = field(default_factory=list)

    def said(self, word: str) -> list[str]:
        return [rest for key, rest in self.expected if key == word]


def cases() -> dict[str, str]:
    """Title by id."""
    heads = (path.read_text().split("\n", 1)[0].partition(" ") for path in FOLDER.glob("*.txt"))
    return {case: title for case, _, title in heads}


def snapshots() -> Iterator[CaseScene]:
    """Every scene of every case, each once for every row of its `with` lines."""
    for path in sorted(FOLDER.glob("*.txt")):
        case = path.stem
        for part in re.split(r"^== ", path.read_text(), flags=re.M)[1:]:
            name, _, body = part.partition("\n")
            yield from _rows(case, name.strip(), body)


def _rows(case: str, name: str, body: str) -> Iterator[CaseScene]:
    lines = [
        line.strip() for line in body.splitlines() if line.strip() and not line.startswith("#")
    ]
    columns = {
        head.split()[1]: [cell.strip() for cell in cells.split(" | ")]
        for line in lines
        if line.startswith("with ")
        for head, _, cells in [line.partition(":")]
    }
    count = max((len(cells) for cells in columns.values()), default=1)
    assert all(len(cells) == count for cells in columns.values()), (
        f"{case} {name}: rows of unequal length"
    )
    for row in range(count):
        snapshot = CaseScene(case, f"{name} ({row + 1})" if count > 1 else name)
        for line in lines:
            for key, cells in columns.items():
                line = line.replace("{" + key + "}", cells[row])
            word, _, rest = _NAMES.sub(_named, line).partition(" ")
            if word != "with":
                (snapshot.expected if word in EXPECTED else snapshot.node).append(
                    (word, rest.strip())
                )
        yield snapshot


def _named(found: re.Match[str]) -> str:
    number = int(found.group(2))
    return {"BUS": BUSES[number], "SLOT": BUSES[number][:-2], "UUID": UUIDS[number]}[found.group(1)]
