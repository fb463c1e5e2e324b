"""A program with a deadline: asked to end, killed, and, where even that has no effect, abandoned.

Facts this file lives with:

* A process in uninterruptible sleep (state D: a driver call that never returns) takes no signal,
  not even
  SIGKILL, and stays our child; whoever waits for it hangs with it. So nothing here waits without a
  deadline.
* A pidfd is readable once the process is a zombie (pidfd_open(2), Linux 5.3): no SIGCHLD handler,
  no thread.
* A child's pid is not used again before we have reaped it, and signals go through the pidfd all the
  same.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

from ..model.errors import ErrorKind, ProgramError
from .spawn import spawn

LIMIT_BYTES = 1 << 20  # of output; more counts as a flood
ERR_TAIL_BYTES = 2048
_KILL_WITHIN_S = 1.0
_CHUNK_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Remains:
    """A child that outlived SIGKILL, as /proc shows it now."""

    pid: int
    state: str
    """One letter of proc(5): D is uninterruptible sleep."""
    wchan: str
    """The kernel function it sleeps in; "" where the kernel hides it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a program that was run to its end did."""

    code: int | None
    """Exit status, negative for a signal; None when it was never started or is still there."""
    out: bytes
    err: str
    """The end of its stderr, 2 KiB at most."""
    kind: ErrorKind | None = None
    """TIMED_OUT, TOO_LARGE or NOT_STARTED; None when it ended by itself, whatever its status."""
    sentence: str = ""
    """Why there is a `kind`; empty where there is none."""


class _Pipe:
    """What comes out of a pipe: `limit_bytes` are read at most, the last `keep_bytes` of them are
    kept."""

    def __init__(
        self, file: IO[bytes], keep_bytes: int, limit_bytes: int, on_news: Callable[[], None]
    ) -> None:
        self.data = bytearray()
        self.is_over = self.is_flooded = False
        self._file, self._keep_bytes, self._left, self._on_news = (
            file,
            keep_bytes,
            limit_bytes,
            on_news,
        )
        os.set_blocking(file.fileno(), False)
        asyncio.get_running_loop().add_reader(file.fileno(), self.read)

    def read(self) -> bool:
        """Take what is there now, one chunk of it; False when there was nothing."""
        if self.is_over:
            return False
        try:
            chunk = os.read(self._file.fileno(), min(_CHUNK_BYTES, self._left + 1))
        except BlockingIOError:
            return False
        self._left -= len(chunk)
        self.data += chunk
        del self.data[: -self._keep_bytes]
        self.is_flooded = self._left < 0
        if not chunk or self.is_flooded:
            self.stop()
        self._on_news()
        return True

    def stop(self) -> None:
        """Read no more; a child that goes on writing blocks."""
        if not self.is_over:
            self.is_over = True
            asyncio.get_running_loop().remove_reader(self._file.fileno())

    def close(self) -> None:
        self.stop()
        self._file.close()


class Child:
    """A started program. Whoever starts it calls `end` in the end, whatever happened before."""

    def __init__(self, popen: subprocess.Popen[bytes], pidfd: int) -> None:
        self.pid = popen.pid
        self.code: int | None = None  # exit status, negative for a signal; None while it is there
        self._popen, self._pidfd = popen, pidfd
        self._news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        assert popen.stderr is not None and popen.stdout is not None
        self._out = popen.stdout
        self._err = _Pipe(popen.stderr, ERR_TAIL_BYTES, LIMIT_BYTES, self._on_news)
        asyncio.get_running_loop().add_reader(pidfd, self._on_exit)

    @classmethod
    async def start(
        cls, argv: Sequence[str], *, env: Mapping[str, str] | None = None, hold_stdin: bool = True
    ) -> Child:
        """The program, started in a session of its own and in "/"; its stdin stays open until
        `release`.

        Raises ProgramError (NOT_STARTED).
        """
        try:
            popen = spawn(argv, env, hold_stdin)
        except (OSError, ValueError) as exc:
            raise ProgramError(f"could not start {argv[0]}: {exc}", ErrorKind.NOT_STARTED) from exc
        try:
            return cls.adopt(popen)
        except OSError as exc:  # no descriptor is left for its pidfd
            popen.kill()
            for pipe in filter(None, (popen.stdin, popen.stdout, popen.stderr)):
                pipe.close()
            with suppress(subprocess.TimeoutExpired):
                popen.wait(_KILL_WITHIN_S)
            raise ProgramError(
                f"killed {argv[0]}, because no pidfd could be opened for it: {exc}",
                ErrorKind.NOT_STARTED,
            ) from exc

    @classmethod
    def adopt(cls, popen: subprocess.Popen[bytes]) -> Child:
        """One that `spawn` started before there was a loop."""
        return cls(popen, os.pidfd_open(popen.pid))

    @property
    def err_tail(self) -> str:
        """The end of its stderr so far, printable."""
        text = self._err.data.decode("utf-8", "replace").strip()
        return "".join(c if c.isprintable() or c == "\n" else "�" for c in text)

    async def first_line(self, within_s: float, limit_bytes: int = LIMIT_BYTES) -> bytes:
        """Its first line, newline included; the program may go on. Raises ProgramError."""
        data = await self._take(within_s, limit_bytes, lambda out: b"\n" in out.data or out.is_over)
        line, newline, _ = data.partition(b"\n")
        if newline:
            if not _is_text(line):
                raise self._problem(
                    f"its {len(line)} bytes of output are not text", ErrorKind.MALFORMED
                )
            return line + newline
        await self.wait_exited(_KILL_WITHIN_S)
        if line:
            raise self._problem(
                f"its output ended within a line, after {len(line)} bytes", ErrorKind.MALFORMED
            )
        raise self._problem(f"it {_how(self.code)} without output", ErrorKind.EXITED)

    async def output(self, within_s: float, limit_bytes: int = LIMIT_BYTES) -> bytes:
        """All that it writes until it exits. Raises ProgramError (TIMED_OUT,
        TOO_LARGE)."""
        return await self._take(within_s, limit_bytes, lambda _: self.code is not None)

    async def wait_exited(self, within_s: float) -> bool:
        """True as soon as it has ended by itself; False at the deadline."""
        return await self._wait(lambda: self.code is not None, within_s)

    def release(self) -> None:
        """Close its stdin: a program that holds until end of file goes on to its end."""
        if self._popen.stdin is not None:
            with suppress(OSError):
                self._popen.stdin.close()

    async def end(self, grace_s: float) -> Remains | None:
        """Ended and reaped: None. Still there after SIGTERM, `grace_s` and SIGKILL: what remains,
        left alone.

        Such a child is reaped by itself when the kernel lets go of it. Cancelled, it kills without
        the grace.
        """
        try:
            for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, _KILL_WITHIN_S)):
                self._send(number)
                if await self.wait_exited(wait_s):
                    break
        except asyncio.CancelledError:
            self._send(signal.SIGKILL)
            raise
        finally:
            self.release()
            self._out.close()
            self._err.close()
        return self.remains()

    def remains(self) -> Remains | None:
        """The child as /proc shows it now; None once it is gone."""
        self._on_exit()
        if self.code is not None:
            return None
        return Remains(self.pid, state_of(self.pid) or "?", _proc(self.pid, "wchan").strip("0"))

    def _send(self, number: signal.Signals) -> None:
        self._on_exit()
        if self.code is None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)
            if (
                number is signal.SIGKILL
            ):  # and what it started itself; the group's id is ours until it is reaped
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, number)

    def _on_exit(self) -> None:
        if self.code is None and (code := self._popen.poll()) is not None:
            self.code = code
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._on_news()

    def _on_news(self) -> None:
        if not self._news.done():
            self._news.set_result(None)

    async def _take(
        self, within_s: float, limit_bytes: int, is_enough: Callable[[_Pipe], bool]
    ) -> bytes:
        out, err = _Pipe(self._out, limit_bytes + 1, limit_bytes, self._on_news), self._err
        try:
            in_time = await self._wait(
                lambda: is_enough(out) or out.is_flooded or err.is_flooded, within_s
            )
            while (
                self.code is not None and out.read()
            ):  # not to its end: a grandchild may keep the pipe open
                pass
        finally:
            out.stop()
        if out.is_flooded or err.is_flooded:
            raise self._problem(f"it wrote over {limit_bytes} bytes", ErrorKind.TOO_LARGE)
        if not in_time:
            raise self._problem(
                f"pid {self.pid} did not answer within {within_s:g} s", ErrorKind.TIMED_OUT
            )
        return bytes(out.data)

    async def _wait(self, is_so: Callable[[], bool], within_s: float) -> bool:
        """True as soon as it is so; False at the deadline."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        while not is_so():
            if (left_s := deadline - loop.time()) <= 0:
                return False
            self._news = loop.create_future()
            await asyncio.wait({self._news}, timeout=left_s)
        return True

    def _problem(self, sentence: str, kind: ErrorKind) -> ProgramError:
        self._err.read()
        return ProgramError(f"{sentence}: {self.err_tail}" if self.err_tail else sentence, kind)


async def run_once(
    argv: Sequence[str],
    within_s: float,
    limit_bytes: int = LIMIT_BYTES,
    *,
    env: Mapping[str, str] | None = None,
    grace_s: float = 1.0,
) -> Outcome:
    """A program run to its end, or ended by us: `within_s` + `grace_s` + 1 s at the latest. Never
    raises."""
    try:
        child = await Child.start(argv, env=env, hold_stdin=False)
    except ProgramError as problem:
        return Outcome(None, b"", "", problem.kind, problem.sentence)
    out, kind, sentence = b"", None, ""
    try:
        out = await child.output(within_s, limit_bytes)
    except ProgramError as problem:
        kind, sentence = problem.kind, problem.sentence
    finally:
        await child.end(grace_s)
    return Outcome(child.code, out, child.err_tail, kind, sentence)


def state_of(pid: int) -> str:
    """One letter of /proc/PID/stat (proc(5)); "" where there is no such process."""
    return _proc(pid, "stat").rpartition(")")[2].strip()[:1]


def _how(code: int | None) -> str:
    if code is None:
        return "closed its output"
    return f"was killed by signal {-code}" if code < 0 else f"exited with status {code}"


def _is_text(line: bytes) -> bool:
    with suppress(UnicodeDecodeError):
        return line.decode("utf-8").replace("\t", " ").isprintable()
    return False


def _proc(pid: int, name: str) -> str:
    with suppress(OSError), open(f"/proc/{pid}/{name}", encoding="utf-8", errors="replace") as file:
        return file.read().strip()
    return ""
