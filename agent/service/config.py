"""/etc/gpu-gate/gpu-gate.conf and its drop-ins, in systemd's format: [Gate] DeadlineSec=180s.

A typo must not stop a fleet: an unknown key is a warning with file and line; an invalid value is an
error, and the default (or, at a reload, the last good value) stays in force. `gpu-gate config
--check` turns both into an exit status.
"""

from __future__ import annotations

import errno
import glob
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ..core.common.layouts import manifest_folders
from ..core.common.paths import MANIFEST_NAME
from ..model.settings import Settings
from .setting_values import PARSERS

MAIN = "etc/gpu-gate/gpu-gate.conf"
TMPFILES = ("etc/tmpfiles.d", "run/tmpfiles.d", "usr/local/lib/tmpfiles.d", "usr/lib/tmpfiles.d")
WATCHDOG_S = 90.0
FILE_BYTES = 1 << 20
PROBLEMS = 100
"""At most so many are kept."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A warning or an error in the configuration."""

    where: str
    """file:line"""
    sentence: str
    is_error: bool
    """False: a warning."""

    def __str__(self) -> str:
        return f"{self.where}: {self.sentence}"


@dataclass(frozen=True, slots=True)
class Config:
    """The settings in force, the source of each, and the problems."""

    settings: Settings
    origins: dict[str, str] = field(default_factory=dict)
    """By field name: file:line; absent for defaults."""
    problems: tuple[Problem, ...] = ()


def load(root: str = "/", last_good: Settings | None = None) -> Config:
    """Read the configuration. Never raises: an invalid value becomes a problem, and the last good
    value stays in force."""
    reading = _Reading()
    for path in _files(root):
        shown = path.removeprefix(root.rstrip("/"))
        try:
            with open(path, "rb") as file:
                data = file.read(FILE_BYTES + 1)
        except OSError as exc:
            reading.problem(
                shown, f"could not be read ({exc.strerror}); its lines are not in force", True
            )
            reading.is_whole = False
            continue
        if len(data) > FILE_BYTES:
            reading.problem(
                shown, f"is larger than {FILE_BYTES >> 20} MiB: the rest is not read", True
            )
        _read(data[:FILE_BYTES].decode("utf-8-sig", "replace"), shown, reading)
    good = last_good or Settings()
    kept = {n: getattr(good, n) for n in _NAMES if n in reading.rejected or not reading.is_whole}
    settings, more = _contradictions(
        replace(Settings(), **{**kept, **reading.values}), reading.origins
    )
    more += [
        Problem(reading.origins.get("launch", "defaults"), sentence, True)
        for sentence in _launch_problems(settings, root)
    ]
    return Config(settings, reading.origins, tuple(reading.problems[:PROBLEMS] + more))


@dataclass(slots=True)
class _Reading:
    """What has been parsed so far."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    rejected: set[str] = field(default_factory=set)
    problems: list[Problem] = field(default_factory=list)
    is_whole: bool = True

    def problem(self, where: str, sentence: str, is_error: bool) -> None:
        if len(self.problems) < PROBLEMS:
            self.problems.append(Problem(where, sentence, is_error))
        elif len(self.problems) == PROBLEMS:
            self.problems[-1] = Problem(
                where, "and more problems: is that a configuration file?", True
            )


def _files(root: str) -> list[str]:
    """The existing files, lowest priority first."""
    main = os.path.join(root, MAIN)
    return [
        path
        for path in (main, *sorted(glob.glob(f"{glob.escape(main)}.d/*.conf")))
        if _is_file(path)
    ]


def _is_file(path: str) -> bool:
    """True also if stat is not permitted: reading the file then gives the reason."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except OSError as exc:
        return exc.errno not in (errno.ENOENT, errno.ENOTDIR)


def _read(text: str, shown: str, reading: _Reading) -> None:
    section = ""
    for number, raw in enumerate(text.splitlines(), 1):
        line, where = raw.strip(), f"{shown}:{number}"
        if not line or line[0] in "#;":
            continue
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
            if section not in _SECTIONS:
                reading.problem(
                    where,
                    f"unknown section [{section}]; known: "
                    + ", ".join(f"[{s}]" for s in _SECTIONS),
                    False,
                )
            continue
        key, equals, value = (part.strip() for part in line.partition("="))
        name = _KEYS.get((section, key))
        if not equals:
            reading.problem(where, f"{line[:40]!r} is not Key=Value", True)
        elif name is None:
            reading.problem(where, _unknown(section, key), False)
        else:
            _take(name, value, where, reading)


def _take(name: str, value: str, where: str, reading: _Reading) -> None:
    try:
        reading.values[name] = (
            _EMPTY.get(name, _DEFAULTS[name]) if value == "" else PARSERS[name](value)
        )
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
    return (
        f"unknown key {key}= in [{section}]; it is not in force (gpu-gate config lists "
        "the known ones)"
    )


def _contradictions(settings: Settings, origins: dict[str, str]) -> tuple[Settings, list[Problem]]:
    """Find values that contradict each other. The safe one stays in force: no kubelet waits longer
    for it."""
    problems = []
    if settings.deadline_s > settings.hold_s:
        problems.append(
            Problem(
                origins.get("deadline_s") or origins.get("hold_s") or "defaults",
                f"DeadlineSec={settings.deadline_s:g}s is longer than "
                f"HoldSec={settings.hold_s:g}s; "
                f"{settings.hold_s:g}s is in force",
                True,
            )
        )
        settings = replace(settings, deadline_s=settings.hold_s)
    if settings.heartbeat_s > WATCHDOG_S / 2:
        problems.append(
            Problem(
                origins.get("heartbeat_s", "defaults"),
                f"HeartbeatSec={settings.heartbeat_s:g}s would starve the watchdog "
                f"({WATCHDOG_S:g} s); "
                f"{WATCHDOG_S / 2:g}s is in force",
                True,
            )
        )
        settings = replace(settings, heartbeat_s=WATCHDOG_S / 2)
    return settings, problems


def _launch_problems(settings: Settings, root: str) -> Iterator[str]:
    """What the node lacks for Launch= to work: sentences, each with a next step."""
    if settings.launch == "unit" and settings.plugin_unit in ("", "none"):
        yield "Launch=unit starts nothing without [Plugin] Unit=, the plugin's unit"
    if settings.launch != "manifest":
        return
    if not os.path.isfile(os.path.join(root, settings.launch_manifest.lstrip("/"))):
        yield (
            f"LaunchManifest={settings.launch_manifest} is not a file: put the plugin's "
            "static pod there"
        )
    folder = settings.manifest_dir
    if (
        folder
        and folder not in manifest_folders(Settings())
        and not _is_removed(f"{folder}/{MANIFEST_NAME}", root)
    ):
        yield (
            f"ManifestDir={folder}: nothing removes {MANIFEST_NAME} there at the next boot: "
            f"echo 'r! {folder}/"
            f"{MANIFEST_NAME}' >/etc/tmpfiles.d/gpu-gate-manifest.conf; and the agent may "
            "write there only with "
            f"ReadWritePaths={folder} (systemctl edit gpu-gate)"
        )


def _is_removed(target: str, root: str) -> bool:
    """True if an r! line names it: systemd-tmpfiles-setup.service applies those before
    sysinit.target (tmpfiles.d(5))."""
    for folder in TMPFILES:
        for path in glob.glob(os.path.join(glob.escape(root), folder, "*.conf")):
            try:
                with open(path, encoding="utf-8", errors="replace") as file:
                    lines = file.read().splitlines()
            except OSError:
                continue
            for line in lines:
                fields = line.split()
                if fields[:1] in (["r!"], ["R!"]) and fields[1:2] == [target]:
                    return True
    return False


_DEFAULTS = {f.name: f.default for f in fields(Settings)}
_EMPTY: dict[str, Any] = {"listen": "", "node_condition": "", "node_label": ""}
"""What an empty value means if not the default."""
_NAMES = tuple(_DEFAULTS)
_KEYS = {(f.metadata["section"], f.metadata["key"]): f.name for f in fields(Settings)}
_SECTIONS = tuple(dict.fromkeys(section for section, _ in _KEYS))


def _spelled(name: str) -> str:
    return str(next(key for (_, key), field_name in _KEYS.items() if field_name == name))


def written(value: Any) -> str:
    """Format a value as in the file."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}s"
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def rows(config: Config) -> list[tuple[str, str, str, str]]:
    """(section, key, value, source) of every setting."""
    return [
        (
            f.metadata["section"],
            f.metadata["key"],
            written(getattr(config.settings, f.name)),
            config.origins.get(f.name, "default"),
        )
        for f in fields(Settings)
    ]
