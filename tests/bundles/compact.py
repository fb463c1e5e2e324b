"""Trim captured states of a real node to what a snapshot needs: python3 tests/bundles/compact.py
FROM TO.

What is kept is kept as it was written; load.py reads trimmed and untrimmed folders alike.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

AS_IT_IS = (
    "when",
    "device-plugins.ls",
    "kubelet_internal_checkpoint*",
    "input",
    "plugin-*.log",
    "podresources-*.json",
    "crictl-ps.json",
    "crictl-pods.json",
)
STATUS_NOT = ("mounts", "resources", "user", "stopSignal")
CONFIG_KEPT = ("metadata", "image", "command", "args", "envs", "log_path")
SPEC_KEPT = ("annotations", "process")


def trimmed(inspect: dict[str, Any]) -> dict[str, Any]:
    info, status = inspect.get("info", {}), inspect.get("status", {})
    config, spec = info.get("config", {}), info.get("runtimeSpec", {})
    kept: dict[str, Any] = {k: info[k] for k in ("pid", "sandboxID", "removing") if k in info}
    kept["config"] = {k: config[k] for k in CONFIG_KEPT if k in config}
    kept["runtimeSpec"] = {k: spec[k] for k in SPEC_KEPT if k in spec}
    kept["runtimeSpec"]["linux"] = {
        k: v for k, v in spec.get("linux", {}).items() if k == "cgroupsPath"
    }
    return {"info": kept, "status": {k: v for k, v in status.items() if k not in STATUS_NOT}}


def compact(source: Path, target: Path) -> None:
    """One state."""
    target.mkdir(parents=True, exist_ok=True)
    for pattern in AS_IT_IS:
        for file in source.glob(pattern):
            shutil.copyfile(file, target / file.name)
    for file in source.glob("crictl-inspect-*.json"):
        text = json.dumps(trimmed(json.loads(file.read_text())), indent=1)
        (target / file.name).write_text(text + "\n")


if __name__ == "__main__":
    origin, destination = Path(sys.argv[1]), Path(sys.argv[2])
    for state in sorted(p for p in origin.glob("*/*") if p.is_dir()):
        compact(state, destination / state.relative_to(origin))
