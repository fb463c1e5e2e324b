"""One parser per setting. Each raises ValueError with a description of a valid value."""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import translate
from typing import Any

from ..core.common import parse

_SPAN = re.compile(
    r"(\d+(?:\.\d+)?)\s*"
    r"(us|ms|seconds|second|sec|s|minutes|minute|min|m|hours|hour|hr|h|days|day|d|)\s*"
)
_UNITS = {"us": 1e-6, "ms": 1e-3, "": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_GPU_UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_UNIT_NAME = re.compile(r"[A-Za-z0-9:_.@\\-]{1,240}\.service")
_NODE_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_QUALIFIED = re.compile(
    r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
)
_ADDRESS = re.compile(r"https?://[A-Za-z0-9.\[\]:_-]+(/[A-Za-z0-9._~/-]*)?")
_LABEL = "[0-9A-Za-z-]{1,63}"
"""Of a host name. Python raises UnicodeError for an empty or longer one; the listener does not
catch that."""
_LISTEN = re.compile(rf"(\[[0-9a-fA-F:.]+\]|{_LABEL}(?:\.{_LABEL})*\.?):(\d{{1,5}})")


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


def _one_of(*values: str) -> Callable[[str], str]:
    def parser(value: str) -> str:
        if value not in values:
            raise ValueError(" or ".join(values))
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


def _unit_or_none(value: str) -> str:
    if value != "none" and not _UNIT_NAME.fullmatch(value):
        raise ValueError("a unit's full name (kubelet.service), or none")
    return value


def _unit(value: str) -> str:
    if not _UNIT_NAME.fullmatch(value):
        raise ValueError("a unit's full name, such as nvidia-device-plugin.service")
    return value


def _units(value: str) -> tuple[str, ...]:
    return tuple(_unit(part) for part in value.replace(",", " ").split())


def _node_name(value: str) -> str:
    if not _NODE_NAME.fullmatch(value):
        raise ValueError("a Node's name as kubectl get nodes prints it")
    return value


def _qualified(value: str) -> str:
    if not _QUALIFIED.fullmatch(value):
        raise ValueError(
            "a name as Kubernetes takes it, such as gpu-gate.io/ready, without value and effect"
        )
    return value


def _listen(value: str) -> str:
    found = _LISTEN.fullmatch(value)
    if not found or not 0 < int(found.group(2)) < 65536:
        raise ValueError("address:port, such as 127.0.0.1:9477, or empty for none")
    return value


def _address(value: str) -> str:
    if not _ADDRESS.fullmatch(value):
        raise ValueError("an address such as http://prometheus:9090, without user and password")
    return value


PARSERS: dict[str, Callable[[str], Any]] = {
    "expected_gpus": _gpus,
    "exclude_gpus": _bus_ids,
    "stable_probes": _count,
    "stable_interval_s": _span(0.1, 60),
    "deadline_s": _span(1, 1800),
    "on_deadline": _one_of("open", "hold"),
    "hold_s": _span(1, 1800),
    "control_plane_deadline_s": _span(1, 1800),
    "fabric": _one_of("prefer", "require", "ignore"),
    "fabric_within_s": _span(1, 1800),
    "pause_while": _units,
    "probe_timeout_s": _span(1, 600),
    "probe_interval_s": _span(10, 86400),
    "driver_root": _absolute,
    "load_driver": _one_of("no", "auto"),
    "additive": _yes,
    "kubelet_unit": _unit_or_none,
    "resources": _patterns,
    "pod_resources_socket": _absolute,
    "device_plugins_dir": _absolute,
    "runtime_socket": _absolute,
    "plugin_containers": _patterns,
    "plugin_images": _patterns,
    "plugin_unit": _unit_or_none,
    "launch": _one_of("none", "unit", "manifest"),
    "launch_manifest": _absolute,
    "manifest_dir": _absolute,
    "repair": _one_of("yes", "report"),
    "repair_partial": _yes,
    "prevent": _one_of("on", "report", "off"),
    "heal": _yes,
    "strict_access": _yes,
    "register_within_s": _span(1, 3600),
    "verify_within_s": _span(5, 3600),
    "repairs_per_hour": _count,
    "repairs_per_boot": _count,
    "listen": _listen,
    "node_kubeconfig": _absolute,
    "node_name": _node_name,
    "node_condition": _qualified,
    "node_label": _qualified,
    "node_taint": _qualified,
    "node_ready_for_s": _span(0, 3600),
    "node_withdraw_after_s": _span(0, 3600),
    "prometheus": _address,
    "alertmanager": _address,
    "n9e": _address,
    "n9e_token_file": _absolute,
    "alert_names": _patterns,
    "heartbeat_s": _span(1, 3600),
    "revalidate_s": _span(1, 600),
}
