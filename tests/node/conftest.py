"""Fixtures that boot nodes. Everything below this folder is marked `node`."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import tree
from nspawn import Node

MakeNode = Callable[..., Node]
NODES_OF = pytest.StashKey[list[Node]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """A failed test shows the console and journal of its nodes."""
    report: Any = yield
    if report.failed:
        for node in [*item.stash.get(NODES_OF, []), *item.session.stash.get(NODES_OF, [])]:
            if node.folder.exists():
                report.sections.append((f"{node.name}: console and journal", node.console()))
    return report


@pytest.fixture(params=tree.SUITES)
def suite(request: pytest.FixtureRequest) -> str:
    """Each Debian suite that gpu-gate is tested on: systemd 252 and 257."""
    return str(request.param)


@pytest.fixture(scope="session")
def deb() -> Path:
    """The .deb of this checkout."""
    return tree.build_deb()


def _factory(request: pytest.FixtureRequest, made: list[Node]) -> MakeNode:
    def make(
        suite: str = "bookworm",
        *,
        deb: bool | Path = True,
        standins: bool = True,
        boot: bool = True,
        until: str = "basic.target",
        **options: Any,
    ) -> Node:
        package = request.getfixturevalue("deb") if deb is True else deb or None
        node = Node(tree.layers(suite, package, standins), **options)
        made.append(node)
        return node.boot(until=until) if boot else node

    return make


@pytest.fixture
def make_node(request: pytest.FixtureRequest) -> Iterator[MakeNode]:
    """make_node(suite, deb=True, standins=True, boot=True, until="basic.target"): a node for this
    test.

    With boot=False its disk can be changed first (put, copy, run); then call boot().
    """
    made = request.node.stash.setdefault(NODES_OF, [])
    yield _factory(request, made)
    for node in made:
        node.close()


@pytest.fixture(scope="module")
def make_module_node(request: pytest.FixtureRequest) -> Iterator[MakeNode]:
    """The same for the tests of a whole file."""
    made = request.session.stash.setdefault(NODES_OF, [])
    yield _factory(request, made)
    while made:
        made.pop().close()


@pytest.fixture
def node(make_node: MakeNode, suite: str) -> Node:
    """A bare node of each suite, booted: no .deb, no stand-ins."""
    return make_node(suite, deb=False, standins=False)
