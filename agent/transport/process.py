"""Programs with a deadline. A program is terminated, then killed, and abandoned where even that has
no effect.

Facts about processes:

* A process in uninterruptible sleep (state D: a driver call that never returns) takes no signal,
  not even SIGKILL, and stays our child; a call that waits for it hangs with it. So every wait here
  has a deadline.
* A pidfd is readable once the process is a zombie (pidfd_open(2), Linux 5.3): that needs no SIGCHLD
  handler and no thread.
* The kernel does not use a child's pid again before we have reaped it; signals go through the pidfd
  nevertheless.
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

LIMIT_BYTES = 1 << 20  # of output; a program that writes more is ended
ERR_TAIL_BYTES = 2048
_KILL_WITHIN_S = 1.0
_CHUNK_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Remains:
    """A child that survived SIGKILL, as /proc shows it now."""

    pid: int
    state: str
    """One letter of proc(5): D is uninterruptible sleep."""
    wchan: str
    """The kernel function that it sleeps in; empty where the kernel hides it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a program that was run to its end."""

    code: int | None
    """Exit status, negative for a signal; None if the program was not started or still exists."""
    out: bytes
    err: str
    """The end of its stderr, at most 2 KiB."""
    kind: ErrorKind | None = None
    """TIMED_OUT, TOO_LARGE or NOT_STARTED; None when it ended by itself, whatever its status."""
    sentence: str = ""
    """Why there is a `kind`; empty where there is none."""


class _Pipe:
    """The output of a pipe: it reads at most `limit_bytes` and keeps the last `keep_bytes` of
    them."""

    def __init__(
        self, file: IO[bytes], keep_bytes: int, limit_bytes: int, on_news: Callable[[], None]
    ) -> None:
        self.data = bytearray()
        self.is_over = self.is_flooded = False
        self._file, self._on_news = file, on_news
        self._keep_bytes, self._left = keep_bytes, limit_bytes
        os.set_blocking(file.fileno(), False)
        asyncio.get_running_loop().add_reader(file.fileno(), self.read)

    def read(self) -> bool:
        """Read one chunk; False where there is none now."""
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
        """Read no more. A child that goes on writing then blocks."""
        if not self.is_over:
            self.is_over = True
            asyncio.get_running_loop().remove_reader(self._file.fileno())

    def close(self) -> None:
        self.stop()
        self._file.close()


class Child:
    """A started program. The caller must call `end`, whatever happens."""

    def __init__(self, popen: subprocess.Popen[bytes], pidfd: int) -> None:
        self.pid = popen.pid
        self.code: int | None = None  # exit status, negative for a signal; None while it exists
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
        """Start the program in a session of its own and in "/". Its stdin stays open until
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
        """A program that `spawn` started before there was an event loop. Raises OSError."""
        return cls(popen, os.pidfd_open(popen.pid))

    @property
    def err_tail(self) -> str:
        """The end of its stderr so far, printable."""
        text = self._err.data.decode("utf-8", "replace").strip()
        return "".join(c if c.isprintable() or c == "\n" else "�" for c in text)

    async def first_line(self, within_s: float, limit_bytes: int = LIMIT_BYTES) -> bytes:
        """Its first line with the newline; the program may run on. Raises ProgramError."""
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
        """All of its output until it exits. Raises ProgramError (TIMED_OUT,
        TOO_LARGE)."""
        return await self._take(within_s, limit_bytes, lambda _: self.code is not None)

    async def wait_exited(self, within_s: float) -> bool:
        """True as soon as it has exited; False after `within_s` seconds."""
        return await self._wait(lambda: self.code is not None, within_s)

    def release(self) -> None:
        """Close its stdin: a program that waits for the end of file then ends."""
        if self._popen.stdin is not None:
            with suppress(OSError):
                self._popen.stdin.close()

    async def end(self, grace_s: float) -> Remains | None:
        """End and reap it, and return None; or what remains after SIGTERM, `grace_s` seconds and
        SIGKILL.

        Such a child is reaped once the kernel lets go of it. When cancelled, this kills at once.
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
            if number is signal.SIGKILL:
                # And what it started itself: until it is reaped, the group's id is not used again.
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
            while self.code is not None and out.read():
                pass  # but not to end of file: a grandchild may keep the pipe open
        finally:
            out.stop()
        if out.is_flooded or err.is_flooded:
            raise self._problem(f"it wrote over {limit_bytes} bytes", ErrorKind.TOO_LARGE)
        if not in_time:
            raise self._problem(
                f"pid {self.pid} did not answer within {within_s:g} s", ErrorKind.TIMED_OUT
            )
        return bytes(out.data)

    async def _wait(self, condition: Callable[[], bool], within_s: float) -> bool:
        """True as soon as the condition holds; False after `within_s` seconds."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        while not condition():
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
    """Run a program to its end, or end it: after `within_s` + `grace_s` + 1 s at the latest. It
    raises nothing."""
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
    """One letter of /proc/PID/stat (proc(5)); empty where there is no such process."""
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
