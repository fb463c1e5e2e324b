"""What runs first."""

from __future__ import annotations

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Nodes come first, the longest files of all: as the last ones they would leave all but one worker idle."""
    items.sort(key=lambda item: item.get_closest_marker("node") is None)
