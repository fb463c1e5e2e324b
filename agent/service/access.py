"""`gpu-gate access`: who holds GPUs, may they open them now, and after the next daemon-reload, as
the agent sees it."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

from ..model.access import CurrentAccess, GpuContainer, ReloadRisk
from ..model.settings import Settings
from . import ask
from .chain import printable

HEAD = ("POD", "CONTAINER", "GPUS", "NOW", "AFTER RELOAD", "WHY")
WHY_WIDTH = 60


def rows(holders: Sequence[GpuContainer], now: float) -> list[dict[str, Any]]:
    """One object a container, for /status and --json. Ages are seconds."""
    return [_row(holder, now) for holder in holders]


def _row(holder: GpuContainer, now: float) -> dict[str, Any]:
    process = holder.process
    return {
        "namespace": holder.namespace,
        "pod": holder.pod,
        "pod_uid": holder.pod_uid,
        "container": holder.name,
        "id": holder.id,
        "pid": process.pid if process else 0,
        "cgroup_driver": holder.driver.value,
        "cgroup": (process.cgroup_v2 or process.cgroup_v1 or "") if process else "",
        "unit": holder.unit,
        "is_plugin": holder.is_plugin,
        "opens_everything": holder.all_devices,
        "gpus": list(holder.gpus),
        "now": now_of(holder).value,
        "after_reload": after_of(holder),
        "why": why_of(holder),
        "loss": holder.loss.value if holder.loss else None,
        "cure": holder.cure,
        "how": holder.verdict.how if holder.verdict else "",
        "age_s": round(now - holder.verdict.at, 3) if holder.verdict else None,
        "devices": [
            {
                "device": d.device.word,
                "path": d.path,
                "given": [c.value for c in d.claims],
                "now": d.access.value,
                "at_risk": d.risk.value,
                "detail": d.detail,
                "denied_for_s": round(now - d.denied_since, 1) if d.denied_since else None,
            }
            for d in holder.devices
        ],
    }


def now_of(holder: GpuContainer) -> CurrentAccess:
    """The worst of its devices; what is denied counts before what is not known."""
    seen = {d.access for d in holder.devices}
    return next(
        (now for now in (CurrentAccess.DENIED, CurrentAccess.UNKNOWN) if now in seen),
        CurrentAccess.ALLOWED,
    )


def after_of(holder: GpuContainer) -> str:
    """allowed, lost, denied or unknown."""
    if now_of(holder) is CurrentAccess.DENIED:
        return "denied"
    risks = {d.risk for d in holder.devices}
    return (
        "lost"
        if ReloadRisk.YES in risks
        else "unknown"
        if ReloadRisk.UNKNOWN in risks
        else now_of(holder).value
    )


def why_of(holder: GpuContainer) -> str:
    denied = ", ".join(d.name for d in holder.denied)
    if denied:
        return f"{denied}: {holder.loss_why}"
    unknown = next((d.detail for d in holder.devices if d.access is CurrentAccess.UNKNOWN), "")
    return unknown or holder.risk_why


def run(settings: Settings, as_json: bool) -> int:
    """0: all may open what they were given; 1: one may not; 3: no agent answers; 4: of one it is
    not known."""
    try:
        status = ask.status(listen=settings.listen)
    except ask.NoAgent as exc:
        print(f"gpu-gate: {exc}", file=sys.stderr)
        return 3
    found = [row for row in status.get("access", ()) if isinstance(row, dict)]
    print(
        json.dumps({"version": 1, "containers": found}, indent=1)
        if as_json
        else "\n".join(table(found))
    )
    now = {row.get("now") for row in found}
    return 1 if "denied" in now else 4 if now - {"allowed"} else 0


def table(found: Sequence[dict[str, Any]]) -> list[str]:
    """One row a container, its reason wrapped in the last column, then what helps for good."""
    if not found:
        return ["No running container holds GPUs."]
    cells = [HEAD, *map(_cells, found)]
    widths = [max(len(row[n]) for row in cells) for n in range(len(HEAD) - 1)]
    lines: list[str] = []
    for row in cells:
        columns = zip(row, widths, strict=False)
        head = "  ".join(cell.ljust(width) for cell, width in columns) + "  "
        why = _wrap(row[-1], WHY_WIDTH) or [""]
        lines += [(head + why[0]).rstrip(), *(" " * len(head) + part for part in why[1:])]
    cures = dict.fromkeys(printable(str(row["cure"])) for row in found if row.get("cure"))
    for cure in cures:
        lines += ["", *_wrap(f"For good: {cure}.", 100)]
    return lines


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    cells = (
        f"{row.get('namespace')}/{row.get('pod')}",
        row.get("container"),
        len(row.get("gpus") or ()) or "-",
        _shouted(row.get("now")),
        _shouted(row.get("after_reload")),
        row.get("why", ""),
    )
    return tuple(printable(str(cell)) for cell in cells)


def _shouted(access: object) -> str:
    """What is not allowed stands out."""
    return "allowed" if access == "allowed" else str(access).upper()


def _wrap(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
