"""A node for each test that runs gpu-gate as a program."""

from __future__ import annotations

from pathlib import Path

import pytest

from .sandbox import Node


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "node")
