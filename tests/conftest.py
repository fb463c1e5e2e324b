"""Tiers that want more than a Python."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
TIERS = ("node", "vm", "gpu")
"""Folders whose tests bear the folder's name as a marker."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for tier in TIERS:
            if HERE / tier in item.path.parents:
                item.add_marker(tier)
