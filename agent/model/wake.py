"""Why a cycle runs: the source of a wake, and what it is about."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class WakeSource(str, Enum):
    """Where a wake comes from. The values are labels of gpu_gate_wakes_total."""

    START = "start"
    TIMER = "timer"
    CONFIG = "config"
    """SIGHUP: the configuration was read again"""
    UDEV = "udev"
    FOLDER = "inotify"
    """a change in a watched folder"""
    BUS = "dbus"
    """the connection to systemd came or went"""
    RELOAD = "reload"
    """systemd finished a daemon-reload"""
    REEXEC = "reexec"
    """systemd's bus name changed its owner, as it does after a daemon-reexec"""
    UNIT = "unit"
    """a watched unit changed"""
    SCOPE = "scope"
    """scopes of containers came or went"""
    PROBE = "probe"
    """an NVML probe ended"""
    ACCESS = "access"
    """a check of device access, or a change of device lists, ended"""
    ACTION = "action"
    """an action that runs beside the cycle ended"""

    __str__ = str.__str__


@dataclass(frozen=True, slots=True)
class WakeReason:
    """One reason to run a cycle. Rules may not read it: a wake says only that something changed."""

    source: WakeSource
    subject: str = ""
    """a folder, a unit, a program's result; for the log"""

    def __str__(self) -> str:
        return f"{self.source.value} {self.subject}".rstrip()
