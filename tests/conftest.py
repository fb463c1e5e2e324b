"""Tiers that want more than a Python, and what runs first."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
TIERS = ("node", "vm", "gpu")
"""Folders whose tests bear the folder's name as a marker."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Nodes come first, the longest files of all: as the last ones they would leave all but one worker idle."""
    for item in items:
        for tier in TIERS:
            if HERE / tier in item.path.parents:
                item.add_marker(tier)
    items.sort(key=lambda item: item.get_closest_marker("node") is None)
