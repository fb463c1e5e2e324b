"""/etc/gpu-gate/gpu-gate.conf and its drop-ins, in systemd's manner: [Gate] DeadlineSec=180s.

A typo must not hold a fleet: an unknown key warns with file and line, a bad value is reported and the default
(or, at a reload, the last good value) stays in force. `gpu-gate config --check` turns both into an exit status.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from fnmatch import translate
from pathlib import Path
from typing import Any

from ..core import parse
from ..model.settings import Settings

MAIN = "etc/gpu-gate/gpu-gate.conf"
WATCHDOG_S = 90.0
FILE_BYTES = 1 << 20
PROBLEMS = 100
"""So many are named."""
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(us|ms|seconds|second|sec|s|minutes|minute|min|m|hours|hour|hr|h|)\s*")
_UNITS = {"us": 1e-6, "ms": 1e-3, "": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_GPU_UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_UNIT_NAME = re.compile(r"[A-Za-z0-9:_.@\\-]{1,240}\.service")
_LISTEN = re.compile(r"(\[[0-9a-fA-F:.]+\]|[0-9A-Za-z.-]+):(\d{1,5})")


@dataclass(frozen=True, slots=True)
class Problem:
    """Something in the configuration that is not as it should be."""

    where: str
    "file:line"
    sentence: str
    is_error: bool
    "False: a warning"

    def __str__(self) -> str:
        return f"{self.where}: {self.sentence}"


@dataclass(frozen=True, slots=True)
class Config:
    """Effective settings, where each came from, and what was wrong."""

    settings: Settings
    origins: dict[str, str] = field(default_factory=dict)
    "by field name: file:line; absent for defaults"
    problems: tuple[Problem, ...] = ()


def load(root: str = "/", last_good: Settings | None = None) -> Config:
    """Read the configuration. Never raises: what cannot be used is a problem, and the last good value stays."""
    reading = _Reading()
    files, hidden = _files(Path(root))
    if hidden:
        reading.problem("/" + MAIN, f"could not be looked for ({hidden})", True)
    for path in files:
        shown = "/" + str(path.relative_to(root))
        try:
            with path.open("rb") as file:
                data = file.read(FILE_BYTES + 1)
        except OSError as exc:
            reading.problem(shown, f"could not be read ({exc.strerror}); its lines are not in force", True)
            reading.is_whole = False
            continue
        if len(data) > FILE_BYTES:
            reading.problem(shown, f"is larger than {FILE_BYTES >> 20} MiB: the rest is not read", True)
        _read(data[:FILE_BYTES].decode("utf-8-sig", "replace"), shown, reading)
    good = last_good or Settings()
    kept = {n: getattr(good, n) for n in _NAMES if n in reading.rejected or not reading.is_whole}
    settings, more = _contradictions(replace(Settings(), **{**kept, **reading.values}), reading.origins)
    return Config(settings, reading.origins, tuple(reading.problems[:PROBLEMS] + more))


@dataclass(slots=True)
class _Reading:
    """What has been read so far."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    rejected: set[str] = field(default_factory=set)
    problems: list[Problem] = field(default_factory=list)
    is_whole: bool = True

    def problem(self, where: str, sentence: str, is_error: bool) -> None:
        if len(self.problems) < PROBLEMS:
            self.problems.append(Problem(where, sentence, is_error))
        elif len(self.problems) == PROBLEMS:
            self.problems[-1] = Problem(where, "and more of the kind: is that a configuration file?", True)


def _files(root: Path) -> tuple[list[Path], str]:
    """The files there are, and why some could not be looked for."""
    main = root / MAIN
    try:
        dropins = sorted((root / (MAIN + ".d")).glob("*.conf"))
        return [path for path in (main, *dropins) if path.is_file()], ""
    except OSError as exc:
        return [], exc.strerror or str(exc)


def _read(text: str, shown: str, reading: _Reading) -> None:
    section = ""
    for number, raw in enumerate(text.splitlines(), 1):
        line, where = raw.strip(), f"{shown}:{number}"
        if not line or line[0] in "#;":
            continue
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
            if section not in _SECTIONS:
                reading.problem(where, f"unknown section [{section}]; known: "
                                + ", ".join(f"[{s}]" for s in _SECTIONS), False)
            continue
        key, equals, value = (part.strip() for part in line.partition("="))
        name = _KEYS.get((section, key))
        if not equals:
            reading.problem(where, f"{line[:40]!r} is no Key=Value", True)
        elif name is None:
            reading.problem(where, _unknown(section, key), False)
        else:
            _take(name, value, where, reading)


def _take(name: str, value: str, where: str, reading: _Reading) -> None:
    try:
        reading.values[name] = _EMPTY.get(name, _DEFAULTS[name]) if value == "" else _PARSERS[name](value)
    except ValueError as exc:
        reading.values.pop(name, None)
        reading.origins.pop(name, None)
        reading.rejected.add(name)
        reading.problem(where, f"{_spelled(name)}={value[:60]}: {exc}", True)
    else:
        reading.origins[name] = where
        reading.rejected.discard(name)


def _unknown(section: str, key: str) -> str:
    elsewhere = [s for s, k in _KEYS if k == key]
    if elsewhere:
        return f"{key}= belongs into [{elsewhere[0]}], not [{section}]; it is not in force"
    return f"unknown key {key}= in [{section}]; it is not in force (gpu-gate config lists the known ones)"


def _contradictions(settings: Settings, origins: dict[str, str]) -> tuple[Settings, list[Problem]]:
    """Values that are right one by one and wrong together. The safe one wins: nobody is held longer."""
    problems = []
    if settings.deadline_s > settings.hold_s:
        problems.append(Problem(
            origins.get("deadline_s") or origins.get("hold_s") or "defaults",
            f"DeadlineSec={settings.deadline_s:g}s is longer than HoldSec={settings.hold_s:g}s; "
            f"{settings.hold_s:g}s is in force", True))
        settings = replace(settings, deadline_s=settings.hold_s)
    if settings.heartbeat_s > WATCHDOG_S / 2:
        problems.append(Problem(
            origins.get("heartbeat_s", "defaults"),
            f"HeartbeatSec={settings.heartbeat_s:g}s would starve the watchdog ({WATCHDOG_S:g} s); "
            f"{WATCHDOG_S / 2:g}s is in force", True))
        settings = replace(settings, heartbeat_s=WATCHDOG_S / 2)
    return settings, problems


def parse_span(value: str) -> float:
    """Seconds in a span as systemd.time(7) writes it: "90", "3min", "1min 30s", "500ms"."""
    at, total = 0, 0.0
    while at < len(value):
        found = _SPAN.match(value, at)
        if not found or found.end() == at:
            raise ValueError("a time span looks like 180s, 3min or 1min 30s")
        unit = found.group(2)
        total += float(found.group(1)) * (_UNITS.get(unit) or _UNITS[unit[0]])
        at = found.end()
    return total


def _span(least: float, most: float) -> Callable[[str], float]:
    def parser(value: str) -> float:
        seconds = parse_span(value)
        if not least <= seconds <= most:
            raise ValueError(f"must lie between {least:g}s and {most:g}s")
        return seconds
    return parser


def _count(value: str) -> int:
    if not value.isdigit() or not 1 <= int(value) <= 20:
        raise ValueError("a whole number from 1 to 20")
    return int(value)


def _yes(value: str) -> bool:
    if value.lower() in ("yes", "true", "on", "1"):
        return True
    if value.lower() in ("no", "false", "off", "0"):
        return False
    raise ValueError("yes or no")


def _one_of(*words: str) -> Callable[[str], str]:
    def parser(value: str) -> str:
        if value not in words:
            raise ValueError(" or ".join(words))
        return value
    return parser


def _gpus(value: str) -> tuple[str, ...]:
    parts = tuple(value.replace(",", " ").split())
    if len(parts) == 1 and parts[0].isdigit() and int(parts[0]) <= 128:
        return parts
    if all(_GPU_UUID.fullmatch(p) for p in parts):
        return parts
    raise ValueError("a number of GPUs up to 128, or UUIDs as nvidia-smi -L prints them (GPU-…)")


def _bus_ids(value: str) -> tuple[str, ...]:
    ids = [parse.bus_id(p) for p in value.replace(",", " ").split()]
    if not all(ids):
        raise ValueError("PCI bus ids as lspci -D prints them (0000:07:00.0)")
    return tuple(i for i in ids if i)


def _patterns(value: str) -> tuple[str, ...]:
    parts = tuple(value.replace(",", " ").split())
    for part in parts:
        re.compile(translate(part))
    return parts


def _absolute(value: str) -> str:
    if not value.startswith("/") or "\0" in value:
        raise ValueError("an absolute path")
    return value.rstrip("/") or "/"


def _kubelet_unit(value: str) -> str:
    if value != "none" and not _UNIT_NAME.fullmatch(value):
        raise ValueError("a unit's full name (kubelet.service), or none")
    return value


def _unit(value: str) -> str:
    if not _UNIT_NAME.fullmatch(value):
        raise ValueError("a unit's full name, such as nvidia-device-plugin.service")
    return value


def _listen(value: str) -> str:
    found = _LISTEN.fullmatch(value)
    if not found or not 0 < int(found.group(2)) < 65536:
        raise ValueError("address:port, such as 127.0.0.1:9477, or empty for none")
    return value


_PARSERS: dict[str, Callable[[str], Any]] = {
    "expected_gpus": _gpus,
    "exclude_gpus": _bus_ids,
    "stable_probes": _count,
    "stable_interval_s": _span(0.1, 60),
    "deadline_s": _span(1, 1800),
    "on_deadline": _one_of("open", "hold"),
    "hold_s": _span(1, 1800),
    "control_plane_deadline_s": _span(1, 1800),
    "probe_timeout_s": _span(1, 600),
    "probe_interval_s": _span(10, 86400),
    "driver_root": _absolute,
    "load_driver": _one_of("no", "auto"),
    "additive": _yes,
    "kubelet_unit": _kubelet_unit,
    "resources": _patterns,
    "pod_resources_socket": _absolute,
    "device_plugins_dir": _absolute,
    "runtime_socket": _absolute,
    "plugin_containers": _patterns,
    "plugin_images": _patterns,
    "plugin_unit": _unit,
    "repair": _one_of("yes", "report"),
    "repair_partial": _yes,
    "register_within_s": _span(1, 3600),
    "verify_within_s": _span(5, 3600),
    "repairs_per_hour": _count,
    "repairs_per_boot": _count,
    "listen": _listen,
    "heartbeat_s": _span(1, 3600),
    "revalidate_s": _span(1, 600),
}
_DEFAULTS = {f.name: f.default for f in fields(Settings)}
_EMPTY: dict[str, Any] = {"listen": ""}
"""What an empty value means where it is not the default."""
_NAMES = tuple(_DEFAULTS)
_KEYS = {(f.metadata["section"], f.metadata["key"]): f.name for f in fields(Settings)}
_SECTIONS = tuple(dict.fromkeys(section for section, _ in _KEYS))


def _spelled(name: str) -> str:
    return str(next(key for (_, key), field_name in _KEYS.items() if field_name == name))


def written(value: Any) -> str:
    """A value as it would be written in the file."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}s"
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def rows(config: Config) -> list[tuple[str, str, str, str]]:
    """(section, key, value, where it came from) of every setting."""
    return [(f.metadata["section"], f.metadata["key"], written(getattr(config.settings, f.name)),
             config.origins.get(f.name, "default")) for f in fields(Settings)]
