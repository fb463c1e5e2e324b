"""The access probe's parsers, its usage, and what the agent makes of its line."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from agent.host.access.access_program import listed, questions
from agent.host.access.checks import access_of
from agent.model.reading import Refusal, Seen, Why
from agent.model.runtime import Access
from agent.transport.device_cgroups import AccessUndetermined, Cgroups, Mounts

PROGRAM = Path(__file__).resolve().parents[2] / "agent/host/access/access_program.py"
RUNC = "c *:* m\nb *:* m\nc 1:3 rwm\nc 1:5 rwm\nc 136:* rwm\nc 195:255 rw\nc 195:0 rw\nc 510:0 r\n"


def probe(*words: object, **options) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-I", "-S", str(PROGRAM), *map(str, words)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, **options)


@pytest.mark.parametrize(
    ("text", "kind", "major", "minor", "is_allowed"),
    [
        (RUNC, "c", 195, 255, True),
        (RUNC, "c", 1, 3, True),
        (RUNC, "c", 136, 7, True),
        (RUNC, "c", 195, 1, False),  # only "c *:* m": mknod, no access
        (RUNC, "c", 510, 0, False),  # r alone
        (RUNC, "b", 195, 255, False),
        ("a *:* rwm\n", "c", 195, 255, True),
        ("a *:* rwm\n", "b", 8, 0, True),
        ("a *:* m\n", "c", 195, 255, False),
        ("c *:255 rw\n", "c", 195, 255, True),
        ("c *:255 rw\n", "c", 195, 25, False),
        ("c 195:* rwm\n", "c", 19, 5, False),
        ("c 195:255 r\nc 195:* w\n", "c", 195, 255, False),  # one entry must grant both
        ("", "c", 195, 255, False),
    ],
)
def test_devices_list(text: str, kind: str, major: int, minor: int, is_allowed: bool) -> None:
    assert listed(text, kind, major, minor) is is_allowed


@pytest.mark.parametrize(
    "text",
    [
        "nonsense",
        "c 195:255",
        "c 195 rw",
        "x 1:3 rw",
        "c 1:3 rx",
        "c a:3 rw",
        "c -1:3 rw",
        "c 1:3: rw",
        "\n\n",
    ],
)
def test_a_malformed_list_is_no_answer(text: str) -> None:
    with pytest.raises(ValueError):
        listed(text, "c", 1, 3)


def test_malformed_output_never_grants_access() -> None:
    chance = random.Random(5)
    for _ in range(5000):
        text = "".join(
            chance.choice("abc *:0123456789rwm\n\t\x00é") for _ in range(chance.randrange(30))
        )
        try:
            is_allowed = listed(text, "c", 195, 255)
        except ValueError:
            continue
        lines = [line.split() for line in text.splitlines()]
        assert is_allowed == any(
            w in "ac"
            and n.split(":")[0] in ("*", "195")
            and n.split(":")[1] in ("*", "255")
            and {*"rw"} <= {*r}
            for w, n, r in lines
        )


@pytest.mark.parametrize(
    ("text", "v2", "v1"),
    [
        ("0::/kubepods.slice/x.scope\n", "/kubepods.slice/x.scope", None),
        ("4:memory:/m\n3:cpu,devices:/kube/pod\n1:name=systemd:/\n0::/s\n", "/s", "/kube/pod"),
        ("5:devices:/a:b\n", None, "/a:b"),
        ("0::/x\u2028/y\n", "/x\u2028/y", None),
        ("", None, None),
    ],
)
def test_the_cgroup_of_a_process(text: str, v2: str | None, v1: str | None) -> None:
    found = Cgroups(text)
    assert (found.v2, found.v1) == (v2, v1)


MOUNTINFO = r"""
24 1 0:22 / /sys rw,nosuid - sysfs sysfs rw
31 24 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755
32 31 0:27 /../.. /sys/fs/cgroup/uni\040fied rw shared:9 - cgroup2 cgroup2 rw,nsdelegate
36 31 0:31 /docker/abc /sys/fs/cgroup/devices ro master:3 - cgroup cgroup rw,devices
37 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
"""


def test_where_cgroups_are_mounted() -> None:
    mounts = Mounts(MOUNTINFO)
    assert mounts.v2 == ("/sys/fs/cgroup/uni fied", "/../..")
    assert mounts.v1 == ("/sys/fs/cgroup/devices", "/docker/abc")
    assert Mounts.folder(mounts.v1, "/docker/abc/x") == "/sys/fs/cgroup/devices/x"
    assert Mounts.folder(("/sys/fs/cgroup", "/"), "/a/b") == "/sys/fs/cgroup/a/b"
    whole = ("/c", "/")
    for mount, path in [
        (mounts.v1, "/docker/abcd"),
        (mounts.v1, "/"),
        (whole, "/../x"),
        (None, "/x"),
        (whole, "/x (deleted)"),
    ]:
        with pytest.raises(AccessUndetermined):
            Mounts.folder(mount, path)


def test_arguments_of_the_access_program() -> None:
    words = "--pid 1 /dev/null c:195:255 --pid 2 b:8:0".split()
    assert questions(words) == [(1, ["/dev/null", "c:195:255"]), (2, ["b:8:0"])]
    for wrong in (
        "",
        "--pid",
        "--pid 1",
        "--pid 0 x",
        "--pid -1 x",
        "--pid 1x x",
        "/dev/null",
        "--pid 1 x --pid 2",
    ):
        with pytest.raises(ValueError):
            questions(wrong.split())


def test_wrong_usage_prints_a_message() -> None:
    done = probe("--pid", "no")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "access_probe: --pid wants a number. Usage: access_probe.py --pid PID DEVICE...\n"
    )


def test_an_ended_process() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    done = probe("--pid", ended.pid, "/dev/null")
    (answer,) = json.loads(done.stdout)["answers"]
    assert (done.returncode, done.stderr) == (0, "")
    assert answer["access"] == "unknown"
    if os.geteuid() == 0:
        assert (answer["errno"], answer["detail"]) == (3, f"Process {ended.pid} is gone.")


def test_files_that_are_no_device_nodes() -> None:
    done = probe("--pid", os.getpid(), "/dev/no/such", "/etc/passwd", "c:99999999999999999999:0")
    missing, file, _ = json.loads(done.stdout)["answers"]
    assert (done.returncode, done.stderr) == (0, "")
    if os.geteuid() == 0:
        assert missing["detail"] == "/dev/no/such is not on this host: No such file or directory."
        assert file["detail"] == "/etc/passwd is no device node on this host."


# --- what the agent reads


LINE = {
    "v": 1,
    "pid": 7,
    "cgroup": "/x",
    "version": "v2",
    "way": "scratch",
    "place": "/y",
    "answers": [
        {
            "path": "/dev/nvidiactl",
            "kind": "c",
            "major": 195,
            "minor": 255,
            "access": "allowed",
            "errno": 0,
            "detail": "",
        }
    ],
}


def said(top: dict | None = None, **answer: object) -> bytes:
    return json.dumps(
        {**LINE, "answers": [{**LINE["answers"][0], **answer}], **(top or {})}
    ).encode()


def read(line: bytes):
    return access_of(line, 7, "/dev/nvidiactl", 12.5)


def test_lines_of_the_program() -> None:
    assert read(said()) == Seen(Access("/dev/nvidiactl", True, "scratch"), 12.5)
    denied = read(said(access="denied", errno=1, detail="No."))
    assert denied == Seen(Access("/dev/nvidiactl", False, "scratch"), 12.5)
    assert read(said(access="unknown", errno=3, detail="Gone.")) == Refusal(Why.MISSING, "Gone.")
    assert read(said(access="unknown", errno=1, detail="No.")) == Refusal(Why.NOT_PERMITTED, "No.")
    assert read(said(access="unknown", errno=11, detail="Busy.")) == Refusal(
        Why.NOT_PERMITTED, "Busy."
    )


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"\xff",
        b"{" * 100_000,
        said()[:-5],
        said() + said(),
        said({"v": 2}),
        said({"v": "1"}),
        said({"pid": 8}),
        said({"answers": []}),
        said({"answers": {}}),
        said({"answers": LINE["answers"] * 2}),
        said({"answers": ["allowed"]}),
        said({"way": 3}),
        said({"way": ""}),
        said(access="fine"),
        said(access=True),
        said(access=None),
        said(access=[]),
        said(path="/dev/null"),
        said(errno="1"),
        said(errno=True),
        said(detail=None),
        said({"way": ""}, access="denied"),
    ],
)
def test_a_malformed_answer_is_no_answer(line: bytes) -> None:
    found = read(line)
    assert isinstance(found, Refusal)
    assert not found.is_telling
