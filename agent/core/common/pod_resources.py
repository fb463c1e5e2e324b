"""The kubelet's pod-resources API: which socket answers, and what a device id names."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ...model.reading import Reading, Refusal
from ...model.settings import Settings
from ...model.snapshot import Unit
from .layouts import pod_resources_sockets
from .watched import running_kubelet

T = TypeVar("T")
_SHARE = re.compile(r"(?:::\d+|-_-\d+|/vgpu\d+)$|(?<=^GPU-.{36})-\d+$")


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


def physical(device_id: str) -> str:
    """The GPU or MIG device behind a device id, its replica's or share's number taken off."""
    while (stripped := _SHARE.sub("", device_id)) != device_id:
        device_id = stripped
    return device_id
