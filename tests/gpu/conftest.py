"""Everything below this folder is marked `gpu`, and wants a loaded driver."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def driver() -> str:
    """The loaded module's version."""
    version = Path("/proc/driver/nvidia/version")
    if not version.exists():
        pytest.skip("NOT TESTED: no NVIDIA driver is loaded here")
    return version.read_text()
