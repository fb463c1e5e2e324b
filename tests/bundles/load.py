"""A folder of captured state as a node: load(folder) is a Host, tape(folder) the tape of one
snapshot of it.

Read are the files that captures/README.md names. One that is missing leaves its question not
recorded; one that is torn is a failed reading; one that nobody knows is left alone. crictl's JSON
goes through protobuf's own JSON parser into the messages a live runtime would send, and from there
the way those go.
"""

from __future__ import annotations

import asyncio
import json
import re
from calendar import timegm
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from google.protobuf import json_format

from agent.core.collect import collect
from agent.host import cri
from agent.host.tape import Recorder, Tape
from agent.model.reading import Reading, Refusal, Seen, Why
from agent.model.runtime import ContainerDetail, Runtime
from agent.model.settings import Settings
from agent.model.snapshot import Devices, Entry
from agent.transport import protos

from .node import BOOTTIME, UNKNOWN_ERROR, CapturedNode, not_recorded

SOCKET = "/run/containerd/containerd.sock"
PLUGINS = "/var/lib/kubelet/device-plugins"
CHECKPOINTS = ("kubelet_internal_checkpoint.json", "kubelet_internal_checkpoint", "input")
LONG_AGO = 1_795_950_000.0
"""Where a folder holds no time at all."""
_LS = re.compile(
    r"^(?P<kind>[-bcdlps])(?P<bits>[rwxsStT-]{9})\S*\s+\d+\s+\S+\s+\S+\s+(?:(?P<major>\d+),\s*(?P<minor>\d+)|\d+)\s+"
    r"(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)? [+-]\d{4}|\S+ +\S+ +\S+) (?P<name>.+)$"
)
_KINDS = {
    "-": "file",
    "b": "block",
    "c": "char",
    "d": "dir",
    "l": "link",
    "p": "fifo",
    "s": "socket",
}
_TIME = re.compile(r"^(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,](\d+))?\s*(Z|[+-]\d\d:?\d\d)?$")
_CRI_LINE = re.compile(r"^\d{4}-\d\d-\d\dT\S+ (?:stdout|stderr) [FP] ")


@dataclass(frozen=True)
class Around:
    """State that a capture lacks, and that its folder's name may give."""

    nvml: int = 0
    "NVML's own error on the host at that moment; 0: it shows all eight"
    kubelet_up: bool = True
    may_open: bool | None = None

    @classmethod
    def of(cls, name: str) -> Around:
        return cls(UNKNOWN_ERROR if "nvml999" in name else 0, "kubelet-down" not in name)


def load(folder: Path, around: Around | None = None) -> CapturedNode:
    """The node as it was."""
    around = around or Around.of(folder.name)
    entries = _entries(folder / "device-plugins.ls")
    node = CapturedNode(_when(folder, entries))
    node.nvml(around.nvml)
    node.may_open = around.may_open
    if entries is not None:
        node.folders[PLUGINS] = entries
    opened = max((e.mtime for e in entries or () if e.name == "kubelet.sock"), default=0.0)
    since = node.boottime_of(opened) if opened else BOOTTIME - 60
    node.unit("kubelet.service", around.kubelet_up, min(since, BOOTTIME), "c" * 32)
    for name in CHECKPOINTS:
        if (folder / name).is_file():
            node.files[f"{PLUGINS}/kubelet_internal_checkpoint"] = (folder / name).read_bytes()
            break
    node.listed = _listed(folder / "podresources-allocatable.json", around.kubelet_up)
    node.runtimes[SOCKET] = _runtime(folder)
    for detail in _details(folder):
        node.details[detail.id] = detail
        _log(node, folder, detail)
    return node


def tape(folder: Path, settings: Settings, around: Around | None = None) -> Tape:
    """The tape of one snapshot."""
    recorder = Recorder(load(folder, around))
    asyncio.run(collect(recorder, settings))
    return recorder.tape


def nanoseconds(written: Any) -> int:
    """Of what crictl writes: RFC 3339 in inspect, nanoseconds in lists. 0 for what never was, and
    for junk."""
    if isinstance(written, int):
        return max(written, 0)
    text = str(written).strip()
    if text.isascii() and text.isdecimal():
        return int(text)
    found = _TIME.match(text)
    if not found:
        return 0
    day, hour, fraction, zone = found.groups()
    try:
        moment = datetime.strptime(
            f"{day} {hour} {(zone or 'Z').replace('Z', '+0000')}", "%Y-%m-%d %H:%M:%S %z"
        )
        seconds = timegm(moment.astimezone(timezone.utc).timetuple())
    except (ValueError, OverflowError):  # Go's zero time, year 1, west of Greenwich
        return 0
    return max(seconds, 0) * 10**9 + int((fraction or "0")[:9].ljust(9, "0")) if seconds > 0 else 0


def _when(folder: Path, entries: tuple[Entry, ...] | None) -> float:
    """The moment of the capture: as noted, else a second after the newest thing it saw."""
    noted = folder / "when"
    if noted.is_file() and (at := nanoseconds(noted.read_text("utf-8", "replace").strip())):
        return at / 1e9
    return max((e.mtime + 1 for e in entries or ()), default=LONG_AGO)


def _entries(listing: Path) -> tuple[Entry, ...] | None:
    """Of `ls -la --full-time`."""
    if not listing.is_file():
        return None
    lines = map(_LS.match, listing.read_text("utf-8", "replace").splitlines())
    found = [_entry(line) for line in lines if line and line["name"] not in (".", "..")]
    return tuple(sorted(found, key=lambda e: e.name))


def _entry(line: re.Match[str]) -> Entry:
    name, _, target = (
        line["name"].partition(" -> ") if line["kind"] == "l" else (line["name"], "", "")
    )
    bits = (line["bits"][n : n + 3] for n in (0, 3, 6))
    mode = int(
        "".join(str((b[0] == "r") * 4 + (b[1] == "w") * 2 + (b[2] in "xst")) for b in bits), 8
    )
    return Entry(
        name,
        _KINDS[line["kind"]],
        int(line["major"] or 0),
        int(line["minor"] or 0),
        mode,
        nanoseconds(line["time"]) / 1e9,
        target,
    )


def _json(file: Path) -> Reading[dict[str, Any]]:
    if not file.is_file():
        return not_recorded(file.name)
    try:
        found = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as exc:
        return Refusal(Why.FAILED, f"{file.name} is torn: {exc}")
    return (
        Seen(found, BOOTTIME)
        if isinstance(found, dict)
        else Refusal(Why.FAILED, f"{file.name} is no object")
    )


def _message(file: Path, kind: Any) -> Reading[Any]:
    found = _json(file)
    if isinstance(found, Refusal):
        return found
    try:
        return Seen(
            json_format.ParseDict(found.value, kind(), ignore_unknown_fields=True), BOOTTIME
        )
    except json_format.ParseError as exc:
        return Refusal(Why.FAILED, f"{file.name}: {exc}")


def _listed(file: Path, kubelet_up: bool) -> Reading[tuple[Devices, ...]]:
    if not kubelet_up and not file.is_file():
        return Refusal(Why.MISSING, "UNAVAILABLE: the kubelet is down")
    answer = _message(file, protos.pod_resources()["AllocatableResourcesResponse"])
    if isinstance(answer, Refusal):
        return answer
    merged: dict[str, set[str]] = {}
    for device in answer.value.devices:
        merged.setdefault(device.resource_name, set()).update(device.device_ids)
    return Seen(
        tuple(Devices(r, tuple(sorted(ids))) for r, ids in sorted(merged.items())), BOOTTIME
    )


def _runtime(folder: Path) -> Reading[Runtime]:
    types = protos.cri()
    pods = _message(folder / "crictl-pods.json", types["ListPodSandboxResponse"])
    running = _message(folder / "crictl-ps.json", types["ListContainersResponse"])
    for half in (pods, running):
        if isinstance(half, Refusal):
            return half
    return Seen(
        Runtime(
            tuple(map(cri.sandbox_of, pods.value.items)),
            tuple(map(cri.container_of, running.value.containers)),
        ),
        BOOTTIME,
    )


def _details(folder: Path) -> Iterator[ContainerDetail]:
    for file in sorted(folder.glob("crictl-inspect-*.json")):
        found = _json(file)
        if isinstance(found, Refusal) or not isinstance(found.value.get("status"), dict):
            continue
        status = dict(found.value["status"])
        for key in ("createdAt", "startedAt", "finishedAt"):
            status[key] = str(nanoseconds(status.get(key, 0)))
        try:
            message = json_format.ParseDict(
                status, protos.cri()["ContainerStatus"](), ignore_unknown_fields=True
            )
        except json_format.ParseError:
            continue
        # A runtime sends text here; crictl prints what the text holds.
        yield cri.detail_of(message, cri.info_of({"info": json.dumps(found.value.get("info"))}))


def _log(node: CapturedNode, folder: Path, detail: ContainerDetail) -> None:
    """The plugin's log, as the runtime writes it: each line with its time and stream before it."""
    file = folder / f"plugin-{detail.id[:12]}.log"
    if not (file.is_file() and detail.log_path):
        return
    stamp = (
        f"{datetime.fromtimestamp(node.now.realtime, timezone.utc):%Y-%m-%dT%H:%M:%S}.000000000Z "
        "stderr F "
    )
    lines = file.read_text("utf-8", "replace").splitlines()
    text = "".join((line if _CRI_LINE.match(line) else stamp + line) + "\n" for line in lines)
    node.files[detail.log_path] = text.encode()
