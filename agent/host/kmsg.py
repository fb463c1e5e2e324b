"""The kernel log, read as it grows: each read(2) of /dev/kmsg returns one record, or EAGAIN at the
end.

It needs CAP_SYSLOG where kernel.dmesg_restrict is set, enters no driver and never blocks. Its ring
holds this boot only. Only lines about GPUs are kept, one of each text: a GPU that fails logs the
same line every minute.
"""

from __future__ import annotations

import os

from ..core.common.kernel_log import word
from ..model.kernel import KernelLine
from ..model.snapshot import Clock

RECORD_BYTES = 16384
RECORDS = 20000
"""In one cycle; the rest follows in the next. A ring of 1 MiB holds some 10,000: 30 ms once, when
the agent starts."""
KEPT = 256
TEXT = 400


class Kmsg:
    """One open kernel log."""

    def __init__(self, path: str = "/dev/kmsg") -> None:
        self._path = path
        self._fd = -1
        self._lines: dict[str, float] = {}
        self._read_at = 0.0

    def lines(self, clock: Clock) -> tuple[KernelLine, ...]:
        """The lines that were read so far, oldest first. Raises OSError if the log cannot be
        read."""
        if self._fd < 0:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        for _ in range(RECORDS):
            try:
                data = os.read(self._fd, RECORD_BYTES)
            except BlockingIOError:
                break
            except BrokenPipeError:  # the ring overwrote it; the next read returns the oldest left
                continue
            except OSError:
                self.close()
                raise
            if not data:  # a plain file in place of the log (container nodes)
                break
            for text in data.decode("utf-8", "replace").splitlines():
                self._take(text, clock)
        self._read_at = clock.boottime
        return tuple(KernelLine(at, text) for text, at in self._lines.items())

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        # The next open reads it from the beginning.
        self._read_at = 0.0
        self._lines.clear()

    def _take(self, record: str, clock: Clock) -> None:
        """A record is "6,1234,5678901,-;text": priority, number, µs; lines after it that begin with
        a space are its properties. Characters it cannot print, line breaks among them, come as
        \\x0a."""
        head, separator, text = record.partition(";")
        parts = head.split(",")
        if not separator or len(parts) < 3 or not parts[2].isdecimal():
            return
        text = text.replace("\\x0a", " ")[:TEXT]
        # The log's clock drifts by minutes in months; a line that is new since the last cycle was
        # written since then.
        at = int(parts[2][:18]) / 1e6 + clock.boottime - clock.monotonic
        at = min(max(at, self._read_at), clock.boottime)
        if word(KernelLine(at, text)) is None:
            return
        self._lines.pop(text, None)
        self._lines[text] = at
        while len(self._lines) > KEPT:
            del self._lines[next(iter(self._lines))]
