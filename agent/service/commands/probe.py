"""`gpu-gate probe`: ask NVML once, without the agent."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from ...core.common.paths import DRIVER_VERSION
from ...core.gpu.nvml_codes import name_of
from ...host.codec import encode
from ...host.probes.runner import Probes
from ...model.settings import Settings
from ...model.snapshot import ProbeState


def run(settings: Settings, as_json: bool) -> int:
    """Run one NVML probe. Returns 0 if NVML answered for every GPU, else 1."""

    async def once() -> ProbeState:
        probes = Probes(lambda _: None, settings.probe_timeout_s, settings.driver_root)
        probes.start(overlap=False)
        state = await probes.finished()
        await probes.close()
        return state

    if not Path(DRIVER_VERSION).exists():
        print(
            "the nvidia module is not loaded, and a probe would load it: modprobe nvidia",
            file=sys.stderr,
        )
        return 1
    last = asyncio.run(once()).last
    assert last is not None
    if as_json:
        print(json.dumps({"version": 1, **encode(last)}, indent=1))
    else:
        for gpu in last.gpus:
            print(f"{gpu.bus_id}  {gpu.uuid}  /dev/nvidia{gpu.minor}  {gpu.name}")
        for error in last.errors:
            print(
                f"{error.call} {error.bus_id or (error.index if error.index >= 0 else '')}: "
                f"{name_of(error.code)}"
            )
        print(
            f"{last.end.value}: {len(last.gpus)} GPUs in {last.ended_at - last.started_at:.2f} s"
            + (f"; {last.detail}" if last.detail else "")
        )
    return 0 if last.end.value == "answered" and not last.errors else 1
