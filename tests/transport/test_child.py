"""Programs that behave badly: they ignore, flood, babble, hold on, or sleep where no signal
reaches."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import sys
from pathlib import Path

import pytest

from agent.model.errors import ErrorKind, ProgramError
from agent.transport.process import Child, run_once

from .conftest import PATIENCE_S, until

FREEZER = Path("/sys/fs/cgroup/freezer")


def shell(program: str) -> list[str]:
    return ["/bin/sh", "-c", program]


async def problem_of(program: str, within_s: float = PATIENCE_S) -> ProgramError:
    child = await Child.start(shell(program))
    try:
        with pytest.raises(ProgramError) as caught:
            await child.first_line(within_s)
        return caught.value
    finally:
        assert await child.end(PATIENCE_S) is None


def test_a_child_prints_a_line_and_ends_after_its_release(run):
    async def main():
        child = await Child.start(shell("""echo '{"gpus": 8}'; cat; echo released >&2; exit 7"""))
        assert await child.first_line(PATIENCE_S) == b'{"gpus": 8}\n'
        assert child.code is None
        child.release()
        assert await child.wait_exited(PATIENCE_S)
        assert await child.end(0) is None
        assert child.code == 7

    run(main())


@pytest.mark.parametrize(
    ("program", "kind", "said"),
    [
        (r"printf '\377\376\n'", ErrorKind.MALFORMED, "2 bytes of output are not text"),
        ("printf half", ErrorKind.MALFORMED, "within a line, after 4 bytes"),
        (
            "echo why it failed >&2; exit 3",
            ErrorKind.EXITED,
            "exited with status 3 without output: why it failed",
        ),
        ("kill -SEGV $$", ErrorKind.EXITED, "killed by signal 11"),
        ("exec >&-; exec sleep 60", ErrorKind.EXITED, "closed its output"),
    ],
)
def test_malformed_output_is_reported(run, program, kind, said):
    problem = run(problem_of(program))
    assert problem.kind is kind
    assert said in problem.sentence


def test_silence_is_a_hang(run):
    problem = run(problem_of("echo starting >&2; exec sleep 60", within_s=1.5))
    assert problem.kind is ErrorKind.TIMED_OUT
    assert "within 1.5 s: starting" in problem.sentence


@pytest.mark.parametrize("where", [1, 2])
def test_a_flood_is_cut_at_the_limit_and_uses_no_memory(run, where):
    flood = f"import os\nfor _ in range(16384): os.write({where}, b'x' * 65536)"

    async def main():
        before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        child = await Child.start([sys.executable, "-c", flood])
        with pytest.raises(ProgramError) as caught:
            await child.first_line(PATIENCE_S)
        assert caught.value.kind is ErrorKind.TOO_LARGE
        assert len(caught.value.sentence) < 3000
        assert await child.end(PATIENCE_S) is None
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 16 * 1024

    run(main())


def test_a_missing_program_is_unstartable(run):
    async def main():
        with pytest.raises(ProgramError) as caught:
            await Child.start(["/nonexistent/nvidia-modprobe"])
        assert caught.value.kind is ErrorKind.NOT_STARTED
        assert "/nonexistent/nvidia-modprobe" in caught.value.sentence

    run(main())


def test_a_child_that_ignores_sigterm_is_killed_with_its_children(run):
    async def main():
        child = await Child.start(shell("trap '' TERM; sleep 60 & echo $!; wait"))
        grandchild = int(await child.first_line(PATIENCE_S))
        assert await child.end(0.05) is None
        assert child.code == -9
        await until(lambda: not _is_running(grandchild))

    run(main())


def test_a_cancelled_end_still_kills(run):
    async def main():
        child = await Child.start(shell("trap '' TERM; echo; sleep 60"))
        await child.first_line(PATIENCE_S)
        ending = asyncio.ensure_future(child.end(60))
        await asyncio.sleep(0)
        ending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ending
        await until(lambda: child.remains() is None)

    run(main())


def test_an_ended_child_leaves_no_zombie_and_no_descriptor(run):
    async def main():
        child = await Child.start(shell("exit 0"))
        await child.end(PATIENCE_S)
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            child = await Child.start(shell("echo x; sleep 60"))
            await child.first_line(PATIENCE_S)
            await child.end(PATIENCE_S)
            assert not Path(f"/proc/{child.pid}").exists()
        assert len(os.listdir("/proc/self/fd")) == before

    run(main())


@pytest.fixture
def freezer():
    """A v1 freezer cgroup: what is frozen in it sleeps uninterruptibly, as in a driver that never
    answers."""
    cgroup = FREEZER / f"gpu-gate-test-{os.getpid()}"
    try:
        cgroup.mkdir()
    except OSError as exc:
        pytest.skip(f"no v1 freezer cgroup to be had: {exc}")
    yield cgroup
    (cgroup / "freezer.state").write_text("THAWED")
    cgroup.rmdir()


def test_a_child_in_uninterruptible_sleep_is_abandoned_and_reaped_in_the_end(run, freezer):
    async def main():
        child = await Child.start(shell("echo; exec sleep 60"))
        await child.first_line(PATIENCE_S)
        (freezer / "cgroup.procs").write_text(str(child.pid))
        (freezer / "freezer.state").write_text("FROZEN")
        await until(lambda: (freezer / "freezer.state").read_text() == "FROZEN\n")
        remains = await child.end(0.05)
        assert remains is not None
        assert (remains.pid, remains.state) == (child.pid, "D")
        assert child.remains().state == "D"
        (freezer / "freezer.state").write_text("THAWED")
        await until(lambda: child.code is not None)  # without anybody waiting for it
        assert child.remains() is None

    run(main())


def test_an_ordinary_program_is_run_to_its_end(run):
    outcome = run(run_once(shell("echo out; echo err >&2; exit 4"), PATIENCE_S))
    assert (outcome.code, outcome.out, outcome.err, outcome.kind) == (4, b"out\n", "err", None)


def test_a_grandchild_that_keeps_the_pipe_open_does_not_block(run):
    outcome = run(run_once(shell("sleep 60 & echo done; echo $! >&2"), PATIENCE_S))
    os.kill(int(outcome.err), 9)
    assert (outcome.code, outcome.out, outcome.kind) == (0, b"done\n", None)


def test_an_ordinary_program_that_does_not_end_is_ended(run):
    outcome = run(run_once(shell("exec sleep 60"), 0.05))
    assert (outcome.kind, outcome.code) == (ErrorKind.TIMED_OUT, -15)


def test_a_program_that_cannot_start_is_an_outcome(run):
    outcome = run(run_once(["/nonexistent"], PATIENCE_S))
    assert (outcome.kind, outcome.code) == (ErrorKind.NOT_STARTED, None)


def _is_running(pid: int) -> bool:
    """Alive and not a zombie: in a container init may not reap the processes that it inherits."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_child_without_a_pidfd_is_killed_and_reported(run, monkeypatch):
    """Without a free descriptor for its pidfd: it must neither continue alone nor end its
    parent."""

    def none_left(_pid):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "pidfd_open", none_left)
    ended = run(run_once(shell("exec sleep 600"), PATIENCE_S))
    assert ended.kind is ErrorKind.NOT_STARTED
    assert "Too many open files" in ended.sentence
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
