"""The verbs: usage, exit status, sentences with a next step, and what a verb may not import."""

from __future__ import annotations

import ast
import json
import logging
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent.host.codec import encode
from agent.host.evidence import bundle
from agent.host.tape import Tape
from agent.model.reading import Seen
from agent.model.settings import Settings
from agent.model.snapshot import Clock, ProbeEnd, ProbeReport, ProbeState, Remains, Unit
from agent.service import ask, cli, log, one_snapshot
from agent.service.chain import chain, verdict_line
from agent.service.commands import pause, status
from agent.transport.clock import boottime

from .sandbox import REPO, Node, ended, needs_root

VERBS = (
    "run",
    "status",
    "doctor",
    "access",
    "evidence",
    "timeline",
    "probe",
    "wait",
    "config",
    "pause",
    "resume",
    "node",
    "forget",
    "image-check",
)


def gpu_gate(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "agent", *words],
        cwd=REPO,
        capture_output=True,
        text=True,
        timeout=60,
    )


def is_a_sentence(text: str) -> bool:
    return bool(text.strip()) and "Traceback" not in text


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("fly",),
        ("doctor", "a", "b"),
        ("--no-such",),
        ("status", "x"),
        ("wait", "x"),
        ("config", "x"),
        ("run", "x"),
        ("pause", "x"),
        ("status", "--prevent"),
        ("doctor", "--check"),
        ("access", "--npd"),
        ("pause", "--json"),
        ("status", "--verbose"),
    ],
)
def test_wrong_usage_is_2(words: tuple[str, ...]) -> None:
    done = gpu_gate(*words)
    assert done.returncode == 2
    assert is_a_sentence(done.stderr) and done.stdout == ""


def test_help_lists_each_verb() -> None:
    done = gpu_gate("--help")
    assert done.returncode == 0
    heads = re.findall(r"^  ([a-z, -]+?)(?:  | \[)", done.stdout, re.M)
    listed = set(re.findall(r"[a-z]+(?:-[a-z]+)*", " ".join(heads)))
    assert set(VERBS) <= listed
    assert gpu_gate().stderr == done.stdout and "systemctl stop gpu-gate.target" in done.stdout


def test_the_verbs_of_the_parser_are_these() -> None:
    tree = ast.parse(Path(cli.__file__).read_text())
    choices = [
        k.value
        for n in ast.walk(tree)
        if isinstance(n, ast.Call)
        for k in n.keywords
        if k.arg == "choices"
    ]
    assert [ast.literal_eval(c) for c in choices] == [VERBS]


def test_exit_statuses_are_documented() -> None:
    for number in ("0 yes", "1 no", "2 wrong usage", "3 the agent does not answer", "4 unknown"):
        assert number in (cli.__doc__ or "")


def test_version() -> None:
    assert re.fullmatch(r"gpu-gate \d+\.\d+\.\d+\n", gpu_gate("--version").stdout)


def test_status_without_an_agent_is_3_with_a_next_step(node: Node) -> None:
    node.conf("[Http]\nListen=127.0.0.1:1\n")
    done = node.gpu_gate("status")
    assert done.returncode == 3
    assert "the agent does not answer" in done.stderr and "systemctl status gpu-gate" in done.stderr
    assert is_a_sentence(done.stderr) and done.stderr.count("\n") == 1


# what doctor is given, what it says
@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda f: None, "is it an evidence bundle?"),
        (lambda f: f.touch(), "is not an evidence bundle"),
        (lambda f: f.mkdir(), "is it an evidence bundle?"),
        (lambda f: (f.mkdir(), (f / "manifest.json").write_text("{")), "is malformed"),
        (
            lambda f: (f.mkdir(), (f / "manifest.json").write_text("[]")),
            "is not an evidence bundle",
        ),
        (
            lambda f: (f.mkdir(), (f / "manifest.json").write_text('{"format": 1, "answers": []}')),
            "no clock",
        ),
        (
            lambda f: (f.mkdir(), (f / "manifest.json").write_text('{"format": 9, "answers": []}')),
            "reads formats 1 to",
        ),
    ],
)
def test_doctor_of_a_broken_bundle_prints_a_message(
    tmp_path: Path, make: Callable[[Path], Any], says: str
) -> None:
    make(tmp_path / "b")
    done = gpu_gate("doctor", str(tmp_path / "b"))
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        done.stderr.startswith("gpu-gate: ")
        and says in done.stderr
        and done.stderr.count("\n") == 1
    )


def bundled(folder: Path, **answers: Any) -> str:
    tape = Tape(
        {
            Tape.key("clock"): encode(Clock(9.0, 9.0, 9.0)),
            Tape.key("folder", "/sys/bus/pci/devices", "*"): encode(Seen((), 9.0)),
        }
    )
    tape.answers.update({key: encode(value) for key, value in answers.items()})
    bundle.write(tape, folder)
    return str(folder)


def with_kubelet(folder: Path, active: str) -> str:
    """A bundle with this state of the kubelet's unit."""
    from agent.core.collect import watched_units

    return bundled(
        folder,
        **{
            Tape.key("units", *watched_units(Settings())): Seen(
                (Unit("kubelet.service", "loaded", active, "", "", None),), 9.0
            )
        },
    )


def test_doctor_of_a_bundle_in_text_and_json(tmp_path: Path) -> None:
    path = bundled(tmp_path / "b")
    text, machine = gpu_gate("doctor", path), gpu_gate("doctor", path, "--json")
    assert "no NVIDIA GPU on the PCI bus" in text.stdout
    report = json.loads(machine.stdout)
    assert (report["version"], report["scope"]) == (1, "none")
    assert text.returncode == machine.returncode


def test_doctor_prints_names_that_are_not_text(tmp_path: Path) -> None:
    done = gpu_gate("doctor", with_kubelet(tmp_path / "b", "act\udcffive"))
    assert is_a_sentence(done.stderr + done.stdout)
    assert "act" in done.stdout


def test_doctor_prints_no_control_character(tmp_path: Path) -> None:
    assert "\x1b" not in gpu_gate("doctor", with_kubelet(tmp_path / "b", "\x1b]0;owned\x07")).stdout


def test_doctor_and_evidence_on_a_node_without_systemd(node: Node) -> None:
    """No D-Bus, no kubelet, no GPU: one sentence each, and the evidence gives the same diagnosis as
    the node."""
    both = node.start("doctor", "--json"), node.start("evidence", str(node.folder / "evidence"))
    live, kept = map(ended, both)
    assert kept.returncode == 0 and "read it with: gpu-gate doctor" in kept.stdout
    again = gpu_gate("doctor", str(node.folder / "evidence"), "--json")
    assert "systemd was not asked" in live.stderr and is_a_sentence(live.stderr)
    told, replayed = json.loads(live.stdout), json.loads(again.stdout)
    assert [(f["condition"], f["verdict"]) for f in told["findings"]] == [
        (f["condition"], f["verdict"]) for f in replayed["findings"]
    ]
    assert told["scope"] == replayed["scope"] == "none"


def test_evidence_in_one_file_and_its_timeline_on_a_node_without_systemd(node: Node) -> None:
    path = str(node.folder / "sent.tar.gz")
    kept, live = map(ended, (node.start("evidence", path), node.start("timeline", "--json")))
    assert (kept.returncode, live.returncode) == (0, 0)
    assert "no agent answers: NVML was asked by one probe" in kept.stdout
    assert is_a_sentence(kept.stdout + kept.stderr) and is_a_sentence(live.stdout + live.stderr)
    again = gpu_gate("timeline", path)
    assert again.returncode == 0 and again.stderr == ""
    assert (
        "when units started: failed" in again.stdout
        and max(map(len, again.stdout.splitlines())) < 80
    )
    shown = json.loads(live.stdout)
    assert shown["version"] == 1 and any(
        "gpu-gate has no mark" in sentence for sentence in shown["unknown"]
    )
    (node.folder / "torn.tar.gz").write_bytes(Path(path).read_bytes()[:-20])
    torn = gpu_gate("timeline", str(node.folder / "torn.tar.gz"))
    assert torn.returncode == 1 and "damaged" in torn.stderr and is_a_sentence(torn.stderr)


def test_probe_without_a_module_would_load_it(node: Node) -> None:
    done = node.gpu_gate("probe")
    assert (done.returncode, done.stdout) == (1, "")
    assert "modprobe nvidia" in done.stderr


def test_pause_resume_and_forget(node: Node) -> None:
    assert node.gpu_gate("resume").stdout == "it was not paused\n", "resumed twice is resumed"
    assert node.gpu_gate("pause").returncode == 0
    assert (node.run / "paused").exists()
    assert node.gpu_gate("pause").returncode == 0
    done = node.gpu_gate("resume")
    assert (done.returncode, done.stdout) == (0, "resumed\n")
    assert not (node.run / "paused").exists()


def test_forget_reports_whether_it_deleted_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pause, "STATE", str(tmp_path))
    (tmp_path / "learned.json").write_text("{}")
    assert [pause.run("forget", None, None) for _ in range(2)] == [0, 0]
    assert (
        capsys.readouterr().out == "forgotten: the GPUs that are stable next are remembered\n"
        "no GPUs were remembered\n"
    )


def test_a_pause_that_ends_by_itself(node: Node) -> None:
    done = node.gpu_gate("pause", "--for", "1h 30m", "--why", "a new GPU")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(
        r"paused until \d{4}-\d\d-\d\d \d\d:\d\d:\d\d, `gpu-gate resume` or the next boot\n",
        done.stdout,
    )
    mark = json.loads((node.run / "paused").read_text())
    assert mark["reason"] == "a new GPU"
    assert mark["until"] - mark["at"] == pytest.approx(5400.0)
    assert [path.name for path in node.run.iterdir()] == ["paused"]
    for words in (
        ("pause", "--for", "soon"),
        ("pause", "--for", "0"),
        ("pause", "--for", "8d"),
        ("status", "--why", "x"),
        ("resume", "--for", "3m"),
    ):
        done = node.gpu_gate(*words)
        assert (done.returncode, is_a_sentence(done.stderr)) == (2, True), words


def test_a_failed_change_prints_a_message(node: Node) -> None:
    (node.run / "paused").mkdir()
    done = node.gpu_gate("resume")
    assert (done.returncode, is_a_sentence(done.stderr)) == (1, True)
    assert "/run/gpu-gate/paused could not be changed" in done.stderr


def test_config_shows_values_and_check_is_an_exit_status(node: Node) -> None:
    node.conf("[Gate]\nStableProbes=5\nDeadlineSecs=1\n")
    shown, checked, machine = (
        node.gpu_gate("config", *more) for more in ((), ("--check",), ("--json",))
    )
    assert (shown.returncode, checked.returncode, machine.returncode) == (0, 1, 0)
    assert re.search(r"^StableProbes=5 +# /etc/gpu-gate/gpu-gate.conf:2$", shown.stdout, re.M)
    assert checked.stdout == "" and checked.stderr.startswith(
        "warning: /etc/gpu-gate/gpu-gate.conf:3: unknown key"
    )
    body = json.loads(machine.stdout)
    assert body["version"] == 1 and len(body["problems"]) == 1
    node.conf("[Gate]\nStableProbes=5\n")
    assert node.gpu_gate("config", "--check").returncode == 0


@pytest.mark.parametrize("verb", ["config", "image-check"])
def test_a_closed_pipe_is_no_error(verb: str) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        [sys.executable, "-m", "agent", verb],
        cwd=REPO,
        stdout=write_end,
        env=env,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(write_end)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "verb", [("wait",), ("status",), ("config",), ("config", "--json"), ("pause",), ("resume",)]
)
def test_fast_verbs_import_no_heavy_library(node: Node, verb: tuple[str, ...]) -> None:
    code = f"""
import sys
from agent.service import cli
cli.main({list(verb)!r})
heavy = {{"asyncio", "grpc", "google.protobuf", "dbus_next", "dbus_fast", "pyudev", "sdnotify", "pynvml",
          "logging", "ssl"}}
print("HEAVY", sorted(heavy & set(sys.modules)))
"""
    done = node.run_program(sys.executable, "-c", code)
    assert done.stdout.splitlines()[-1] == "HEAVY []", done.stderr


def test_the_wait_imports_only_what_it_needs(node: Node) -> None:
    """Each took a twentieth of its time or more, and the kubelet of every boot waits for it."""
    code = """
import sys
from agent.service import cli
cli.main(["wait"])
print("NEEDLESS", sorted({"argparse", "datetime", "pathlib", "socket", "urllib"} & set(sys.modules)))
"""
    done = node.run_program(
        sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(REPO)!r}){code}"
    )
    assert done.stdout.splitlines()[-1] == "NEEDLESS []", done.stderr


def test_the_agent_imports_only_what_it_uses(node: Node) -> None:
    """Each is half a MiB or more of the 45 that it may take, for as long as the node runs."""
    code = """
import asyncio, sys
from agent.service import cli
asyncio.run = lambda agent: agent.close()
cli.main(["run"])
assert "agent.service.daemon" in sys.modules
print("UNUSED", [name for name in ("argparse", "gzip", "tarfile") if sys.modules.get(name)])
"""
    done = node.run_program(sys.executable, "-c", code)
    assert done.stdout.splitlines()[-1:] == ["UNUSED []"], done.stderr


# asking the agent


def served(answer: bytes) -> int:
    """A port that answers this to everybody, as long as the test lives."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with server:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    return int(server.getsockname()[1])


def http(body: bytes, code: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {code}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"junk",
        b"HTTP/1.1\r\n\r\n",
        http(b"not JSON"),
        http(b"[]"),
        http(b"{}", "503 Service Unavailable"),
        http(b"\xff\xfe"),
        b"SSH-2.0-OpenSSH_9.2\r\n",
    ],
)
def test_another_listener_on_the_port_is_not_the_agent(answer: bytes) -> None:
    with pytest.raises(ask.NoAgent) as refused:
        ask.status(listen=f"127.0.0.1:{served(answer)}")
    assert str(refused.value).startswith("the agent ")


@pytest.mark.parametrize("body", [b"{}", b'{"gate": {}}', b'{"status": "ok"}'])
def test_status_of_another_json_server(body: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    listen = f"127.0.0.1:{served(http(body))}"
    assert status.run(Settings(listen=listen), as_json=False) == 3
    assert is_a_sentence(capsys.readouterr().err)


FINDINGS = [
    {"link": 1, "condition": "GpusOnPci", "verdict": "holds", "because": "8 GPUs on the PCI bus"},
    {
        "link": 3,
        "condition": "DevCharLinks",
        "verdict": "fails",
        "because": "no link",
        "blocks": False,
        "next_step": "not shown",
    },
    {
        "link": 5,
        "condition": "NvmlComplete",
        "verdict": "fails",
        "because": "7 of 8: 0000:e4:00.0 " + "on PCI " * 20,
        "blocks": True,
        "next_step": "dmesg | grep NVRM",
        "age_s": 12.4,
    },
    {
        "link": 10,
        "condition": "PluginRegistered",
        "verdict": "unknown",
        "because": "no answer",
        "next_step": "x",
    },
    {"link": 99},
]


def status_body(ready: bool) -> bytes:
    return json.dumps(
        {
            "version": 1,
            "findings": FINDINGS,
            "trouble": ["udev is lost"],
            "config_problems": ["a: b"],
            "gate": {
                "phase": "OPEN" if ready else "PROBING",
                "ready": ready,
                "ready_why": "7 of 8",
                "released_why": "NVML is stable" if ready else "",
                "deadline_in_s": 12.0,
            },
        }
    ).encode()


@pytest.mark.parametrize("ready", [True, False])
@pytest.mark.parametrize("as_json", [True, False])
def test_status_of_an_agent(ready: bool, as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    listen = f"127.0.0.1:{served(http(status_body(ready)))}"
    assert status.run(Settings(listen=listen), as_json) == (0 if ready else 1)
    out = capsys.readouterr().out
    if as_json:
        assert json.loads(out)["gate"]["ready"] is ready
    else:
        assert out.startswith("READY (OPEN): 7 of 8" if ready else "NOT READY (PROBING): 7 of 8")
        assert ("kubelet released: NVML is stable" if ready else "no, 12 s to the deadline") in out
        assert "note: udev is lost" in out and "note: a: b" in out


OLD, NEW = boottime() - 60, boottime() + 1e6


@pytest.mark.parametrize(
    ("probe", "paused", "stands"),
    [
        (ProbeState(ProbeReport(7, NEW, NEW, ProbeEnd.ANSWERED)), "", True),
        (ProbeState(ProbeReport(7, OLD, OLD, ProbeEnd.ANSWERED)), "", False),
        (ProbeState(ProbeReport(7, OLD, OLD, ProbeEnd.ERROR)), "", False),
        (ProbeState(ProbeReport(7, OLD, OLD, ProbeEnd.ANSWERED)), "paused: by a person", True),
        (ProbeState(ProbeReport(7, OLD, OLD, ProbeEnd.HUNG)), "", True),
        (ProbeState(ProbeReport(7, OLD, OLD, ProbeEnd.ANSWERED), running_since=OLD), "", True),
        (
            ProbeState(
                ProbeReport(7, OLD, OLD, ProbeEnd.ANSWERED), remains=Remains(4242, "D", "", OLD)
            ),
            "",
            True,
        ),
        (ProbeState(), "", False),
    ],
)
def test_when_the_doctor_reuses_the_agents_probe(
    probe: ProbeState, paused: str, stands: bool
) -> None:
    gate = {"ready": True, "released_why": "", "deadline_in_s": None, "paused": paused}
    body = {"gate": gate, "probe": encode(probe)}
    listen = f"127.0.0.1:{served(http(json.dumps(body).encode()))}"
    assert one_snapshot._agents_probe(Settings(listen=listen)) == (probe if stands else None)


@pytest.mark.parametrize(
    ("gate", "code", "says"),
    [
        (
            {"ready": True, "ready_why": "the kubelet lists 8 of 8 GPUs"},
            0,
            "the kubelet lists 8 of 8 GPUs",
        ),
        (
            {
                "ready": False,
                "ready_why": "7 of 8" + "x" * 99,
                "phase": "BLOCKED",
                "reason": "GpuMissing",
            },
            1,
            "GpuMissing: 7",
        ),
        (
            {"ready": False, "ready_why": "1 of 3", "phase": "SETTLING", "reason": "Settling"},
            2,
            "Settling: 1 of 3",
        ),
    ],
)
def test_status_for_node_problem_detector(
    gate: dict[str, Any], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    body = {
        "gate": {"released_why": "", "deadline_in_s": None, **gate},
        "cycle": {"age_s": 1, "overdue_after_s": 40},
        "findings": [],
    }
    listen = f"127.0.0.1:{served(http(json.dumps(body).encode()))}"
    assert status.for_problem_detector(Settings(listen=listen)) == code
    out = capsys.readouterr().out
    assert out.startswith(says) and out.count("\n") == 1 and len(out) <= 81


def test_node_problem_detector_gets_unknown_without_an_agent(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert status.for_problem_detector(Settings(listen="127.0.0.1:1")) == 2
    assert capsys.readouterr().out.startswith("AgentSilent: the agent does not answer")


SQUATTER = """
import os, socket
os.setuid(65534)
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    with server.accept()[0] as client:
        client.recv(4096)
        client.sendall(b"HTTP/1.0 200 OK\\r\\n\\r\\nready\\n")
        client.recv(1)
"""


def test_a_listener_on_the_agents_port_that_is_not_root_is_not_trusted() -> None:
    """Any user may bind it while the agent restarts, and claim that the node is ready."""
    needs_root()
    with subprocess.Popen(
        [sys.executable, "-c", SQUATTER], stdout=subprocess.PIPE, text=True
    ) as squatter:
        assert squatter.stdout is not None
        port = squatter.stdout.readline().strip()
        with pytest.raises(ask.NoAgent, match=f"port {port} is held by user 65534 and not by root"):
            ask.get("/readyz", listen=f"127.0.0.1:{port}")
        squatter.kill()


def test_a_log_line_is_one_line_with_any_pod_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(log.Plain("%(levelname)s %(message)s"))
    try:
        raise ValueError("two\nlines")
    except ValueError:
        record = logging.LogRecord(
            "x", 20, __file__, 1, "%s lost it", ("a\nERROR forged\x1b[31m",), sys.exc_info()
        )
    handler.emit(record)
    first, *traceback = capsys.readouterr().err.splitlines()
    assert first == "INFO a?ERROR forged?[31m lost it"
    assert traceback[0].startswith("Traceback") and len(traceback) > 2


def test_a_bundles_version_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(
        json.dumps({"format": 99, "gpu_gate": "\x1b]0;x\x07", "answers": []})
    )
    done = gpu_gate("doctor", str(tmp_path))
    assert done.returncode == 1 and "written by gpu-gate ?]0;x?" in done.stderr
    assert done.stderr.rstrip("\n").isprintable()


def test_the_chain_as_text() -> None:
    lines = chain(FINDINGS)
    assert lines[0] == " 1 PCI          HOLDS   8 GPUs on the PCI bus"
    assert lines[1].split()[:4] == ["3", "device", "nodes", "note"]
    assert max(map(len, lines)) <= 80
    assert [one.strip() for one in lines if "next:" in one] == ["next: dmesg | grep NVRM"], (
        "of the first broken one"
    )
    assert any("(12 s ago)" in one for one in lines)
    assert any(one.startswith("10 registration UNKNOWN") for one in lines)


def test_colour_ends_at_the_first_broken_link() -> None:
    coloured = chain(FINDINGS, colour=True)
    assert "\033[32m" in coloured[0]
    assert not [one for one in coloured if one.startswith(("10", "99")) and "\033[" in one]


@pytest.mark.parametrize(
    ("gate", "line"),
    [
        ({"phase": "OPEN", "ready": True, "ready_why": "8 of 8"}, "READY (OPEN): 8 of 8"),
        ({"phase": "BLOCKED", "why": "mismatch"}, "NOT READY (BLOCKED): mismatch"),
        ({}, "NOT READY (?): "),
    ],
)
def test_the_verdict_in_one_line(gate: dict[str, Any], line: str) -> None:
    assert verdict_line(gate) == line
