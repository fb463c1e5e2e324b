"""Real peers for the transports, and waiting without timing: `until` ends as soon as the claim
holds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

PATIENCE_S = 60.0
"""How long a claim may take to become true on a loaded machine; no test passes by waiting for
it."""


async def until(claim: Callable[[], Any]) -> Any:
    """The claim's value as soon as it is true; the test fails when it does not become true."""
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while not (value := claim()):
        if asyncio.get_running_loop().time() > deadline:
            pytest.fail("what was waited for did not happen")
        await asyncio.sleep(0.005)
    return value


@pytest.fixture
def run() -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """Run a coroutine; whatever the loop would only have logged (lost exceptions, leaked tasks)
    fails the test."""

    def run_it(main: Awaitable[Any]) -> Any:
        complaints: list[str] = []

        async def watched() -> Any:
            asyncio.get_running_loop().set_exception_handler(
                lambda _, context: complaints.append(str(context))
            )
            result = await main
            await asyncio.sleep(0)
            left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            assert not left
            return result

        result = asyncio.run(watched())
        assert not complaints
        return result

    return run_it
