"""YAML and JSON files as JSON text. A file is read again only if it was replaced or written."""

from __future__ import annotations

import os
import time
from dataclasses import replace

from ..model.host import Host
from ..model.reading import Reading, Refusal, Seen, Why
from ..transport.clock import boottime
from ..transport.yaml import as_json

MOST = 32
SETTLED_S = 1.0
"""A file may be written twice within one tick of the clock of its mtime (4 ms), so a fresh one is
read again."""


class Documents:
    """The files of the last cycles. Parsing 100 KB of YAML takes 30 ms, and an idle node has cycles
    too."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[int, int, int], Reading[bytes]]] = {}

    async def read(self, host: Host, path: str, at: str, limit: int) -> Reading[bytes]:
        """The document at `path`, which is `at` on this host; `limit` is in bytes."""
        try:
            found = os.stat(at)
            stamp = (found.st_mtime_ns, found.st_size, found.st_ino)
        except OSError:
            return await host.file(path, limit)  # which has the reason
        known = self._known.get(path)
        if known is not None and known[0] == stamp:
            return replace(known[1], at=boottime()) if isinstance(known[1], Seen) else known[1]
        data = await host.file(path, limit + 1)
        if isinstance(data, Refusal):
            return data
        answer = _parsed(data, path, limit)
        if len(self._known) >= MOST:
            self._known.clear()
        if time.time() - found.st_mtime > SETTLED_S:
            self._known[path] = stamp, answer
        return answer


def _parsed(data: Seen[bytes], path: str, limit: int) -> Reading[bytes]:
    if len(data.value) > limit:
        return Refusal(Why.FAILED, f"it is larger than {limit >> 10} KiB")
    try:
        return Seen(as_json(data.value, path.endswith(".json")), data.at)
    except ValueError as exc:
        return Refusal(Why.FAILED, str(exc))
