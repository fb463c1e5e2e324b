"""Everything below this folder is marked `vm`, and shares one disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import disk as disks
import pytest

HERE = Path(__file__).resolve().parent


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("vm")


@pytest.fixture(scope="session")
def disk() -> disks.Disk:
    """The machine's disk, with this checkout's .deb."""
    return disks.disk()
