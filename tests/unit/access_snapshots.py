"""A node with containers whose device access is watched."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from agent.core.access.containers import UNUSED_DEVICE
from agent.model.access import (
    AccessState,
    Allocation,
    CurrentAccess,
    Device,
    Process,
    ScopeDevices,
    Sighting,
    Verdict,
)
from agent.model.runtime import Runtime
from agent.model.snapshot import Snapshot

from .snapshots import NOW, UUIDS, container, sandbox, seen, snapshot

ID = "4f3c" * 16
UNIT = f"cri-containerd-{ID}.scope"
GPU0, GPU1, CTL, UVM = (Device("c", *n) for n in ((195, 0), (195, 1), (195, 255), (511, 0)))
GIVEN = (GPU0, CTL, UVM)
RULES = "programs 7,9"
LIST = (("/dev/char/1:3", "rwm"), ("char-*", "m"))


def process(**changes: Any) -> Process:
    return replace(
        Process(ID, 4711, "99", f"/kubepods.slice/pod1.slice/{UNIT}", None, RULES, True), **changes
    )


def verdict(allowed: tuple[Device, ...] = GIVEN, **changes: Any) -> Verdict:
    asked = sorted({GPU0, GPU1, CTL, UVM, Device("c", 511, 1), UNUSED_DEVICE})
    answers = tuple(
        (d, CurrentAccess.ALLOWED if d in allowed else CurrentAccess.DENIED) for d in asked
    )
    return replace(
        Verdict(
            ID,
            4711,
            "99",
            RULES,
            NOW - 3,
            "scratch",
            UNUSED_DEVICE in allowed,
            answers,
            asked_rules=RULES,
        ),
        **changes,
    )


def scope(
    allow: tuple[tuple[str, str], ...] = LIST, policy: str = "strict", **changes: Any
) -> ScopeDevices:
    return replace(ScopeDevices(UNIT, RULES, NOW - 3, policy, allow), **changes)


def sighting(device: Device = GPU0, **changes: Any) -> Sighting:
    return replace(Sighting(ID, device, NOW - 100), **changes)


def access_scene(
    processes: tuple[Process, ...] | None = None, gpus: tuple[str, ...] = UUIDS[:1], **state: Any
) -> Snapshot:
    """One workload with the first GPU allocated, and no plugin."""
    pod = sandbox("pod-2", name="train-0", namespace="ml", uid="77aa", labels={})
    box = container(ID, "pod-2", name="main", image="registry/train:1")
    parts = {"verdicts": (verdict(),), "scopes": (scope(),), **state}
    rows = (Allocation("ml", "train-0", "main", "nvidia.com/gpu", gpus),) if gpus else ()
    of = (process(),) if processes is None else processes
    return snapshot(
        runtime=seen(Runtime((pod,), (box,))),
        plugins=(),
        allocations=seen(rows),
        processes=seen(of),
        access=seen(AccessState(**parts)),
    )
