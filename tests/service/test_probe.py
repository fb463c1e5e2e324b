"""The NVML probe: one line out, whatever the library does; and what the agent makes of it.

The library is the scripted stand-in of tests/node/standins/nvml (its header lists what it can do).
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.host.probes import program as probe_program
from agent.host.probes.program import PROGRAM, Started, find_library, start
from agent.host.probes.report import report_of
from agent.host.probes.runner import Probes
from agent.model.snapshot import Gpu, NvmlError, ProbeEnd, ProbeState

from .sandbox import ENDS_WITHIN_S, REPO, Node

SOURCE = REPO / "tests/node/standins/nvml/libnvidia-ml.c"
SONAME = "libnvidia-ml.so.1"
NOISE = """#include <stdio.h>
#include <unistd.h>
__attribute__((constructor)) static void noise(void)
{ puts("NvRmMemInitNvmap failed: error Permission denied"); fflush(stdout); write(1, "{\\"v\\": 1}\\n", 9); }
"""
"""Output of Tegra's libraries at every start (and worse: a line that looks like the probe's)."""
GPUS = [
    f"gpu {n} uuid=GPU-{n:08x}-0000-4000-8000-000000000000 bus=0000:{n + 7:02X}:00.0 minor={n}"
    for n in range(8)
]
GOOD = ["driver 550.54.15", "nvml 12.550.54.15", "loaded yes", *GPUS]


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A driver's root that holds the stand-in library, and another one whose library is noisy."""
    if shutil.which("cc") is None:
        pytest.skip("NOT TESTED: a C compiler is wanted for the stand-in library")
    root = tmp_path_factory.mktemp("drivers")
    (root / "noise.c").write_text(NOISE)
    for name, sources in (("quiet", [SOURCE]), ("noisy", [SOURCE, root / "noise.c"])):
        (root / name / "usr/lib").mkdir(parents=True)
        subprocess.run(
            [
                "cc",
                "-std=gnu11",
                "-fPIC",
                "-shared",
                "-w",
                f"-Wl,-soname,{SONAME}",
                "-o",
                root / name / "usr/lib" / SONAME,
                *sources,
            ],
            check=True,
        )
    return root


class Driver:
    """The stand-in library, its script and the log of its calls."""

    def __init__(self, root: Path, script: Path) -> None:
        self.root, self.script = root, script
        self.library = root / "usr/lib" / SONAME
        self.calls_log = Path(f"{script}.calls")
        self.calls_log.touch()

    def says(self, *faults: str) -> None:
        self.script.write_text("".join(f"{line}\n" for line in [*GOOD, *faults]))

    @property
    def calls(self) -> list[str]:
        """init, shutdown, …, with their results."""
        return [" ".join(line.split()[3:]) for line in self.calls_log.read_text().splitlines()]

    def env(self) -> dict[str, str]:
        return {"SIMGPU_NVML": str(self.script)}

    def argv(self, *more: str) -> list[str]:
        return [sys.executable, "-I", str(PROGRAM), "--library", str(self.library), *more]


@pytest.fixture
def driver(built: Path, tmp_path: Path) -> Driver:
    found = Driver(built / "quiet", tmp_path / "nvml")
    found.says()
    return found


def one_line(out: str) -> dict[str, Any]:
    assert out.count("\n") == 1 and out.endswith("\n")
    said = json.loads(out)
    assert isinstance(said, dict) and said["v"] == 1
    return said


def asked(driver: Driver, *more: str) -> dict[str, Any]:
    done = subprocess.run(
        driver.argv(*more),
        env=driver.env(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=ENDS_WITHIN_S,
    )
    assert done.returncode == 0, done.stderr
    return one_line(done.stdout)


def test_eight_gpus(driver: Driver) -> None:
    said = asked(driver)
    assert (said["count"], said["errors"], said["excluded"]) == (8, [], [])
    state = said["gpus"][3].pop("state")
    assert state["ecc"] is True and state["mig"] is False  # tests/service/test_gpu_state.py
    assert said["gpus"][3] == {
        "uuid": "GPU-00000003-0000-4000-8000-000000000000",
        "bus_id": "00000000:0A:00.0",
        "minor": 3,
        "name": "NVIDIA H100 80GB HBM3",
    }
    assert (said["driver_version"], said["library_version"]) == ("550.54.15", "12.550.54.15")
    assert said["library"] == str(driver.library) and said["took_ms"] >= 0
    assert driver.calls == ["init 0", "shutdown 0"]


# faults, errors as (code, call, index), number of GPUs
FAULTS: list[tuple[list[str], list[tuple[int, str, int]], int]] = [
    (["init error=999"], [(999, "nvmlInit", -1)], 0),
    (["init error=18"], [(18, "nvmlInit", -1)], 0),
    (["loaded no"], [(9, "nvmlInit", -1)], 0),
    (["count error=15"], [(15, "nvmlDeviceGetCount", -1)], 0),
    (["show 7"], [], 7),
    (["omit 3"], [], 7),
    (["handle gpu=3 error=15"], [(15, "nvmlDeviceGetHandleByIndex", 3)], 7),
    (["handle error=16"], [(16, "nvmlDeviceGetHandleByIndex", n) for n in range(8)], 0),
]


@pytest.mark.parametrize(
    ("faults", "errors", "gpus"), FAULTS, ids=[" ".join(row[0]) for row in FAULTS]
)
def test_an_error_is_reported_and_nvml_is_shut_down(
    driver: Driver, faults: list[str], errors: list[tuple[int, str, int]], gpus: int
) -> None:
    driver.says(*faults)
    said = asked(driver)
    assert [(e["code"], e["call"], e["index"]) for e in said["errors"]] == errors
    assert len(said["gpus"]) == gpus
    assert driver.calls.count("shutdown 0") == driver.calls.count("init 0")


def test_a_library_that_prints_does_not_disturb_the_line(driver: Driver, built: Path) -> None:
    driver.library = built / "noisy/usr/lib" / SONAME
    done = subprocess.run(
        driver.argv(), env=driver.env(), capture_output=True, text=True, timeout=ENDS_WITHIN_S
    )
    assert one_line(done.stdout)["count"] == 8
    assert "NvRmMemInitNvmap" in done.stderr


@pytest.mark.parametrize(
    "make",
    [
        lambda p: None,
        lambda p: p.mkdir(),
        lambda p: p.touch(),
        lambda p: p.write_bytes(b"\x7fELF junk"),
    ],
    ids=["none", "a folder", "empty", "junk"],
)
def test_no_library_is_12(driver: Driver, tmp_path: Path, make: Callable[[Path], Any]) -> None:
    driver.library = tmp_path / SONAME
    make(driver.library)
    said = asked(driver)
    (error,) = said["errors"]
    assert (error["code"], error["call"], error["index"]) == (12, "dlopen", -1)
    assert error["detail"]


def versioned(driver: Driver, tmp_path: Path, version: str) -> None:
    """Lay the library out as a driver does: the soname is a link to a file with the version in its
    name."""
    (tmp_path / "lib").mkdir()
    shutil.copy(driver.library, tmp_path / f"lib/libnvidia-ml.so.{version}")
    driver.library = tmp_path / "lib" / SONAME
    driver.library.symlink_to(f"libnvidia-ml.so.{version}")


@pytest.mark.parametrize(
    ("version", "is_called"), [("560.35.03", False), ("550.54.15", True), ("no-number", True)]
)
def test_a_mismatch_is_recognised_without_calling_nvml(
    driver: Driver, node: Node, tmp_path: Path, version: str, is_called: bool
) -> None:
    node.module("550.54.15")
    versioned(driver, tmp_path, version)
    done = node.run_program(*driver.argv(), **driver.env())
    said = one_line(done.stdout)
    assert driver.calls == (["init 0", "shutdown 0"] if is_called else [])
    if not is_called:
        (error,) = said["errors"]
        assert (error["code"], error["call"]) == (18, "version check")
        assert error["detail"] == "module 550.54.15, library libnvidia-ml.so.560.35.03"


def test_gpus_excluded_by_the_driver(driver: Driver, node: Node) -> None:
    node.module("550.54.15")
    for bus, excluded in (("0000:07:00.0", "No"), ("0000:08:00.0", "Yes")):
        folder = node.folder / "driver/nvidia/gpus" / bus
        folder.mkdir(parents=True)
        (folder / "information").write_text(
            f"Model: \t\t NVIDIA H100\nGPU Excluded:\t {excluded}\n"
        )
    assert one_line(node.run_program(*driver.argv(), **driver.env()).stdout)["excluded"] == [
        "0000:08:00.0"
    ]


def test_hold_keeps_nvml_up_until_standard_input_is_closed(driver: Driver) -> None:
    with subprocess.Popen(
        driver.argv("--hold"),
        env=driver.env(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None and child.stdin is not None
        one_line(child.stdout.readline())
        assert child.poll() is None
        assert driver.calls == ["init 0"]
        child.stdin.close()
        assert child.wait(ENDS_WITHIN_S) == 0
    assert driver.calls == ["init 0", "shutdown 0"]


def test_nothing_is_kept_open_without_an_initialised_nvml(driver: Driver) -> None:
    driver.says("init error=999")
    with subprocess.Popen(
        driver.argv("--hold"), env=driver.env(), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    ) as child:
        assert child.wait(ENDS_WITHIN_S) == 0


# the agent's side


@pytest.fixture
def env(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    """A probe inherits the agent's environment."""
    monkeypatch.setenv("SIMGPU_NVML", str(driver.script))
    yield driver


def run_probes(
    story: Callable[[Probes], Any],
    timeout_s: float = ENDS_WITHIN_S,
    root: str = "",
    first: Started | None = None,
) -> list[str]:
    """Run a story with its Probes and return their reports. Exceptions that the loop would only log
    fail the test."""
    told: list[str] = []
    complaints: list[str] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: complaints.append(str(context))
        )
        probes = Probes(told.append, timeout_s, root, needs="", first=first)
        try:
            await story(probes)
        finally:
            await probes.close()

    asyncio.run(main())
    assert not complaints
    return told


async def one_probe(probes: Probes, overlap: bool = False) -> ProbeState:
    probes.start(overlap)
    assert probes.state.running_since is not None
    return await probes.finished()


def test_a_report_of_eight(env: Driver) -> None:
    async def story(probes: Probes) -> None:
        state = await one_probe(probes)
        assert state.last is not None and state.running_since is None and state.remains is None
        assert (state.last.end, state.last.number) == (ProbeEnd.ANSWERED, 1)
        gpu = state.last.gpus[3]
        assert (gpu.uuid, gpu.bus_id, gpu.minor, gpu.name) == (
            "GPU-00000003-0000-4000-8000-000000000000",
            "0000:0a:00.0",
            3,
            "NVIDIA H100 80GB HBM3",
        )
        assert state.last.started_at <= state.last.ended_at

    assert run_probes(story, root=str(env.root)) == ["1 answered"]


def test_one_probe_at_a_time(env: Driver) -> None:
    env.says("init delay=200")

    async def story(probes: Probes) -> None:
        probes.start(overlap=False)
        probes.start(overlap=False)
        await probes.finished()

    run_probes(story, root=str(env.root))
    assert env.calls.count("init 0") == 1


def test_a_probe_started_before_the_loop_is_the_first(env: Driver) -> None:
    first = start(str(env.root), "", holds=True)
    assert first is not None

    async def story(probes: Probes) -> None:
        probes.start(overlap=True)  # no second one beside it
        state = await probes.finished()
        assert state.last is not None and (state.last.end, state.last.number) == (
            ProbeEnd.ANSWERED,
            1,
        )
        assert (len(state.last.gpus), state.last.started_at) == (8, first.since)
        assert env.calls == ["init 0"], "kept until the next one has finished"
        await one_probe(probes, overlap=False)

    assert run_probes(story, root=str(env.root), first=first) == [
        "1 answered",
        "2 answered",
    ]
    assert env.calls.count("shutdown 0") == 2


@pytest.mark.parametrize("fault", ["hang init", "hang handle gpu=3"])
def test_a_hang_ends_at_its_deadline(env: Driver, fault: str) -> None:
    env.says(fault)

    async def story(probes: Probes) -> None:
        state = await one_probe(probes, overlap=True)
        assert state.last is not None and state.running_since is None
        assert state.last.end is ProbeEnd.HUNG and state.last.gpus == ()
        assert "probe hung, pid " in state.last.detail and re.search(
            r"state [RSD]", state.last.detail
        )
        assert state.remains is None, "a process that takes signals leaves no remains"
        env.says()
        probes.timeout_s = (
            ENDS_WITHIN_S  # on a busy machine Python alone may take the first deadline
        )
        state = await one_probe(probes)
        assert state.last is not None and (state.last.end, state.last.number) == (
            ProbeEnd.ANSWERED,
            2,
        )

    assert run_probes(story, timeout_s=3.0, root=str(env.root)) == [
        "1 hung",
        "2 answered",
    ]


def test_probe_processes_overlap_and_the_last_one_releases_nvml(env: Driver) -> None:
    async def story(probes: Probes) -> None:
        await one_probe(probes, overlap=True)
        assert env.calls == ["init 0"]
        await one_probe(probes, overlap=True)
        assert env.calls[:2] == ["init 0", "init 0"], (
            "the first one ends only after the second has finished"
        )
        probes.drop()
        probes.drop()
        while len(env.calls) < 4:  # both shut NVML down
            await asyncio.sleep(0.01)

    run_probes(story, root=str(env.root))
    assert sorted(env.calls) == ["init 0", "init 0", "shutdown 0", "shutdown 0"]


def test_the_end_of_the_agent_ends_a_running_probe(env: Driver) -> None:
    env.says("hang init")

    async def story(probes: Probes) -> None:
        probes.start(overlap=True)
        while env.calls != ["init hang"]:
            await asyncio.sleep(0.01)

    assert run_probes(story, root=str(env.root)) == []
    pid = int(env.calls_log.read_text().split()[1])
    assert not Path(f"/proc/{pid}").exists()


# name, the program in the probe's place, a part of the detail
PROGRAMS: list[tuple[str, str, str]] = [
    ("junk", "print('Segmentation fault')", "malformed output"),
    ("bytes", "import os; os.write(1, b'\\x00\\xff' * 99 + b'\\n')", "not text"),
    ("half a line", "import os; os.write(1, b'{\"v\": 1')", "within a line"),
    ("nothing", "pass", "exited with status 0 without output"),
    ("a crash", "import os; os.kill(os.getpid(), 11)", "signal 11"),
    ("a traceback", "import pynvml_is_not_there", "ModuleNotFoundError"),
    ("a flood", "import os\nwhile True: os.write(1, b'x' * 65536)", "over 1048576 bytes"),
]


@pytest.mark.parametrize(("name", "program", "says"), PROGRAMS, ids=[row[0] for row in PROGRAMS])
def test_a_program_that_is_no_probe_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, program: str, says: str
) -> None:
    (tmp_path / "probe.py").write_text(program)
    monkeypatch.setattr(probe_program, "PROGRAM", tmp_path / "probe.py")

    async def story(probes: Probes) -> None:
        state = await one_probe(probes, overlap=True)
        assert state.last is not None and state.running_since is None
        assert state.last.end is ProbeEnd.BROKEN
        assert says in state.last.detail

    assert run_probes(story) == ["1 broken"]


def test_where_the_library_is_searched(tmp_path: Path) -> None:
    assert find_library(str(tmp_path)) == ""
    for place in ("lib", "usr/lib64", "usr/lib/aarch64-linux-gnu"):  # the last one is preferred
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / SONAME).touch()
        assert find_library(str(tmp_path)) == str(tmp_path / place / SONAME)


# report_of: the line is foreign until it was checked

WHOLE: dict[str, Any] = {
    "v": 1,
    "gpus": [{"uuid": "GPU-a", "bus_id": "00000000:07:00.0", "minor": 0, "name": "H100"}],
    "errors": [{"code": 15, "call": "nvmlDeviceGetUUID", "index": 1, "bus_id": "00000000:0F:00.0"}],
    "excluded": ["0000:E4:00.0"],
    "driver_version": "550.1",
    "library_version": "12.550.1",
    "library": "/l.so",
}


def test_a_whole_line() -> None:
    report = report_of(json.dumps(WHOLE).encode(), 7, 1.0, 2.0)
    assert (report.number, report.started_at, report.ended_at, report.end) == (
        7,
        1.0,
        2.0,
        ProbeEnd.ANSWERED,
    )
    assert report.gpus == (Gpu("GPU-a", "0000:07:00.0", 0, "H100"),)
    assert report.errors == (NvmlError(15, "nvmlDeviceGetUUID", 1, "0000:0f:00.0"),)
    assert report.excluded == ("0000:e4:00.0",)


def test_an_error_without_a_gpu_concerns_the_whole_probe() -> None:
    line = {**WHOLE, "errors": [{"code": 999, "call": "nvmlInit", "index": -1}]}
    assert report_of(json.dumps(line).encode(), 1, 1.0, 2.0).end is ProbeEnd.ERROR


GPU_LINE = WHOLE["gpus"][0]
ERROR_LINE = WHOLE["errors"][0]
HOSTILE: list[tuple[str, Any]] = [
    *[(f"no {part}", {k: v for k, v in WHOLE.items() if k != part}) for part in WHOLE],
    *[(f"{part} is a number", {**WHOLE, part: 7}) for part in ("v", "gpus", "errors", "excluded")],
    *[(f"{part} is null", {**WHOLE, part: None}) for part in ("v", "gpus", "errors", "excluded")],
    *[
        (
            f"a GPU without {part}",
            {**WHOLE, "gpus": [{k: v for k, v in GPU_LINE.items() if k != part}]},
        )
        for part in GPU_LINE
    ],
    *[
        (
            f"an error without {part}",
            {**WHOLE, "errors": [{k: v for k, v in ERROR_LINE.items() if k != part}]},
        )
        for part in ("code", "call", "index")
    ],
    ("a GPU that is a word", {**WHOLE, "gpus": ["GPU-a"]}),
    ("GPUs by name", {**WHOLE, "gpus": {"GPU-a": 1}}),
    ("a minor in words", {**WHOLE, "gpus": [{**GPU_LINE, "minor": "first"}]}),
    ("a code that is none", {**WHOLE, "errors": [{**ERROR_LINE, "code": None}]}),
    ("a code that is a list", {**WHOLE, "errors": [{**ERROR_LINE, "code": [15]}]}),
    ("an error that is a list", {**WHOLE, "errors": [["15"]]}),
    ("a list", [WHOLE]),
    ("null", None),
    ("a word", "ok"),
    ("a number", 1),
    ("nothing in it", {}),
]


@pytest.mark.parametrize(("name", "said"), HOSTILE, ids=[row[0] for row in HOSTILE])
def test_a_malformed_line_is_a_broken_probe(name: str, said: Any) -> None:
    report = report_of(json.dumps(said).encode(), 3, 1.0, 2.0)
    assert (report.end, report.number, report.gpus) == (ProbeEnd.BROKEN, 3, ())
    assert report.detail


@pytest.mark.parametrize(
    "line", [b"", b"\n", b"{", b"\xff\xfe", b"NaN", b"[" * 100_000, b"9" * 10_000, b"\0" * 99]
)
def test_bytes_that_are_not_json(line: bytes) -> None:
    report = report_of(line, 1, 1.0, 2.0)
    assert report.end is ProbeEnd.BROKEN and len(report.detail) < 400


@pytest.mark.parametrize("code", ["1e999", "-1e999"])
def test_a_code_beyond_all_numbers(code: str) -> None:
    line = json.dumps({**WHOLE, "errors": [{**ERROR_LINE, "code": 0}]}).replace(
        '"code": 0', f'"code": {code}'
    )
    assert report_of(line.encode(), 1, 1.0, 2.0).end is ProbeEnd.BROKEN


def test_malformed_data_creates_no_gpu() -> None:
    """An empty line of GPUs is an empty set, never an error that was swallowed."""
    report = report_of(json.dumps({**WHOLE, "gpus": [], "errors": []}).encode(), 1, 1.0, 2.0)
    assert (report.end, report.gpus) == (ProbeEnd.ANSWERED, ())
