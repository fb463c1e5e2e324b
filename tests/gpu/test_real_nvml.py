"""The probe and a real NVML, beside nvidia-smi, which asks the same library."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from agent.core.common import parse
from agent.host.probes.program import PROGRAM

REPO = Path(__file__).resolve().parents[2]
WITHIN_S = 120
"""Without persistence a driver takes seconds a GPU."""


def probe() -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "agent", "probe", "--json"],
        cwd=REPO,
        timeout=WITHIN_S,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert isinstance(said, dict)
    return said


def nvidia_smi(fields: str) -> set[tuple[str, ...]]:
    done = subprocess.run(
        ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=True,
    )
    return {tuple(part.strip() for part in line.split(",")) for line in done.stdout.splitlines()}


def test_every_gpu_equals_what_nvidia_smi_shows(driver: str) -> None:
    said = probe()
    assert said["end"] == "answered" and said["errors"] == []
    seen = {(gpu["uuid"], gpu["bus_id"], gpu["name"]) for gpu in said["gpus"]}
    assert seen == {
        (uuid, parse.bus_id(bus), name) for uuid, bus, name in nvidia_smi("uuid,pci.bus_id,name")
    }
    assert said["driver_version"] == parse.driver_version(driver.encode())
    assert all(Path(f"/dev/nvidia{gpu['minor']}").exists() for gpu in said["gpus"])


def test_consecutive_probes_agree() -> None:
    first, *others = [[(gpu["uuid"], gpu["minor"]) for gpu in probe()["gpus"]] for _ in range(3)]
    assert first and others == [first, first]


def test_a_probe_releases_nvml() -> None:
    holder = subprocess.Popen(
        [sys.executable, "-I", PROGRAM, "--hold"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None and json.loads(holder.stdout.readline())["gpus"]
    assert holder.poll() is None
    holder.communicate(timeout=WITHIN_S)
    assert holder.returncode == 0
