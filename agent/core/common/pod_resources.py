"""The kubelet's pod-resources API: of the places where its socket may be, the one that is there is
asked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from ...model.reading import Reading, Refusal
from ...model.settings import Settings
from ...model.snapshot import Unit
from .layouts import pod_resources_sockets
from .watched import running_kubelet

T = TypeVar("T")


async def asked(
    ask: Callable[[str], Awaitable[Reading[T]]],
    units: Reading[tuple[Unit, ...]],
    settings: Settings,
) -> Reading[T]:
    """By the first socket that is there; where none is, what is said of this kubelet's own
    place."""
    own, *others = pod_resources_sockets(settings, running_kubelet(units, settings))
    first = found = await ask(own)
    for socket in others:
        if not (isinstance(found, Refusal) and found.is_missing):
            return found
        found = await ask(socket)
    return first if isinstance(found, Refusal) and found.is_missing else found
