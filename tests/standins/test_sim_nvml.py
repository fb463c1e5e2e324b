"""The stand-in libnvidia-ml.so.1, called through nvidia-ml-py as gpu-gate calls the real one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest
from sim_programs import Programs, wait_for

pytest.importorskip("pynvml")

LOOK = """
import json, pynvml as n
out = {}
try:
    n.nvmlInit()
    out["driver"], out["gpus"] = n.nvmlSystemGetDriverVersion(), []
    for i in range(n.nvmlDeviceGetCount()):
        try:
            h = n.nvmlDeviceGetHandleByIndex(i)
            pci = n.nvmlDeviceGetPciInfo(h)
            uuid = n.nvmlDeviceGetUUID(h)
            assert n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByUUID(uuid)) == uuid
            assert n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByPciBusId(pci.busId)) == uuid
            out["gpus"].append([uuid, pci.busId, n.nvmlDeviceGetMinorNumber(h)])
        except n.NVMLError as e:
            out["gpus"].append(e.value)
    n.nvmlShutdown()
except n.NVMLError as e:
    out["error"], out["words"] = e.value, str(e)
print(json.dumps(out))
"""


def look(programs: Programs) -> dict:
    done = programs.python(LOOK)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_eight_gpus_with_identity(programs):
    seen = look(programs)
    assert seen["driver"] == "550.54.15"
    assert len(seen["gpus"]) == 8
    assert seen["gpus"][3] == ["GPU-be4c0003-fa4e-4e11-9000-000000000003", "00000000:4E:00.0", 3]


def test_details_and_uninitialised(programs):
    done = programs.python(
        "import pynvml as n\n"
        "try: n.nvmlDeviceGetCount()\n"
        "except n.NVMLError as e: print(e.value)\n"
        "n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0)\n"
        "print(n.nvmlDeviceGetName(h), n.nvmlDeviceGetPersistenceMode(h), "
        "n.nvmlDeviceGetMigMode(h),"
        " n.nvmlSystemGetNVMLVersion(), n.nvmlDeviceGetMemoryInfo(h).total > 1 << 36)\n"
        "f = n.c_nvmlGpuFabricInfoV_t(); n.nvmlDeviceGetGpuFabricInfoV(h, n.byref(f)); "
        "print(f.state)"
    )
    assert done.stdout.splitlines() == [
        "1",
        "NVIDIA H100 80GB HBM3 1 [0, 0] 12.550.54.15 True",
        "0",
    ], done.stderr


def test_unknown_error_until_an_instant(programs):
    programs.simgpu("nvml", "init=999", "for=0.7")
    assert look(programs) == {"error": 999, "words": "Unknown Error"}
    time.sleep(0.7)
    assert len(look(programs)["gpus"]) == 8


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("init=18", {"error": 18, "words": "RM has detected an NVML/RM version mismatch."}),
        ("init=9", {"error": 9, "words": "Driver Not Loaded"}),
        ("count=15", {"driver": "550.54.15", "gpus": [], "error": 15, "words": "GPU is lost"}),
    ],
)
def test_errors(programs, words, expected):
    programs.simgpu("nvml", words)
    assert look(programs) == expected


def test_driver_unloaded(programs):
    programs.simgpu("driver", "unload")
    assert look(programs)["error"] == 9


def test_some_gpus(programs):
    programs.simgpu("nvml", "gpu=3", "error=15")
    assert look(programs)["gpus"][3] == 15
    programs.simgpu("nvml", "reset", "show=7")
    programs.simgpu("nvml", "omit=0")
    assert [g[2] for g in look(programs)["gpus"]] == [1, 2, 3, 4, 5, 6, 7]
    programs.simgpu("nvml", "reset", "uuid=2:GPU-other")
    assert look(programs)["gpus"][2][0] == "GPU-other"
    programs.simgpu("nvml", "reset", "shuffle=2")
    assert [g[2] for g in look(programs)["gpus"]] == [2, 3, 4, 5, 6, 7, 0, 1]
    programs.simgpu("lose", "5", "--gone")
    programs.simgpu("nvml", "ok")
    programs.simgpu("nvml", "check-devices=off")
    assert len(look(programs)["gpus"]) == 7


def test_delays(programs):
    programs.simgpu("nvml", "gpu=1", "delay=300")
    programs.simgpu("nvml", "init-delay=200")
    began = time.monotonic()
    look(programs)
    assert time.monotonic() - began > 0.8  # twice by handle in LOOK's cross-check would only add


@pytest.mark.parametrize("where", ["init", "count", "handle"])
def test_hang_dies_of_sigterm(programs, where):
    programs.simgpu("nvml", f"hang={where}")
    child = subprocess.Popen([sys.executable, "-c", LOOK], env=programs.env)
    time.sleep(0.4)
    assert child.poll() is None
    child.send_signal(signal.SIGTERM)
    assert child.wait(2) == -signal.SIGTERM


def test_deaf_hang_survives_sigterm_and_ends_in_time(programs):
    (programs.root / "run/simgpu/nvml.calls").write_text("")
    programs.simgpu("nvml", "hang=init", "deaf", "for=1.2")
    child = subprocess.Popen([sys.executable, "-c", LOOK], env=programs.env, stdout=subprocess.PIPE)
    wait_for(lambda: "init hang" in (programs.root / "run/simgpu/nvml.calls").read_text())
    time.sleep(0.15)
    child.send_signal(signal.SIGTERM)
    out, _ = child.communicate(timeout=60)
    assert len(json.loads(out)["gpus"]) == 8


def test_calls_are_recorded(programs):
    calls = programs.root / "run/simgpu/nvml.calls"
    look(programs)
    assert not calls.exists()
    programs.simgpu("calls")
    look(programs)
    lines = [line.split() for line in calls.read_text().splitlines()]
    assert [(what, result) for _, _, _, what, result in lines] == [("init", "0"), ("shutdown", "0")]
    assert lines[0][1] == lines[1][1] and float(lines[0][0]) < float(lines[1][0])


def test_device_nodes_are_collected(programs):
    """check-devices=on without a node in /dev: no driver to talk to."""
    programs.simgpu("nvml", "reset", "check-devices=on")
    assert look(programs)["error"] in (9, 999)
