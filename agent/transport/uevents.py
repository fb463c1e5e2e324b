"""The kernel's uevents. An event says only that something changed: the host reads it again.

Facts about netlink and libudev:

* There are two netlink groups. "udev" sends an event after udevd's rules ran, and nothing without
  udevd; "kernel" always sends. The agent reads everything again anyway, so it takes the group that
  cannot be missing. Its filter works in libudev, not in the kernel.
* After an overrun (ENOBUFS) pyudev 0.24 raises OSError without an errno, again and again, until
  SO_ERROR has been read from the socket: a busy loop under add_reader. Which events were lost is
  unknown, so everything is read again.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress

import pyudev

_RECEIVE_BUFFER_BYTES = 4 << 20
_DRAIN_AT_MOST = 1000


class Uevents:
    """The kernel's uevents of a few subsystems. Where netlink is missing it has a `problem` and
    reports nothing."""

    def __init__(
        self,
        on_event: Callable[[dict[str, str]], None],
        on_overflow: Callable[[], None],
        *,
        subsystems: Sequence[str] = ("module", "drivers", "pci"),
    ) -> None:
        """`on_event` receives ACTION, DEVPATH, SUBSYSTEM, DRIVER, …; `on_overflow` means that
        events were lost."""
        self.problem: str | None = "uevents are not being received yet"
        """Why no uevents are received, as a sentence; None while they are."""
        self._on_event, self._on_overflow, self._subsystems = on_event, on_overflow, subsystems
        self._monitor: pyudev.Monitor | None = None

    def start(self) -> None:
        """Receive uevents in the running loop from now on. May be called again after a problem."""
        self.close()
        try:
            monitor = pyudev.Monitor.from_netlink(pyudev.Context(), source="kernel")
            for subsystem in self._subsystems:
                monitor.filter_by(subsystem)
            with suppress(OSError):  # without CAP_NET_ADMIN the default size stays
                monitor.set_receive_buffer_size(_RECEIVE_BUFFER_BYTES)
            monitor.start()
        except (OSError, ImportError) as exc:
            self.problem = f"the kernel's uevents cannot be received: {exc}"
            return
        self._monitor, self.problem = monitor, None
        asyncio.get_running_loop().add_reader(monitor.fileno(), self._drain)

    def close(self) -> None:
        if self._monitor is not None:
            asyncio.get_running_loop().remove_reader(self._monitor.fileno())
            self._monitor, self.problem = None, "uevents are no longer received"

    def _drain(self) -> None:
        for _ in range(_DRAIN_AT_MOST):
            if self._monitor is None:
                return
            try:
                device = self._monitor.poll(timeout=0)
            except OSError as exc:
                self._on_error(exc)
                return
            if device is None:
                return
            self._on_event(dict(device.properties))

    def _on_error(self, exc: OSError) -> None:
        assert self._monitor is not None
        with socket.socket(fileno=os.dup(self._monitor.fileno())) as twin:
            cleared = twin.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if not cleared and exc.errno != errno.ENOBUFS:  # reading on would not help
            self.close()
            self.problem = f"the kernel's uevents are no longer received: {exc}"
        self._on_overflow()
