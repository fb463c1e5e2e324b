"""Everything below this folder is marked `gpu`, and wants a loaded driver."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("gpu")


@pytest.fixture(autouse=True)
def driver() -> str:
    """The loaded module's version."""
    version = Path("/proc/driver/nvidia/version")
    if not version.exists():
        pytest.skip("NOT TESTED: no NVIDIA driver is loaded here")
    return version.read_text()
