"""The disruptive actions: evidence first, then the ledger, then the action; and the behaviour if
one of them fails."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.core.plugin import ledger as reading
from agent.host import repair_diagnostics
from agent.host.codec import encode
from agent.host.live import LiveHost
from agent.host.repairer import PluginRepairer
from agent.host.tape import Replay, Tape
from agent.model.actions import NoteNvmlFailed, NoteOutcome, Rebuild, RestartUnit, SendHup
from agent.model.errors import ActionFailed, BusError, ErrorKind
from agent.model.reading import Refusal, Seen, Why
from agent.model.runtime import LedgerEntry
from agent.model.settings import Settings
from agent.model.snapshot import Devices
from tests.unit.snapshots import snapshot

STATE = "var/lib/gpu-gate"
CAUSE = "PluginInitFailed kube-system/dp/ctr kubelet 0a1b"
RESTART = RestartUnit(4, "dp.service", "0123456789abcdef", CAUSE, "it said so")


class Bus:
    """systemd, as far as a restart needs it. `during` is called during the request."""

    def __init__(
        self, during: Callable[[], Any] = lambda: None, result: str | Exception = "done"
    ) -> None:
        self.during, self.result = during, result
        self.restarted: list[str] = []

    async def start_unit(self, name: str, within_s: float, member: str = "StartUnit") -> str:
        self.restarted.append(f"{member} {name}")
        found = self.during()
        if asyncio.iscoroutine(found):
            await found
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


def entries(root: Path) -> tuple[LedgerEntry, ...]:
    path = root / STATE / "ledger.jsonl"
    found = reading.read(path.read_bytes()) if path.is_file() else ()
    assert found is not None
    return found


def bundles(root: Path) -> list[Path]:
    folder = root / STATE / "evidence"
    return sorted(folder.iterdir()) if folder.is_dir() else []


def done(root: Path, action: Any, bus: Bus | None = None, socket: str = "/none") -> list[str]:
    """Begin it, wait for its end, and return the reports."""
    told: list[str] = []

    async def main() -> None:
        ended = asyncio.Event()

        def on_done(sentence: str) -> None:
            told.append(sentence)
            ended.set()

        repairer = PluginRepairer(LiveHost(), bus or Bus(), on_done, str(root))  # type: ignore[arg-type]
        await repairer.begin(action, Tape(), socket)
        await asyncio.wait_for(ended.wait(), 60)
        await repairer.close()

    asyncio.run(main())
    return told


def test_evidence_then_ledger_then_the_action(tmp_path: Path) -> None:
    seen: list[Any] = []
    bus = Bus(lambda: seen.append((entries(tmp_path), bundles(tmp_path))))
    assert done(tmp_path, RESTART, bus=bus) == ["dp.service: done"]
    ((written, kept),) = seen
    (line,) = written
    assert (line.number, line.what, line.target, line.cause) == (
        4,
        "restart-unit",
        "dp.service 0123456789ab",
        CAUSE,
    )
    assert line.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert [f"/{p.relative_to(tmp_path)}" for p in kept] == [line.evidence]
    assert {"manifest.json", "journal.txt"} <= {p.name for p in kept[0].iterdir()}
    assert bus.restarted == ["RestartUnit dp.service"]


@pytest.mark.parametrize(
    ("bus", "says", "outcomes"),
    [
        (Bus(result="failed"), "dp.service: failed", []),
        (
            Bus(result=BusError("systemd did not answer", ErrorKind.TIMED_OUT)),
            "repair 4 failed: systemd did not answer",
            ["failed: systemd did not answer"],
        ),
    ],
)
def test_an_action_without_effect_is_an_outcome(
    tmp_path: Path, bus: Bus, says: str, outcomes: list[str]
) -> None:
    assert done(tmp_path, RESTART, bus=bus) == [says]
    first, *rest = entries(tmp_path)
    assert first.what == "restart-unit", "it was begun"
    assert [(e.what, e.number, e.outcome) for e in rest] == [
        ("outcome", 4, said) for said in outcomes
    ]
    for said in outcomes:
        assert (tmp_path / first.evidence.lstrip("/") / "outcome").read_text() == f"{said}\n"


NOTHING, EIGHT = (), (Devices("nvidia.com/gpu", tuple(f"GPU-{n}" for n in range(8))),)


@pytest.mark.parametrize(
    ("then", "now", "is_done"),
    [
        (Seen(NOTHING, 1.0), Seen(NOTHING, 2.0), True),
        (Refusal(Why.MISSING, "/other.sock"), Seen(EIGHT, 2.0), True),
        (Seen(NOTHING, 1.0), Seen(EIGHT, 2.0), False),
        (Seen(NOTHING, 1.0), Refusal(Why.TIMED_OUT, "no answer"), False),
    ],
)
def test_a_plugin_that_registered_while_evidence_was_saved_is_not_restarted(
    tmp_path: Path, then: Any, now: Any, is_done: bool
) -> None:
    class Host(LiveHost):
        async def allocatable(self, socket: str) -> Any:
            assert socket == "/k.sock"
            return now

    async def main() -> None:
        repairer = PluginRepairer(Host(), bus, lambda _: None, str(tmp_path))  # type: ignore[arg-type]
        tape = Tape({Tape.key("allocatable", "/k.sock"): encode(then)})
        with (
            contextlib.nullcontext()
            if is_done
            else pytest.raises(ActionFailed, match="the next cycle decides again")
        ):
            await repairer.begin(RESTART, tape, "/none")
        await asyncio.sleep(0)
        await repairer.close()

    bus = Bus()
    asyncio.run(main())
    assert bool(bus.restarted) == bool(entries(tmp_path)) == bool(bundles(tmp_path)) == is_done


def test_a_later_nvml_failure_is_recorded(tmp_path: Path) -> None:
    async def main() -> None:
        repairer = PluginRepairer(LiveHost(), Bus(), lambda _: None, str(tmp_path))  # type: ignore[arg-type]
        await repairer.note(NoteNvmlFailed(4))

    asyncio.run(main())
    assert [(e.what, e.number) for e in entries(tmp_path)] == [("nvml-failed", 4)]


def test_without_a_runtime_a_rebuild_fails(tmp_path: Path) -> None:
    (said,) = done(tmp_path, Rebuild(1, "c1", CAUSE, "x"), socket=str(tmp_path / "gone.sock"))
    assert said.startswith("repair 1 failed")


def refused(root: Path, tape: Tape | None, bus: Bus) -> str:
    async def main() -> str:
        repairer = PluginRepairer(LiveHost(), bus, lambda _: None, str(root))  # type: ignore[arg-type]
        with pytest.raises(ActionFailed) as failed:
            await repairer.begin(RESTART, tape, "/none")
        assert not repairer.is_busy
        return failed.value.sentence

    return asyncio.run(main())


def test_a_snapshot_without_a_tape_is_no_evidence(tmp_path: Path) -> None:
    bus = Bus()
    assert "was not recorded" in refused(tmp_path, None, bus)
    assert (bus.restarted, entries(tmp_path), bundles(tmp_path)) == ([], (), [])


def test_without_evidence_no_ledger_entry_and_no_repair(tmp_path: Path) -> None:
    (tmp_path / STATE).mkdir(parents=True)
    (tmp_path / STATE / "evidence").write_text("in the way")
    bus = Bus()
    assert "so no repair was begun" in refused(tmp_path, Tape(), bus)
    assert (bus.restarted, entries(tmp_path)) == ([], ())


def test_without_a_ledger_no_repair_and_no_evidence_is_removed(
    tmp_path: Path,
) -> None:
    done(tmp_path, replace(RESTART, number=1))
    (first,) = bundles(tmp_path)
    (tmp_path / STATE / "ledger.jsonl").unlink()
    (tmp_path / STATE / "ledger.jsonl").mkdir()
    bus = Bus()
    assert "so no repair was begun" in refused(tmp_path, Tape(), bus)
    assert (bus.restarted, bundles(tmp_path)) == ([], [first])


def test_one_at_a_time(tmp_path: Path) -> None:
    async def main() -> None:
        held = asyncio.Event()
        repairer = PluginRepairer(LiveHost(), Bus(held.wait), lambda _: None, str(tmp_path))  # type: ignore[arg-type]
        await repairer.begin(RESTART, Tape(), "/none")
        assert repairer.is_busy
        with pytest.raises(ActionFailed, match="still running"):
            await repairer.begin(RESTART, Tape(), "/none")
        assert len(entries(tmp_path)) == 1
        await repairer.close()
        assert not repairer.is_busy, "given up where it stands"

    asyncio.run(asyncio.wait_for(main(), 10))


def test_an_outcome_is_written_to_the_evidence_and_the_ledger(tmp_path: Path) -> None:
    done(tmp_path, RESTART)
    (kept,) = bundles(tmp_path)

    async def main() -> None:
        repairer = PluginRepairer(LiveHost(), Bus(), lambda _: None, str(tmp_path))  # type: ignore[arg-type]
        await repairer.note(NoteOutcome(4, "not cured", f"/{kept.relative_to(tmp_path)}"))

    asyncio.run(main())
    action, outcome = entries(tmp_path)
    assert reading.outcome_of((action, outcome), action) == "not cured"
    assert reading.actions((action, outcome), action.boot_id) == (action,), (
        "an outcome is no action"
    )
    assert (kept / "outcome").read_text() == "not cured\n"


# --- SIGHUP


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    # Whoever runs the tests under nohup has SIGHUP ignored, and a child would inherit it.
    started = subprocess.Popen(["env", "--default-signal=HUP", "sleep", "600"])
    yield started
    started.kill()
    started.wait()


def cgroup_word(pid: int) -> str:
    """Something that is in the cgroup file of this process, as a container's id is."""
    return Path(f"/proc/{pid}/cgroup").read_text().strip()


def test_sighup_goes_to_a_process_of_the_container(
    tmp_path: Path, child: subprocess.Popen[bytes]
) -> None:
    (said,) = done(tmp_path, SendHup(1, cgroup_word(child.pid), child.pid, CAUSE, "x"))
    assert said == f"SIGHUP sent to pid {child.pid}"
    assert child.wait(60) == -1
    assert entries(tmp_path)[0].what == "hup"


def test_a_reused_pid_gets_no_signal(tmp_path: Path, child: subprocess.Popen[bytes]) -> None:
    (said,) = done(tmp_path, SendHup(1, "0123456789abcdef", child.pid, CAUSE, "x"))
    assert "no signal was sent" in said
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.2)


def test_an_ended_process(tmp_path: Path, child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()
    (said,) = done(tmp_path, SendHup(3, "x", child.pid, CAUSE, "x"))
    assert said.startswith("repair 3 failed")


async def until_reaped(asked: Coroutine[Any, Any, None]) -> None:
    """What was cut off is killed, and reaped by the loop that goes on."""
    await asked
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            await asyncio.sleep(0.05)


ENTRY = (
    '{"__MONOTONIC_TIMESTAMP": "5000000", "_PID": "1", "MESSAGE": "Reloading requested '
    'from client PID 4711."}'
)


@pytest.mark.parametrize(
    ("journalctl", "wait_s", "lines"),
    [
        (f"echo '{ENTRY}'", 30.0, ["Reloading requested from client PID 4711."]),
        ("exec sleep 600", 0.1, None),
    ],
)
def test_diagnostics_are_saved_with_a_repair_and_do_not_delay_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    journalctl: str,
    wait_s: float,
    lines: list[str] | None,
) -> None:
    program = tmp_path / "journalctl"
    program.write_text(f"#!/bin/sh\n{journalctl}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(repair_diagnostics, "WAIT_S", wait_s)
    tape = Tape({Tape.key("machine"): "the look's own"})

    async def main() -> None:
        asked = repair_diagnostics.RepairDiagnostics()
        asked.begin(Settings(), snapshot())
        await asked.add_to(tape)
        await asked.close()

    asyncio.run(asyncio.wait_for(until_reaped(main()), 60))
    found = asyncio.run(Replay(tape).journal(()))
    assert ([line.text for line in found.value] if isinstance(found, Seen) else None) == lines
    assert tape.answers[Tape.key("machine")] == "the look's own"
    if lines:
        assert Tape.key("file", "/proc/sys/kernel/osrelease") in tape.answers
