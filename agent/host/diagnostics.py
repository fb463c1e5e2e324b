"""What only the doctor asks of a live node. Each question is a program with a deadline, so that
none can block it."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from ..core.common import parse
from ..core.doctor import journal
from ..model.diagnostics import CudaReport, JournalLine, Version
from ..model.errors import ErrorKind
from ..model.reading import Reading, Refusal, Seen, Why
from ..model.snapshot import Clock
from ..transport.clock import boottime
from ..transport.process import Outcome, run_once
from .journal import entries
from .live import LiveHost, clock_now
from .probes.program import find_library

JOURNAL_WITHIN_S = VERSIONS_WITHIN_S = 5.0
"""Nodes that need a doctor are busy."""
JOURNAL_LINES, JOURNAL_BYTES = 3000, 8 << 20
"""What is read of each window; lines that are not about GPUs are dropped at once."""
KEPT = 400
BOOT_S, RECENT_S = 900.0, 3600.0
"""The two windows, in seconds: the beginning of the boot, and the most recent time."""
OPERATORS_TOOLKIT = "/usr/local/nvidia/toolkit"
"""Where the GPU Operator's toolkit container installs its programs."""
CUDA_PROGRAM = Path(__file__).with_name("probes") / "cuda_probe.py"
LIBCUDA = "libcuda.so.1"
_CLOSED = ("insufficient permissions", "Permission denied")


class LiveDiagnosticHost(LiveHost):
    """The node that the agent runs on, with the doctor's questions."""

    cuda_report: Reading[CudaReport] = Refusal(
        Why.NOT_ASKED, "only gpu-gate doctor --deep asks CUDA"
    )

    async def journal(self, units: Sequence[str]) -> Reading[tuple[JournalLine, ...]]:
        clock = clock_now()
        booted, now = clock.realtime - clock.boottime, clock.realtime + 1
        windows = (
            [(booted, booted + BOOT_S), (now - RECENT_S, now)]
            if clock.boottime > RECENT_S
            else [(booted, now)]
        )
        parts = await asyncio.gather(
            *(_window(units, clock, since, until) for since, until in windows)
        )
        found: set[JournalLine] = set()
        for part in parts:
            if isinstance(part, Refusal):
                return part
            found.update(part)
        return Seen(tuple(sorted(found, key=lambda line: line.at)[-KEPT:]), clock.boottime)

    async def versions(self, programs: Sequence[str]) -> tuple[Version, ...]:
        return tuple(await asyncio.gather(*map(_version, programs)))

    async def cuda(self) -> Reading[CudaReport]:
        return self.cuda_report


async def _window(
    units: Sequence[str], clock: Clock, since: float, until: float
) -> list[JournalLine] | Refusal:
    matches = ["_PID=1", "+", "_TRANSPORT=kernel"]
    for unit in units:
        matches += ["+", f"_SYSTEMD_UNIT={unit}"]
    ended = await entries(
        ["MESSAGE", "_SYSTEMD_UNIT", "_TRANSPORT", "_PID"],
        matches,
        max(since, 0.0),
        until,
        JOURNAL_LINES,
        JOURNAL_WITHIN_S,
        JOURNAL_BYTES,
    )
    refused = _refused(ended, "the journal")
    if refused is not None:
        return refused
    return [
        line
        for row in ended.out.splitlines()
        if (line := line_of(row, clock)) and journal.word(line)
    ]


def line_of(row: bytes, clock: Clock) -> JournalLine | None:
    """One entry of `journalctl -o json`; None for one without a text message (a binary message is a
    list of numbers)."""
    entry = parse.json_object(row) or {}
    text, stamp = entry.get("MESSAGE"), str(entry.get("__MONOTONIC_TIMESTAMP", ""))
    if not isinstance(text, str) or not stamp.isdecimal():
        return None
    source = str(entry.get("_SYSTEMD_UNIT", ""))
    if entry.get("_TRANSPORT") == "kernel":
        source = journal.KERNEL
    elif entry.get("_PID") == "1":
        source = journal.SYSTEMD
    at = int(stamp[:18]) / 1e6 + clock.boottime - clock.monotonic
    return JournalLine(round(at, 3), source, journal.cut(text))


async def _version(program: str) -> Version:
    path = shutil.which(program) or shutil.which(program, path=OPERATORS_TOOLKIT)
    if path is None:
        return Version(program, Refusal(Why.MISSING, "there is no program of that name in PATH"))
    ended = await run_once([path, "--version"], VERSIONS_WITHIN_S)
    refused = _refused(ended, path)
    if refused is not None:
        return Version(program, refused)
    lines = parse.text(ended.out).splitlines() or [""]
    return Version(program, Seen(lines[0].strip()[:120], boottime()))


def _refused(ended: Outcome, what: str) -> Refusal | None:
    """Why a program has no result; None where it has one."""
    if ended.kind is ErrorKind.NOT_STARTED:
        return Refusal(Why.MISSING, ended.sentence)
    if ended.kind is not None:
        why = Why.TIMED_OUT if ended.kind is ErrorKind.TIMED_OUT else Why.FAILED
        return Refusal(why, f"{what}: {ended.sentence}")
    if ended.code != 0:
        closed = any(text in ended.err for text in _CLOSED)
        last = (ended.err.splitlines() or [f"exit status {ended.code}"])[-1]
        return Refusal(Why.NOT_PERMITTED if closed else Why.FAILED, f"{what}: {last[:160]}")
    return None


async def ask_cuda(driver_root: str, within_s: float) -> Reading[CudaReport]:
    """Call cuInit and count the devices in a program of its own, because cuInit opens every GPU and
    may hang in the driver."""
    library = find_library(driver_root, LIBCUDA)
    argv = [sys.executable, "-I", str(CUDA_PROGRAM), *([library] if library else [])]
    # CUDA_VISIBLE_DEVICES of the caller's shell must not hide GPUs of the node.
    env = {k: v for k, v in os.environ.items() if not k.startswith("CUDA_")}
    ended = await run_once(argv, within_s, env=env)
    refused = _refused(ended, "the CUDA probe")
    if refused is not None:
        return refused
    report = parse.json_object(ended.out) or {}
    if report.get("v") != 1:
        return Refusal(Why.FAILED, f"the CUDA probe returned malformed output: {ended.out[:60]!r}")
    if report.get("problem"):
        return Refusal(Why.FAILED, str(report["problem"])[:200])
    return Seen(
        CudaReport(
            str(report.get("call", ""))[:40],
            int(parse.number(report.get("code"))),
            int(parse.number(report.get("count"))),
            str(report.get("library", ""))[:200],
        ),
        boottime(),
    )
