"""Tiers that need more than Python, and the tests that run on one worker."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler.loadscope import LoadScopeScheduling

HERE = Path(__file__).resolve().parent
TIERS = ("node", "vm", "gpu")
"""Folders whose tests bear the folder's name as a marker."""
APART = ("test_own_python.py", "test_worlds.py", "test_tapes.py")
"""Files of few and long tests that share nothing: one by one, and last, so that no worker waits for
one file."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for tier in TIERS:
            if HERE / tier in item.path.parents:
                item.add_marker(tier)


@pytest.hookimpl(optionalhook=True)  # a node's own Python has pytest and no xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Whatever else is in one file shares its fixtures, and runs in its order on one worker.

    xdist's own groups (`--dist=loadgroup`) hide in an item's `_nodeid`, which pytest 9.2 no longer
    asks (xdist 3.8).
    """
    from xdist.scheduler.loadscope import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return nodeid if Path(file).name in APART else file

    return ByFile(config, log)
