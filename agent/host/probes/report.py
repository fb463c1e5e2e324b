"""The line a probe program printed, as a report. It is foreign until it was checked, part by
part."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from ...core.common import parse
from ...model.errors import BundleError
from ...model.gpu import GpuState
from ...model.snapshot import Gpu, NvmlError, ProbeEnd, ProbeReport
from ..codec import decode


def report_of(line: bytes, number: int, started_at: float, ended_at: float) -> ProbeReport:
    """The report in a probe's line; a line that is none is a broken probe, never an empty set of
    GPUs."""
    said = parse.json_object(line)
    if said is None or said.get("v") != 1:
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
            for e in said["errors"]
        )
        gpus = tuple(
            Gpu(
                str(g["uuid"]),
                _bus_id(g["bus_id"]),
                int(g["minor"]),
                str(g["name"]),
                _state(g.get("state")),
            )
            for g in said["gpus"]
        )
        whole = any(e.index < 0 for e in errors)
        return ProbeReport(
            number,
            started_at,
            ended_at,
            ProbeEnd.ERROR if whole else ProbeEnd.ANSWERED,
            gpus,
            errors,
            tuple(_bus_id(b) for b in said["excluded"]),
            str(said["driver_version"]),
            str(said["library_version"]),
            str(said["library"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as exc:
        return ProbeReport(
            number,
            started_at,
            ended_at,
            ProbeEnd.BROKEN,
            detail=f"the probe's line lacks a part: {exc!r}",
        )


def _state(said: Any) -> GpuState:
    """What was said in the right shape: a part that is not costs itself, never the GPU."""
    parts = {}
    for part in fields(GpuState):
        try:
            parts[part.name] = getattr(decode(GpuState, {part.name: said[part.name]}), part.name)
        except (BundleError, KeyError, TypeError):
            continue
    return GpuState(**parts)


def _bus_id(written: object) -> str:
    return parse.bus_id(str(written)) or str(written)
