"""Everything below this folder is marked `vm`, and shares one disk."""

from __future__ import annotations

import disk as disks
import pytest


@pytest.fixture(scope="session")
def disk() -> disks.Disk:
    """The machine's disk, with this checkout's .deb."""
    return disks.disk()
