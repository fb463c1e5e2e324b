"""Link 6: CDI specs, the configuration of the NVIDIA Container Toolkit and of the runtime. No
program is asked."""

from __future__ import annotations

from ...model.cdi import CdiFile, CdiSpec, Toolkit
from ...model.host import Host
from ...model.reading import NOT_ASKED, Reading, Refusal, Seen, Why
from ..common.files import parsed_file
from . import specs as cdi

SPEC_FOLDERS = ("/etc/cdi", "/run/cdi")
"""Where containerd and CRI-O look, lowest precedence first (cdi.DefaultSpecDirs); /var/run is a
link to /run."""
MOST_FILES = 32
SPEC_BYTES = 1 << 20
CONFIG_BYTES = 1 << 18
TOOLKIT_CONFIG = (
    "/etc/nvidia-container-runtime/config.toml",
    "/usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml",
)
"""The package's, and the one the GPU Operator's toolkit container writes."""
RUNTIME_CONFIG = (
    "/etc/containerd/config.toml",
    "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
    "/etc/crio/crio.conf",
)
RUNTIME_DROPINS = ("/etc/containerd/conf.d", "/etc/crio/crio.conf.d")
"""Where nvidia-ctk runtime configure puts its 99-nvidia.toml since 1.18."""


async def toolkit(host: Host) -> Toolkit:
    specs = await _specs(host)
    absent: Reading[tuple[str, ...]] = Refusal(Why.NOT_ASKED, "no spec was read")
    if isinstance(specs, Seen):
        named = {
            p
            for f in specs.value
            if isinstance(f.spec, Seen) and f.spec.value
            for p in f.spec.value.paths
        }
        absent = await host.absent(sorted(named)[: cdi.MOST])
    mode: Reading[str] = NOT_ASKED
    for path in TOOLKIT_CONFIG:
        mode = await parsed_file(host, path, cdi.runtime_mode, CONFIG_BYTES)
        if not (isinstance(mode, Refusal) and mode.is_missing):
            break
    handlers, enabled = [], ""
    for path in [*RUNTIME_CONFIG, *await _dropins(host)]:
        data = await host.file(path, CONFIG_BYTES)
        if isinstance(data, Seen):
            handlers += [path] if cdi.names_handler(data.value) else []
            enabled = path if cdi.enables_cdi(data.value) else enabled
    return Toolkit(specs, absent, mode, tuple(handlers), enabled)


async def _dropins(host: Host) -> list[str]:
    found = []
    for folder in RUNTIME_DROPINS:
        entries = await host.folder(folder)
        if isinstance(entries, Seen):
            found += [
                f"{folder}/{e.name}" for e in entries.value if e.name.endswith((".toml", ".conf"))
            ]
    return found[:MOST_FILES]


async def _specs(host: Host) -> Reading[tuple[CdiFile, ...]]:
    """Every spec in the folders. A folder that is there and cannot be read makes the whole reading
    fail."""
    files: list[CdiFile] = []
    at = 0.0
    for folder in SPEC_FOLDERS:
        entries = await host.folder(folder)
        if isinstance(entries, Refusal):
            if entries.is_missing:
                continue
            return entries
        at = entries.at
        for entry in entries.value:
            if entry.name.endswith((".json", ".yaml", ".yml")) and not entry.name.startswith("."):
                path = f"{folder}/{entry.name}"
                files.append(CdiFile(path, await _spec(host, path)))
    if len(files) > MOST_FILES:
        return Refusal(Why.FAILED, f"more than {MOST_FILES} files in {' and '.join(SPEC_FOLDERS)}")
    return Seen(tuple(files), at)


async def _spec(host: Host, path: str) -> Reading[CdiSpec | None]:
    data = await host.document(path, SPEC_BYTES)
    if isinstance(data, Refusal):
        return data
    try:
        return Seen(cdi.spec(data.value), data.at)
    except ValueError as exc:
        return Refusal(Why.FAILED, str(exc))
