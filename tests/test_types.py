"""mypy strict refuses a misspelt part of a snapshot, reason and link."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[1]
WRONG = """
from __future__ import annotations

from dataclasses import replace

from agent.model.condition import Condition, Link
from agent.model.finding import Finding, Verdict
from agent.model.reason import Reason
from agent.model.snapshot import Snapshot


def misspelt_part(snapshot: Snapshot) -> Snapshot:
    return replace(snapshot, driver_versoin="550.54.15")


def undeclared_reason() -> Finding:
    return Finding(Link.NVML, Condition.NVML_COMPLETE, Verdict.FAILS, "x", Reason.GPU_MISING)


def reason_that_is_a_string() -> Finding:
    return Finding(Link.NVML, Condition.NVML_COMPLETE, Verdict.FAILS, "x", "GpuMissing")


def link_that_does_not_exist() -> Finding:
    return Finding(15, Condition.NVML_COMPLETE, Verdict.FAILS, "x")
"""
SAID = (
    'Unexpected keyword argument "driver_versoin"',
    '"type[Reason]" has no attribute "GPU_MISING"',
    'Argument 5 to "Finding" has incompatible type "str"; expected "Reason"',
    'Argument 1 to "Finding" has incompatible type "int"; expected "Link"',
)


def test_mypy_refuses_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed")
    from mypy import api

    wrong = tmp_path / "wrong.py"
    wrong.write_text(WRONG)
    monkeypatch.chdir(REPO)
    monkeypatch.setenv("MYPYPATH", str(REPO))
    out, err, status = api.run(
        ["--strict", "--python-version=3.10", "--cache-dir", str(tmp_path / "cache"), str(wrong)]
    )
    assert status == 1, err
    assert all(said in out for said in SAID), out
    assert out.count("error:") == len(SAID), out
