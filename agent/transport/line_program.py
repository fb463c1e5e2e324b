"""A program that answers each line with a line, asked again and again: one start for many
questions."""

from __future__ import annotations

from contextlib import suppress

from ..model.errors import ErrorKind
from .process import Child, Remains, _Pipe

LINE_BYTES, TALK_BYTES = 1 << 20, 1 << 26
"""of one answer; of all answers together"""
LEAVE_WITHIN_S = 1.0


class Dialogue(Child):
    """Whoever starts it calls `end` in the end, as with any Child."""

    _talk: _Pipe | None = None

    async def ask(self, question: bytes, within_s: float) -> bytes:
        """Its answer to this line, without the newline. Raises ProgramError (TIMED_OUT,
        TOO_LARGE, EXITED)."""
        if self._talk is None:
            self._talk = _Pipe(self._out, LINE_BYTES, TALK_BYTES, self._on_news)
        talk, stdin = self._talk, self._popen.stdin
        assert stdin is not None
        with suppress(OSError):  # it has ended: the pipe's end says so
            stdin.write(question + b"\n")
        in_time = await self._wait(lambda: b"\n" in talk.data or talk.is_over, within_s)
        line, newline, _ = talk.data.partition(b"\n")
        if not newline:
            if not in_time:
                raise self._problem(
                    f"pid {self.pid} did not answer within {within_s:g} s", ErrorKind.TIMED_OUT
                )
            if talk.is_flooded:
                raise self._problem(f"it wrote over {TALK_BYTES} bytes", ErrorKind.TOO_LARGE)
            raise self._problem("it ended without an answer", ErrorKind.EXITED)
        del talk.data[: len(line) + 1]
        return bytes(line)

    async def end(self, grace_s: float) -> Remains | None:
        """Its input ends, and it has a moment to clean up by itself."""
        try:
            self.release()
            await self.wait_exited(LEAVE_WITHIN_S)
        finally:
            if self._talk is not None:
                self._talk.stop()
            remains = await super().end(grace_s)
        return remains
