"""A program that answers each line with a line, asked again and again: one start for many
questions."""

from __future__ import annotations

from contextlib import suppress

from .process import Child, Remains, _Pipe

LINE_BYTES, TALK_BYTES = 1 << 20, 1 << 26
"""of one answer; of all answers together"""
LEAVE_WITHIN_S = 1.0


class Dialogue(Child):
    """Whoever starts it calls `end` in the end, as with any Child."""

    _talk: _Pipe | None = None

    async def ask(self, question: bytes, within_s: float) -> bytes:
        """Its answer to this line, without the newline. ChildProblem (hung, too-much, exited)."""
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
                raise self._problem("hung", f"pid {self.pid} gave no answer within {within_s:g} s")
            raise self._problem(
                *(
                    ("too-much", f"it wrote over {TALK_BYTES} bytes")
                    if talk.is_flooded
                    else ("exited", "it ended without an answer")
                )
            )
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
