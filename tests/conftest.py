"""Tiers that want more than a Python, and what runs on one worker."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
TIERS = ("node", "vm", "gpu")
"""Folders whose tests bear the folder's name as a marker."""
APART = ("test_own_python.py", "test_worlds.py", "test_tapes.py")
"""Files of few and long tests that share nothing: one by one, and last, so that no worker waits for one file."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Whatever else is in one file shares its fixtures, and runs on one worker."""
    for item in items:
        for tier in TIERS:
            if HERE / tier in item.path.parents:
                item.add_marker(tier)
        if config.pluginmanager.hasplugin("xdist") and item.path.name not in APART:
            item.add_marker(pytest.mark.xdist_group(str(item.path.relative_to(HERE))))
