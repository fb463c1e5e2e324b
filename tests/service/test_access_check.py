"""What the agent makes of a batch of the access program's lines, of systemd's reload lines, and its
table."""

from __future__ import annotations

import asyncio
import json
import os
import random
from dataclasses import replace

import pytest

from agent.core.access.containers import UNUSED_DEVICE
from agent.host.access.checks import DeviceAccess, ask_many, verdict_of, verdicts_of
from agent.host.access.processes import Processes
from agent.host.journal import newest_request
from agent.model.access import CurrentAccess, Device, Question
from agent.model.actions import CheckAccess
from agent.model.errors import ErrorKind
from agent.service.access import table
from agent.transport.process import Outcome

CTL = Device("c", 195, 255)
QUESTION = Question("c1", 7, "99", (CTL, UNUSED_DEVICE), "programs 1")


def answer(device: Device, access: str, **changes: object) -> dict:
    return {
        "path": device.word,
        "kind": device.kind,
        "major": device.major,
        "minor": device.minor,
        "access": access,
        "errno": 0,
        "detail": "",
        **changes,
    }


def line(ctl: str = "allowed", nobodys: str = "denied", **changes: object) -> bytes:
    return json.dumps(
        {
            "v": 1,
            "pid": 7,
            "started": "99",
            "cgroup": "/x",
            "version": "v2",
            "rules": "programs 1,2",
            "way": "scratch",
            "place": "/y",
            "answers": [answer(CTL, ctl), answer(UNUSED_DEVICE, nobodys)],
            **changes,
        }
    ).encode()


def test_a_line_is_a_verdict_on_the_tested_rules() -> None:
    found = verdict_of(line(), QUESTION, 5.0)
    assert found.answers == ((CTL, CurrentAccess.ALLOWED), (UNUSED_DEVICE, CurrentAccess.DENIED))
    assert (found.rules, found.asked_rules, found.all_devices, found.at) == (
        "programs 1,2",
        "programs 1",
        False,
        5.0,
    )
    assert verdict_of(line(nobodys="allowed"), QUESTION, 5.0).all_devices


JUNK = [
    b"",
    b"null",
    b"{}",
    b"\xff\xfe",
    b"[" * 10_000,
    line()[:-9],
    line() + b"x",
    line(v=2),
    line(pid=8),
    line(way=""),
    line(rules=""),
    line(started="100"),
    line(started=7),
    line(answers=[]),
    line(answers=[answer(CTL, "allowed")]),
    line(answers=[answer(UNUSED_DEVICE, "allowed"), answer(CTL, "allowed")]),
    line(ctl="fine"),
    line(answers={"a": 1}),
    line(answers=[None, None]),
]


@pytest.mark.parametrize("junk", JUNK)
def test_malformed_output_leaves_everything_unknown(junk: bytes) -> None:
    found = verdict_of(junk, QUESTION, 5.0)
    assert (
        {now for _, now in found.answers} == {CurrentAccess.UNKNOWN}
        and found.detail
        and not found.all_devices
    )
    assert found.rules == QUESTION.rules, "it is not asked again at once"


def test_torn_lines_never_become_an_answer() -> None:
    dice = random.Random(3)
    whole = line()
    for _ in range(3000):
        torn = bytearray(whole)
        for _ in range(dice.randrange(1, 4)):
            torn[dice.randrange(len(torn))] = dice.randrange(256)
        now = dict(verdict_of(bytes(torn), QUESTION, 5.0).answers)[CTL]
        assert now in (CurrentAccess.ALLOWED, CurrentAccess.UNKNOWN), "never denied by an accident"


@pytest.mark.parametrize(
    "ended",
    [
        Outcome(None, b"", "", ErrorKind.TIMED_OUT, "it did not end"),
        Outcome(1, line() + b"\n", "Traceback"),
        Outcome(0, b"", ""),
        Outcome(0, line() + b"\n", ""),
        Outcome(0, b"\n".join([line()] * 3), ""),
    ],
)
def test_only_a_complete_run_counts(ended: Outcome) -> None:
    for verdict in verdicts_of(ended, [QUESTION, QUESTION], 5.0):
        assert {now for _, now in verdict.answers} == {CurrentAccess.UNKNOWN} and verdict.detail


def test_cached_state_of_a_container_is_removed_with_it() -> None:
    """A node may start a hundred thousand of them in a year."""
    from agent.transport.device_cgroups import started

    def of(container_id: str) -> CheckAccess:
        asked = Question(
            container_id, os.getpid(), started(os.getpid()), (CTL, UNUSED_DEVICE), "programs 1"
        )
        return CheckAccess((asked,), ((f"cri-containerd-{container_id}.scope", "programs 1"),), 0.0)

    async def main() -> tuple[set[str], set[str]]:
        checks = DeviceAccess(lambda _: None)
        units = []
        for action in (of("a1"), of("b2")):
            checks.start(action)
            units.append({s.unit for s in (await checks.finished()).scopes})
            if action == of("a1"):  # its process ends
                gone = replace(checks.state.verdicts[0], started="1")
                checks.state = replace(checks.state, verdicts=(gone,))
        return units[0], units[1]

    assert asyncio.run(main()) == ({"cri-containerd-a1.scope"}, {"cri-containerd-b2.scope"})


def test_an_ended_process_is_unknown() -> None:
    (found,) = asyncio.run(
        ask_many([Question("c1", 4194300, "1", (CTL, UNUSED_DEVICE), "programs 1")])
    )
    assert {now for _, now in found.answers} == {CurrentAccess.UNKNOWN}


@pytest.mark.skipif(os.geteuid() != 0, reason="reading device programs is root's")
def test_the_agent_and_the_program_read_the_same_rules() -> None:
    """The agent's cheap reading and the program's own must name the same rules, or no verdict would
    ever stand."""
    from agent.host.access.processes import _Known

    reader, pid = Processes(), os.getpid()
    from agent.transport.device_cgroups import started

    reader._known["me"] = _Known(pid, started(pid), ())
    (process,) = asyncio.run(reader.read("/none", ["me"]))
    (found,) = asyncio.run(
        ask_many([Question("me", pid, process.started, (Device("c", 1, 3),), process.rules)])
    )
    if process.rules:
        assert found.rules == process.rules and process.other_until == 0.0
    else:
        assert process.problem


def test_the_requester_of_a_reload() -> None:
    def entry(message: object) -> bytes:
        return json.dumps({"MESSAGE": message}).encode()

    asked = entry(
        "Reloading requested from client PID 4711 ('systemctl') (unit session-1.scope)..."
    )
    assert (
        newest_request([entry("Reloading..."), asked, b"junk", entry(["bytes"]), entry(None)])
        == "client PID 4711 ('systemctl') (unit session-1.scope)"
    )
    later = entry("Reexecution requested from client PID 1 ('x')...")
    assert newest_request([asked, later]) == "client PID 1 ('x')"
    assert newest_request([]) == ""


def test_the_access_table() -> None:
    row = {
        "namespace": "ml",
        "pod": "train-0",
        "container": "main\x1b[31m",
        "gpus": ["a", "b"],
        "now": "allowed",
        "after_reload": "lost",
        "why": "DevicePolicy=strict, " * 8,
        "cure": "CDI",
    }
    lines = table([row, {}])
    assert lines[0].split() == ["POD", "CONTAINER", "GPUS", "NOW", "AFTER", "RELOAD", "WHY"]
    assert (
        lines[1].startswith("ml/train-0")
        and " 2 " in lines[1]
        and "LOST" in lines[1]
        and "\x1b" not in lines[1]
    )
    assert lines[-1] == "For good: CDI."
    assert table([]) == ["No running container holds GPUs."]
