"""Every NVML code carries NVIDIA's own name and a class."""

from __future__ import annotations

import pynvml
import pytest

from agent.core.gpu import nvml_codes
from agent.model.finding import Heals

NVIDIAS = {
    getattr(pynvml, name): name
    for name in dir(pynvml)
    if name.startswith("NVML_ERROR_") and isinstance(getattr(pynvml, name), int)
}


def test_nvidia_ml_py_was_read() -> None:
    assert NVIDIAS[999] == "NVML_ERROR_UNKNOWN"
    assert len(NVIDIAS) >= 26


@pytest.mark.parametrize("code", sorted(NVIDIAS))
def test_a_code_has_nvidias_name_and_a_class(code: int) -> None:
    name, heals = nvml_codes.CODES[code]
    assert name == NVIDIAS[code]
    assert isinstance(heals, Heals)
    assert nvml_codes.name_of(code) == f"{name} ({code})"
    assert nvml_codes.heals(code) is heals
    assert nvml_codes.next_step(code)


@pytest.mark.parametrize(
    ("code", "heals"),
    [
        (9, Heals.SOON),
        (10, Heals.SOON),
        (27, Heals.SOON),
        (999, Heals.SOON),
        (14, Heals.NEVER),
        (15, Heals.NEVER),
        (16, Heals.NEVER),
        (18, Heals.NEVER),
        (29, Heals.NEVER),
        (4, Heals.CONFIGURATION),
        (12, Heals.CONFIGURATION),
        (13, Heals.CONFIGURATION),
    ],
)
def test_whether_waiting_heals_known_codes(code: int, heals: Heals) -> None:
    assert nvml_codes.heals(code) is heals


def test_a_code_of_a_newer_library_may_heal() -> None:
    assert nvml_codes.name_of(77) == "NVML error 77"
    assert nvml_codes.heals(77) is Heals.SOON
    assert "NVRM" in nvml_codes.next_step(77)


def test_the_named_constants_are_the_codes() -> None:
    assert (
        nvml_codes.GPU_IS_LOST,
        nvml_codes.MISMATCH,
        nvml_codes.DRIVER_NOT_LOADED,
        nvml_codes.LIBRARY_NOT_FOUND,
    ) == (
        pynvml.NVML_ERROR_GPU_IS_LOST,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
    )
