"""The script that the stand-in library reads (its grammar: nvml/libnvidia-ml.c), and how commands
change it."""

from __future__ import annotations

import os
from pathlib import Path

from sim.clock import boottime

HARDWARE = ("driver", "nvml", "cuda", "gpu", "loaded")
"""Statements that describe what is there; all others are faults and go with ``simgpu nvml ok``."""


def read(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except FileNotFoundError:
        return []


def write(path: Path, lines: list[str]) -> None:
    """Atomic: a reader sees the old script or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_text("".join(f"{line}\n" for line in lines))
    os.replace(new, path)


def hardware(gpus: list[dict], driver_version: str, is_loaded: bool) -> list[str]:
    lines = [
        f"driver {driver_version}",
        f"nvml 12.{driver_version}",
        f"loaded {'yes' if is_loaded else 'no'}",
    ]
    return lines + [
        f"gpu {g['index']} uuid={g['uuid']} bus={g['bus']} minor={g['minor']} "
        f"serial={g['serial']} name={g['name']}"
        for g in gpus
    ]


def set_hardware(path: Path, lines: list[str]) -> None:
    write(path, lines + [line for line in read(path) if line.split()[0] not in HARDWARE])


def statement(words: list[str]) -> str:
    """One line from the words of ``simgpu nvml``; raises ValueError.

    init=999 count=15 gpu=3 error=15 delay=500 show=7 omit=3 uuid=3:GPU-x shuffle shuffle=2
    hang=init deaf xid=79 check-devices=off persistence=off fabric=2:0 mig=on pending=off
    mig-device=0 uuid=MIG-x profile=1g.10gb gi=1 remap pending=1 ecc pending=0 recovery=1
    virtualization=2 refuse=mig error=3, each with gpu=3 if it is about one; for=SECONDS or
    until=BOOTTIME, from=BOOTTIME.
    """
    given = dict(word.partition("=")[::2] for word in words)
    tail = ""
    if "for" in given:
        tail += f" until={boottime() + float(given.pop('for')):.3f}"
    if "in" in given:
        tail += f" from={boottime() + float(given.pop('in')):.3f}"
    for bound in ("until", "from"):
        if bound in given:
            tail += f" {bound}={given.pop(bound)}"
    gpu = f" gpu={given.pop('gpu')}" if "gpu" in given else ""
    verb, value = next(iter(given.items())) if given else ("", "")
    rest = "".join(f" {key}={val}" if val else f" {key}" for key, val in list(given.items())[1:])
    match verb:
        case "init" | "count":
            return f"{verb} error={value or 0}{rest}{tail}"
        case "init-delay":
            return f"init delay={value}{tail}"
        case "error" | "delay":
            return f"handle{gpu} {verb}={value}{rest}{tail}"
        case "hang":
            return f"hang {value}{gpu}{rest}{tail}"
        case "uuid" | "fabric":
            return f"{verb} {value.replace(':', ' ')}{gpu}{tail}"
        case "mig" | "mig-device" | "remap" | "ecc" | "recovery" | "virtualization" | "refuse":
            return " ".join(f"{verb} {value}{gpu}{rest}{tail}".split())
        case "xid":
            return f"xid {value}{gpu or ' gpu=0'} at={boottime():.3f}"
        case "show" | "omit" | "shuffle" | "check-devices" | "persistence":
            return f"{verb} {value}{tail}".strip()
    raise ValueError(f"“{' '.join(words)}” is nothing that the library can do; see simgpu --help.")


def change(path: Path, words: list[str]) -> None:
    """``ok`` takes all faults away; ``reset`` first, then a fault, replaces them; else the fault is
    added."""
    lines = read(path)
    if words[:1] in (["ok"], ["reset"]):
        lines, words = [line for line in lines if line.split()[0] in HARDWARE], words[1:]
    write(path, lines + ([statement(words)] if words else []))
