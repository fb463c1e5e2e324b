"""Files with their parser: a part of the scene, or why there is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ...model.host import Host
from ...model.reading import Reading, Refusal, Seen, Why
from . import parse

T = TypeVar("T")


def parsed(reading: Reading[bytes], parser: Callable[[bytes], T | None], what: str) -> Reading[T]:
    """The part a file holds; a file that holds something else is a failed reading, not a missing
    one."""
    if isinstance(reading, Refusal):
        return reading
    value = parser(reading.value)
    if value is None:
        form = parse.UNKNOWN_FORM if parse.json_object(reading.value) else "holds something else"
        return Refusal(Why.FAILED, f"{what} {form}: {parse.text(reading.value)[:80]!r}")
    return Seen(value, reading.at)


async def parsed_file(
    host: Host, path: str, parser: Callable[[bytes], T | None], limit: int = 65536
) -> Reading[T]:
    return parsed(await host.file(path, limit), parser, path)
