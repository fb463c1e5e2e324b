"""The results as rows: a table for people, and JSON."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
RESULTS = REPO / ".cache" / "bench"
HEAD = ("measured", "target", "gpu-gate", "alternative", "ratio", "verdict")


@dataclass
class Row:
    """One line of the table. `beside` has the alternatives by name; a ratio is theirs divided by
    ours."""

    what: str
    ours: float
    unit: str = "s"
    target: float | None = None
    beside: dict[str, float] = field(default_factory=dict)
    samples: list[float] = field(default_factory=list)
    note: str = ""

    @property
    def verdict(self) -> str:
        if self.target is None:
            return "-"
        if self.ours <= self.target:
            return "met"
        over = self.ours - self.target
        return (
            f"missed by {number(over)} {self.unit} ({over / self.target:.0%})"
            if self.target
            else "missed"
        )

    def cells(self) -> list[str]:
        def shown(value: float) -> str:
            return f"{number(value)} {self.unit}".rstrip()

        figure = shown(self.ours)
        if len(self.samples) > 1:
            figure += (
                f" ({number(min(self.samples))}-{number(max(self.samples))}, {len(self.samples)} x)"
            )
        beside = "; ".join(f"{name} {shown(value)}" for name, value in self.beside.items())
        ratios = [
            f"{value / self.ours:.2g}" if self.ours else "-" for value in self.beside.values()
        ]
        target = f"<= {shown(self.target)}" if self.target is not None else "-"
        return [self.what, target, figure, beside or "-", " / ".join(ratios) or "-", self.verdict]


def number(value: float) -> str:
    """Two decimals, three for small values."""
    if value == int(value):
        return str(int(value))
    return (
        f"{value:.3f}" if abs(value) < 1 else f"{value:.2f}" if abs(value) < 100 else f"{value:.0f}"
    )


def middle(values: Iterable[float]) -> float:
    return statistics.median(values)


def sampled(what: str, samples: Sequence[float], **more: Any) -> Row:
    """The row of a median."""
    return Row(what, middle(samples), samples=list(samples), **more)


def table(rows: Sequence[Row]) -> str:
    """Markdown, so that it can be put into docs/bench.md as it is."""
    cells = [list(HEAD), *(row.cells() for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(HEAD))]
    lines = [
        "| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |"
        for line in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
    notes = [f"{row.what}: {row.note}" for row in rows if row.note]
    return "\n".join([*lines, "", *notes])


def surroundings() -> dict[str, Any]:
    """What a figure means nothing without."""
    cpu = next(
        (
            x.partition(":")[2].strip()
            for x in Path("/proc/cpuinfo").read_text().splitlines()
            if x.startswith("model name")
        ),
        platform.machine(),
    )
    git = [
        "git",
        "-C",
        str(REPO),
        "-c",
        f"safe.directory={REPO}",
        "describe",
        "--always",
        "--dirty",
    ]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "commit": commit,
        "cpu": cpu,
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "load": [round(x, 2) for x in os.getloadavg()],
    }


def keep(rows: Sequence[Row], around: dict[str, Any]) -> Path:
    """The JSON of one run; latest.json is the last one."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    body = {
        "version": 1,
        "surroundings": around,
        "rows": [{**asdict(row), "verdict": row.verdict} for row in rows],
    }
    path = RESULTS / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    path.write_text(json.dumps(body, indent=1) + "\n")
    (RESULTS / "latest.json").write_text(path.read_text())
    return path
