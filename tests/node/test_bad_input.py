"""What a node may throw at the agent: a sentence with a next step, the agent alive, the kubelet not
held for ever."""

from __future__ import annotations

import gate
import pytest
from nspawn import Node

PROBE = "/usr/share/gpu-gate/gpu_gate/host/probes/nvml_probe.py"
DEADLINE = gate.QUICK + "DeadlineSec=1s\n"
DBUS = ("dbus.socket", "dbus.service")


@pytest.fixture(scope="module")
def node(make_module_node) -> Node:
    node = make_module_node(boot=False)
    gate.prepare(node, "plug --gpus 8\n", gate.QUICK)
    return node.boot()


# --- configuration

BROKEN = [
    ("[Gate]\nDeadlinSec=5s\n", 2, "unknown key DeadlinSec="),
    ("[Gates]\nDeadlineSec=5s\n", 1, "unknown section [Gates]"),
    ("[Gate]\nDeadlineSec=5 parsecs\n", 2, "a time span looks like"),
    ("[Gate]\nDeadlineSec=never\n", 2, "a time span looks like"),
    ("# one\n[Gate]\nDeadlineSec=9min\nHoldSec=1min\n", 3, "is longer than HoldSec"),
    ("[Agent]\nHeartbeatSec=5min\n", 2, "would starve the watchdog"),
    ("[Gate]\nOnDeadline=explode\n", 2, "open or hold"),
    ("DeadlineSec\n", 1, "is not Key=Value"),
    ("\x00\xff\x1b[31m\n", 1, "is not Key=Value"),
]


@pytest.mark.parametrize(("text", "line", "sentence"), BROKEN, ids=[b[2] for b in BROKEN])
def test_config_check_names_file_and_line(node: Node, text: str, line: int, sentence: str) -> None:
    gate.configure(node, text)
    check = node.run(["gpu-gate", "config", "--check"], check=False)
    assert (check.returncode, check.stdout) == (1, "")
    assert f"{gate.CONF}:{line}: " in check.stderr
    assert sentence in check.stderr
    gate.configure(node, "")
    assert node.run(["gpu-gate", "config", "--check"]).stderr == ""


def test_the_agent_uses_the_valid_settings(node: Node) -> None:
    gate.start_over(node, settings="".join(text for text, _, _ in BROKEN[:4]) + gate.QUICK)
    gate.wait_kubelet(node)
    gate.wait_ready(node)
    assert [
        note.split(": ")[0].rpartition(":")[2] for note in gate.status(node)["config_problems"]
    ] == ["2", "3", "4", "6", "8"]
    assert f"configuration: {gate.CONF}:2: unknown key DeadlinSec=" in gate.agent_log(node)
    shown = node.run(["gpu-gate", "config"]).stdout
    assert "DeadlineSec=180s" in shown
    assert "StableIntervalSec=0.2s" in shown


def test_a_reload_keeps_the_last_valid_value(node: Node) -> None:
    gate.start_over(node, settings=gate.QUICK + "DeadlineSec=77s\n")
    gate.wait_ready(node)
    pid = gate.agent_pid(node)
    gate.configure(node, gate.QUICK + "DeadlineSec=soon\n")
    node.systemctl("reload", "gpu-gate.service")
    gate.until(lambda: gate.status(node)["config_problems"], "not read")
    (problem,) = gate.status(node)["config_problems"]
    assert "DeadlineSec=soon" in problem
    assert "DeadlineSec=77s" in gate.agent_log(node).splitlines()[
        -1
    ] or "DeadlineSec=77s" in gate.agent_log(node)
    assert gate.agent_pid(node) == pid


# --- the port


def test_a_port_in_use_disables_only_http(node: Node) -> None:
    gate.start_over(node, start=False)
    node.run(
        "systemd-run -q --unit=taker socat TCP-LISTEN:9477,bind=127.0.0.1,reuseaddr,fork "
        "SYSTEM:true"
    )
    try:
        node.wait_for("ss -ltn | grep -q 9477")
        node.systemctl("start", "gpu-gate.service", "kubelet.service")
        gate.wait_ready(node)
        (sentence,) = gate.status(node)["trouble"]
        assert sentence.startswith("HTTP cannot listen on 127.0.0.1:9477: ")
        assert "ss -ltnp" in sentence
        status = node.run(["gpu-gate", "status"])
        assert status.stdout.startswith("READY (")
        assert sentence in status.stdout
    finally:
        node.systemctl("stop", "taker.service")
    node.systemctl("reload", "gpu-gate.service")
    gate.until(
        lambda: gate.readyz(node)[0] == 200 and not gate.status(node)["trouble"],
        lambda: gate.status(node),
    )


# --- no bus, no systemd


@pytest.mark.parametrize(("sim", "word"), [("", "Open"), ("simgpu nvml init=999", "Deadline")])
def test_a_node_without_dbus(node: Node, sim: str, word: str) -> None:
    gate.start_over(node, sim=sim, start=False)
    node.systemctl("mask", "--runtime", "--now", *DBUS)
    try:
        node.systemctl("start", "--no-block", "gpu-gate.service", "kubelet.service")
        if sim:
            gate.wait_held(node)
            gate.deadline_passes(node, DEADLINE)
        gate.wait_kubelet(node)
        assert gate.released(node)["kind"] == word
        now = gate.until(
            lambda: (found := gate.status(node)).get("trouble") and found, "no word of the bus"
        )
        persistence = next(f for f in now["findings"] if f["condition"] == "PersistenceActive")
        assert persistence["verdict"] == "unknown"
        assert gate.readyz(node)[0] == 503 if sim else True
        doctor = node.run(["gpu-gate", "doctor"], check=False)
        assert doctor.returncode in (0, 1, 4) and "Traceback" not in doctor.stderr
    finally:
        node.systemctl("unmask", "--runtime", *DBUS)
        node.systemctl("start", *DBUS)
    node.run("simgpu nvml ok")
    gate.wait_phase(node, "OPEN")
    gate.until(lambda: not gate.status(node)["trouble"], lambda: gate.status(node)["trouble"])


def test_the_agent_without_systemd(node: Node) -> None:
    """As in a container of its own: no bus, no notify socket, no journal, no folder under /run."""
    gate.start_over(node, start=False)
    alone = (
        "mount -t tmpfs none /run/dbus; mount -t tmpfs none /run/systemd; exec env -i "
        "PATH=$PATH gpu-gate run"
    )
    with node.spawn(
        ["unshare", "--mount", "sh", "-ec", f"mkdir -p /run/gpu-gate; {alone}"]
    ) as agent:
        gate.wait_phase(node, "OPEN")
        now = gate.until(
            lambda: (found := gate.status(node)).get("trouble") and found, "no word of the bus"
        )
        assert any("bus" in line.lower() for line in now["trouble"]), now["trouble"]
        assert gate.released(node)["kind"] == "Open"
        node.run(["kill", "-TERM", str(now["agent"]["pid"])])
        assert agent.stdout is not None
        output = agent.stdout.read()
        assert agent.wait(60) == 0
    assert "OPEN: NVML enumerates 8 of 8 GPUs" in output
    assert "Traceback" not in output


# --- the probe

JUNK = {
    "junk": ("print('NVIDIA-SMI has failed because')", "the probe returned malformed output"),
    "a line that lacks a part": ('print(\'{"v": 1, "gpus": [{}]}\')', "lacks a part"),
    "nothing": ("", "the probe failed: "),
    "1 GB": (
        "import sys\ntry:\n    for _ in range(1024): sys.stdout.write('x' * (1 << 20))\nexcept "
        "BrokenPipeError: pass",
        "the probe failed: ",
    ),
    "a crash": ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", "the probe failed: "),
}


@pytest.mark.parametrize(("program", "sentence"), JUNK.values(), ids=JUNK.keys())
def test_a_probe_with_malformed_output(node: Node, program: str, sentence: str) -> None:
    good = node.read(PROBE)
    gate.start_over(node, start=False)
    node.put(PROBE, program)
    try:
        node.systemctl("start", "--no-block", "gpu-gate.service", "kubelet.service")
        gate.wait_held(node)
        pid = gate.agent_pid(node)
        gate.wait_why(node, sentence)
        gate.deadline_passes(node, DEADLINE)
        gate.wait_kubelet(node)
        assert gate.released(node)["kind"] == "Deadline"
        assert gate.agent_pid(node) == pid
        peak = next(
            line
            for line in node.read(f"/proc/{pid}/status").splitlines()
            if line.startswith("VmHWM")
        )
        assert int(peak.split()[1]) < 120_000, "kB: what a probe prints is not kept"
        assert gate.readyz(node)[0] == 503
    finally:
        node.put(PROBE, good)
    gate.wait_phase(node, "OPEN")


# --- what cannot heal by waiting


def test_a_version_mismatch_needs_an_operator_and_releases_the_kubelet(node: Node) -> None:
    gate.start_over(node, sim="simgpu driver version 550.90.07", settings=gate.QUICK)
    try:
        gate.wait_kubelet(node)
        assert gate.released(node)["kind"] == "CannotHeal"
        gate.wait_phase(node, "BLOCKED")
        code, why = gate.readyz(node)
        assert (code, "NVML_ERROR_LIB_RM_VERSION_MISMATCH (18)" in why, "next step" in why) == (
            503,
            True,
            True,
        )
    finally:
        node.run("simgpu driver load; simgpu nvml ok")


# --- GPUs that are somebody else's


@pytest.mark.parametrize(
    ("driver", "phase", "says"),
    [
        ("vfio-pci", "NOT_APPLICABLE", "no NVIDIA GPU for containers"),
        ("nouveau", "BLOCKED", "bound to nouveau"),  # after a second in which it is not yet said
    ],
)
def test_gpus_of_another_driver_do_not_delay_the_kubelet(
    node: Node, driver: str, phase: str, says: str
) -> None:
    gate.start_over(
        node, sim=f"for n in $(seq 0 7); do simgpu bind $n {driver}; done; simgpu driver unload"
    )
    try:
        gate.wait_kubelet(node)
        why = gate.wait_phase(node, phase)["why"]
        assert f"{gate.BUS_IDS[0]} {driver}" in gate.released(node)["reason"]
        assert says in why and gate.BUS_IDS[0] in why
    finally:
        node.run("for n in $(seq 0 7); do simgpu bind $n nvidia; done; simgpu driver load")
