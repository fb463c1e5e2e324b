"""A GPU's state beyond its identity: MIG, fabric, ECC, … Each question may be refused, without
effect on the others."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent.host.probes.report import report_of
from agent.model.gpu import NOTHING_SAID, GpuState, MigDevice
from agent.model.snapshot import ProbeEnd, ProbeReport

from .sandbox import ENDS_WITHIN_S
from .test_probe import WHOLE, Driver, asked, built, driver

__all__ = ["built", "driver"]

HEALTHY = GpuState(
    mig=False,
    mig_pending=False,
    fabric="not supported",
    persistence=True,
    remap_pending=False,
    remap_failed=False,
    ecc=True,
    ecc_pending=True,
    recovery="none",
    virtualization="none",
)
ONE_OF_EACH = [
    "mig on gpu=3 pending=off",
    "mig-device 3 uuid=MIG-a gi=7 ci=0 profile=1g.10gb",
    "mig-device 3 uuid=MIG-b gi=1 ci=2 profile=1c.3g.40gb",
    "fabric 2 27 gpu=3",
    "persistence off",
    "remap pending=1 failed=1 gpu=3",
    "ecc current=1 pending=0 gpu=3",
    "recovery 2 gpu=3",
    "virtualization 2 gpu=3",
]


def heard(driver: Driver) -> ProbeReport:
    return report_of(json.dumps(asked(driver)).encode(), 1, 0.0, 1.0)


def test_a_healthy_gpu_reports_everything(driver: Driver) -> None:
    report = heard(driver)
    assert len(report.gpus) == 8 and all(g.state == HEALTHY for g in report.gpus)


def test_each_part_belongs_to_its_gpu(driver: Driver) -> None:
    driver.says(*ONE_OF_EACH)
    states = [g.state for g in heard(driver).gpus]
    assert states[3] == GpuState(
        mig=True,
        mig_pending=False,
        mig_devices=(MigDevice("MIG-a", "1g.10gb", 7, 0), MigDevice("MIG-b", "1c.3g.40gb", 1, 2)),
        fabric="in progress",
        fabric_status=27,
        persistence=False,
        remap_pending=True,
        remap_failed=True,
        ecc=True,
        ecc_pending=False,
        recovery="node reboot",
        virtualization="vgpu",
    )
    assert (
        states[4].mig is False
        and states[4].mig_devices is None
        and states[4].fabric == "not supported"
    )


def test_mig_without_instances_is_an_empty_list_and_an_unreadable_list_is_none(
    driver: Driver,
) -> None:
    driver.says("mig on gpu=0", "mig on gpu=1", "refuse migs error=4 gpu=1")
    states = [g.state for g in heard(driver).gpus]
    assert (states[0].mig, states[0].mig_devices) == (True, ())
    assert (states[1].mig, states[1].mig_devices) == (True, None)


@pytest.mark.parametrize(
    ("question", "left_out"),
    [
        ("mig", {"mig": None, "mig_pending": None}),
        ("fabric", {"fabric": ""}),
        ("persistence", {"persistence": None}),
        ("remap", {"remap_pending": None, "remap_failed": None}),
        ("ecc", {"ecc": None, "ecc_pending": None}),
        ("recovery", {"recovery": ""}),
        ("virtualization", {"virtualization": ""}),
    ],
)
@pytest.mark.parametrize("code", [3, 13, 25, 999])
def test_a_refused_question_does_not_affect_others(
    driver: Driver, question: str, left_out: dict[str, Any], code: int
) -> None:
    driver.says(f"refuse {question} error={code} gpu=2")
    report = heard(driver)
    assert (report.end, len(report.gpus), report.errors) == (ProbeEnd.ANSWERED, 8, ())
    said = {name: getattr(report.gpus[2].state, name) for name in left_out}
    assert said == left_out
    assert all(g.state == HEALTHY for g in report.gpus if g.minor != 2)


@pytest.mark.parametrize("code", [15, 16])
def test_a_gpu_lost_during_a_probe_is_still_enumerated(driver: Driver, code: int) -> None:
    driver.says(f"refuse persistence error={code} gpu=2")
    report = heard(driver)
    assert (report.end, len(report.gpus), report.errors) == (ProbeEnd.ANSWERED, 8, ())
    assert [g.state.trouble for g in report.gpus] == [
        code if g.minor == 2 else 0 for g in report.gpus
    ]


OLD = """
import runpy, sys
import pynvml
for name in sys.argv[1].split(","):
    vars(pynvml).pop(name, None)
sys.argv = ["nvml_probe.py", *sys.argv[2:]]
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""
"""An nvidia-ml-py that lacks these names, as an older one does."""


def test_an_older_nvidia_ml_py_has_fewer_functions(driver: Driver, tmp_path: Path) -> None:
    driver.says(*ONE_OF_EACH)
    gone = (
        "nvmlDeviceGetMigMode,nvmlDeviceGetGpuFabricInfoV,nvmlDeviceGetRemappedRows,"
        "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION"
    )
    program = driver.argv()[2]
    done = subprocess.run(
        [sys.executable, "-c", OLD, gone, program, *driver.argv()[3:]],
        env=driver.env(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=ENDS_WITHIN_S,
    )
    report = report_of(done.stdout.encode(), 1, 0.0, 1.0)
    assert (report.end, len(report.gpus), report.errors) == (ProbeEnd.ANSWERED, 8, ()), done.stderr
    state = report.gpus[3].state
    assert (state.mig, state.remap_pending, state.recovery) == (None, None, "")
    assert (state.fabric, state.ecc_pending) == ("in progress", False)  # by the older function


@pytest.mark.parametrize(
    "said",
    [
        None,
        [],
        "on",
        {"mig": "yes"},
        {"mig_devices": [{"profile": "1g.10gb"}]},
        {"mig_devices": 7},
        {"fabric": 2},
        {"trouble": 1e999},
        {"recovery": ["reset"]},
    ],
)
def test_state_in_another_format_loses_no_gpu(said: Any) -> None:
    line = {**WHOLE, "gpus": [{**WHOLE["gpus"][0], "state": said}]}
    report = report_of(json.dumps(line).encode(), 1, 0.0, 1.0)
    assert (report.end, [g.state for g in report.gpus]) == (ProbeEnd.ANSWERED, [NOTHING_SAID])
