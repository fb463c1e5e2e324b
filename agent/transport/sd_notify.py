"""systemd's notification socket (sd_notify(3)).

Facts about sdnotify 0.3:

* It encodes Latin-1, and loses the whole message, READY=1 included, when that fails: so only ASCII
  is sent.
* Its socket blocks while PID 1 does not read (a long daemon-reload): so a send gets one second.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

import sdnotify

_SEND_WITHIN_S = 1.0


class Notify:
    """systemd's notification socket. Without NOTIFY_SOCKET, no call does anything."""

    def __init__(self) -> None:
        self.problem: str | None = None
        """Why the last message did not arrive, as a sentence; None if it did, or without a
        socket."""
        self.watchdog_s = _watchdog_s(os.environ)
        """systemd expects a call of `watchdog` within so many seconds; None: it expects none."""
        self._notifier: sdnotify.SystemdNotifier | None = None
        if os.environ.get("NOTIFY_SOCKET"):
            try:
                self._notifier = sdnotify.SystemdNotifier(debug=True)
                self._notifier.socket.settimeout(_SEND_WITHIN_S)
            except OSError as exc:
                self.problem = f"systemd's notification socket cannot be reached: {exc}"

    def ready(self) -> bool:
        """Report READY=1, at the start and after a reload. False, as with every method here, if
        systemd did not receive it."""
        return self._send("READY=1")

    def status(self, text: str) -> bool:
        """Set the sentence that `systemctl status` shows. It becomes one line of ASCII."""
        return self._send(
            "STATUS=" + "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))
        )

    def watchdog(self) -> bool:
        """Report that the agent is alive: due every `watchdog_s` seconds, better at half of
        that."""
        return self._send("WATCHDOG=1") if self.watchdog_s is not None else False

    def reloading(self) -> bool:
        """Report that the configuration is read again; `ready` ends this state."""
        return self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> bool:
        """Report that the agent stops on purpose."""
        return self._send("STOPPING=1")

    def close(self) -> None:
        if self._notifier is not None:
            self._notifier.socket.close()
            self._notifier = None

    def _send(self, message: str) -> bool:
        if self._notifier is None:
            return False
        try:
            self._notifier.notify(message.encode("ascii", "replace").decode("ascii"))
        except OSError as exc:
            self.problem = f"systemd did not receive a message: {str(exc) or type(exc).__name__}"
            return False
        self.problem = None
        return True


def _watchdog_s(environ: Mapping[str, str]) -> float | None:
    """WATCHDOG_USEC in seconds, if it is meant for this process (WATCHDOG_PID,
    sd_watchdog_enabled(3))."""
    usec, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    if not usec.isdecimal() or int(usec) == 0 or (pid and pid != str(os.getpid())):
        return None
    return int(usec) / 1_000_000
