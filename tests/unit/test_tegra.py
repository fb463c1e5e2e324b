"""A Jetson: the GPU is a part of the SoC, and NVML is optional."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agent.core.gate.states import Gate, Phase
from agent.core.gate.transitions import step
from agent.model.finding import Diagnosis, Scope, Verdict
from agent.model.reading import Refusal, Why
from agent.model.settings import Settings
from agent.model.snapshot import Devices, Gpu, ProbeEnd

from .snapshots import DEFAULTS, NOW, diagnosed, failing, finding, function, probed, report, seen

MISSING = Refusal(Why.MISSING)
BRIDGE = replace(function("0001:00:00.0", "pcieport"), class_code=0x060400)
"""NVIDIA's own, and no GPU."""
ORIN: dict[str, Any] = {
    "pci": seen((BRIDGE,)),
    "soc": seen("Tegra"),
    "nvgpu": seen(()),
    "driver_version": MISSING,
    "module_state": MISSING,
    "nodes": seen(()),
    "probe": failing(9, "version check"),
    "allocatable": seen((Devices("nvidia.com/gpu", ("tegra",)),)),
}
THOR = Gpu("GPU-eeeeeeee-eeee-eeee-eeee-eeeeeeeeeeee", "0000:01:00.0", 0, "NVIDIA Thor")


def orin(settings: Settings = DEFAULTS, **changes: Any) -> Diagnosis:
    return diagnosed(settings, **{**ORIN, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"pci": MISSING},
        {"probe": failing(12, "dlopen"), "driver_version": seen("540.4.0")},
        {"probe": probed(gpus=(THOR,)), "driver_version": seen("580.00"), "nvgpu": MISSING},
    ],
)
def test_one_gpu_that_is_registered_as_tegra(changes: dict[str, Any]) -> None:
    diagnosis = orin(**changes)
    assert (diagnosis.scope, diagnosis.expected, diagnosis.may_probe) == (
        Scope.GPUS,
        ("tegra",),
        True,
    )
    assert diagnosis.fingerprint
    assert not [f for f in diagnosis.findings if f.blocks and f.verdict is not Verdict.HOLDS]
    assert (
        diagnosis.registered is not None
        and diagnosis.registered.because == "the kubelet lists 1 of 1 GPUs"
    )
    assert diagnosis.additive == ()


def test_the_gate_opens_on_equal_readings_of_the_driver() -> None:
    gate = Gate(started_at=NOW - 10)
    for number in (1, 2, 3):
        probe = seen(
            replace(
                failing(9, "version check").value,
                last=report(
                    number, end=ProbeEnd.ERROR, gpus=(), errors=failing(9).value.last.errors
                ),
            )
        )
        gate = step(gate, orin(probe=probe), NOW + number, DEFAULTS).gate
    assert gate.phase is Phase.OPEN


@pytest.mark.parametrize(
    ("changes", "condition", "says"),
    [
        ({"nvgpu": MISSING}, "DriverLoaded", ""),
        ({"probe": failing(999)}, "NvmlComplete", "NVML_ERROR_UNKNOWN"),
        (
            {"probe": probed(end=ProbeEnd.HUNG, gpus=(), detail="no answer within 20 s")},
            "NvmlComplete",
            "no answer",
        ),
    ],
)
def test_faults_that_keep_a_tegra_closed(
    changes: dict[str, Any], condition: str, says: str
) -> None:
    diagnosis = orin(**changes)
    found = finding(diagnosis, condition)
    assert found.verdict is Verdict.FAILS and says in found.because
    assert not (diagnosis.may_probe and diagnosis.fingerprint)


def test_a_tegra_with_nothing_registered() -> None:
    found = orin(allocatable=seen(())).registered
    assert found is not None and found.reason == "NotRegistered"


def test_without_a_tegra_there_is_no_gpu_and_expected_gpus_can_exclude_one() -> None:
    assert orin(soc=seen("i.MX8")).scope is Scope.NONE
    assert orin(Settings(expected_gpus=("0",))).scope is Scope.NONE


def test_a_gpu_on_pci_takes_precedence_over_a_soc() -> None:
    """Asked only where PCI shows none."""
    assert diagnosed(soc=Refusal(Why.NOT_ASKED)).expected != ("tegra",)
