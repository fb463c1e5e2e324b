"""Tiers that want more than a Python; what runs first, and what together."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
TIERS = ("node", "vm", "gpu")
"""Folders whose tests bear the folder's name as a marker."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Nodes come first, the longest files of all, and stories last, one by one, so that no worker waits at the end.
    Whatever else is in one file shares its fixtures, and runs on one worker."""
    for item in items:
        for tier in TIERS:
            if HERE / tier in item.path.parents:
                item.add_marker(tier)
        if config.pluginmanager.hasplugin("xdist") and not _is_story(item):
            item.add_marker(pytest.mark.xdist_group(str(item.path.relative_to(HERE))))
    items.sort(key=lambda item: 0 if item.get_closest_marker("node") else 2 if _is_story(item) else 1)


def _is_story(item: pytest.Item) -> bool:
    return HERE / "stories" in item.path.parents
