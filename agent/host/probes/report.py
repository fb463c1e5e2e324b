"""The line of a probe program as a report. Every part is checked."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from ...core.common import parse
from ...model.errors import BundleError
from ...model.gpu import GpuState
from ...model.snapshot import Gpu, NvmlError, ProbeEnd, ProbeReport
from ..codec import decode


def report_of(line: bytes, number: int, started_at: float, ended_at: float) -> ProbeReport:
    """The report in a probe's line. A malformed line means a broken probe, never an empty set of
    GPUs."""
    found = parse.json_object(line)
    if found is None or found.get("v") != 1:
        return ProbeReport(
            number,
            started_at,
            ended_at,
            ProbeEnd.BROKEN,
            detail=f"the probe returned malformed output: {line[:80]!r}",
        )
    try:
        errors = tuple(
            NvmlError(int(e["code"]), str(e["call"]), int(e["index"]), _bus_id(e.get("bus_id", "")))
            for e in found["errors"]
        )
        gpus = tuple(
            Gpu(
                str(g["uuid"]),
                _bus_id(g["bus_id"]),
                int(g["minor"]),
                str(g["name"]),
                _state(g.get("state")),
            )
            for g in found["gpus"]
        )
        whole = any(e.index < 0 for e in errors)
        return ProbeReport(
            number,
            started_at,
            ended_at,
            ProbeEnd.ERROR if whole else ProbeEnd.ANSWERED,
            gpus,
            errors,
            tuple(_bus_id(b) for b in found["excluded"]),
            str(found["driver_version"]),
            str(found["library_version"]),
            str(found["library"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as exc:
        return ProbeReport(
            number,
            started_at,
            ended_at,
            ProbeEnd.BROKEN,
            detail=f"the probe's line lacks a part: {exc!r}",
        )


def _state(found: Any) -> GpuState:
    """The parts of a GPU's state that are well-formed. A malformed part is left out; the GPU
    stays."""
    parts = {}
    for part in fields(GpuState):
        try:
            parts[part.name] = getattr(decode(GpuState, {part.name: found[part.name]}), part.name)
        except (BundleError, KeyError, TypeError):
            continue
    return GpuState(**parts)


def _bus_id(written: object) -> str:
    return parse.bus_id(str(written)) or str(written)
