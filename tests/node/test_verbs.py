"""The verbs and interfaces on a node: their output, exit status and journal lines."""

from __future__ import annotations

import json
from collections.abc import Sequence

import gate
import pytest
from nspawn import Node

from agent.service import log, one_snapshot


@pytest.fixture(scope="module")
def node(make_module_node) -> Node:
    return gate.ready(make_module_node)


def gpu_gate(node: Node, *words: str) -> tuple[int, str, str]:
    done = node.run(["gpu-gate", *words], check=False)
    return done.returncode, done.stdout, done.stderr


def flat(text: str) -> str:
    """Without the line breaks and columns of a table."""
    return " ".join(text.split())


HOLDS = (
    "1 PCI HOLDS 8 GPUs on the PCI bus",
    "2 driver HOLDS driver 550.54.15 (/proc/driver/nvidia/version)",
    "5 NVML HOLDS NVML enumerates 8 of 8 GPUs",
    "7 kubelet HOLDS kubelet.service is active",
    "10 registration HOLDS the kubelet lists 8 of 8 GPUs",
)


def assert_says(text: str, sentences: Sequence[str]) -> None:
    for sentence in sentences:
        assert sentence in flat(text), text


def test_status(node: Node) -> None:
    code, out, err = gpu_gate(node, "status")
    assert (code, err) == (0, "")
    assert out.startswith("READY (")
    assert_says(out, (*HOLDS, "kubelet released: stable: NVML enumerates 8 of 8 GPUs"))
    code, out, err = gpu_gate(node, "status", "--json")
    assert (code, err) == (0, "")
    said = json.loads(out)
    assert (said["version"], said["gate"]["ready"], said["expected"]) == (1, True, gate.BUS_IDS)


def test_doctor(node: Node) -> None:
    code, out, err = gpu_gate(node, "doctor")
    assert (code, err) == (0, "")
    assert out.startswith("Every link that was asked holds.\n")
    assert_says(out, HOLDS)
    assert json.loads(gpu_gate(node, "doctor", "--json")[1])["first_broken"] is None


def test_doctor_does_not_reuse_an_old_probe(node: Node) -> None:
    """The agent probes an idle node every ten minutes."""
    last = gate.status(node)["probe"]["last"]["ended_at"]
    gate.until(
        lambda: gate.uptime(node) > last + one_snapshot.FRESH_S, "the agent's word grew no older"
    )
    try:
        node.run("simgpu nvml show=7")
        code, out, _ = gpu_gate(node, "doctor")
        assert code == 1
        assert_says(out, ("Link 5 is broken: GpuMissing",))
        assert gpu_gate(node, "status")[0] == 0, "which is the agent's last look"
    finally:
        node.run("simgpu nvml ok")


def test_doctor_needs_no_agent(node: Node) -> None:
    node.systemctl("stop", "gpu-gate.service")
    try:
        code, out, err = gpu_gate(node, "doctor")
        assert (code, err) == (0, "")
        assert_says(out, HOLDS)
        node.run("simgpu nvml show=7")
        code, out, _ = gpu_gate(node, "doctor")
        assert code == 1
        assert_says(
            out,
            (
                "Link 5 is broken: GpuMissing; GpuAbsentFromNvml: confirmed",
                f"seen 7 of 8: {gate.BUS_IDS[7]} on PCI, absent from NVML",
                "$ dmesg | grep -E 'NVRM|Xid'",
            ),
        )
        code, out, err = gpu_gate(node, "status")
        assert (code, out) == (3, "")
        assert "the agent does not answer" in err and "systemctl status gpu-gate" in err
    finally:
        node.run("simgpu nvml ok; systemctl start gpu-gate.service")
        gate.wait_ready(node)


def test_doctor_deep_calls_cuda(node: Node) -> None:
    """The fabric is not ready: NVML works, CUDA fails with 802. A CUDA call that hangs does not
    block the doctor."""
    assert_says(
        gpu_gate(node, "doctor", "--deep")[1],
        ("Every link that was asked holds.", "CUDA counts 8 devices"),
    )
    try:
        node.put("/run/simgpu/cuda", "802\n")
        code, out, _ = gpu_gate(node, "doctor", "--deep")
        assert code == 1
        assert_says(
            out,
            (
                "Link 4 is broken: CudaNotReady; FabricNotReady: confirmed",
                "cuInit says 802",
                "5 NVML HOLDS NVML enumerates 8 of 8 GPUs",
            ),
        )
        assert gpu_gate(node, "doctor")[0] == 0, "nobody asks CUDA unless told to"
        node.put("/run/simgpu/cuda", "hang\n")
        node.put("/etc/gpu-gate/gpu-gate.conf.d/hang.conf", "[Probe]\nTimeoutSec=1s\n")
        code, out, _ = gpu_gate(node, "doctor", "--deep")
        assert code == 1
        assert_says(out, ("Link 5 is broken: CudaSilent; NvmlHang: confirmed",))
    finally:
        node.run("rm -f /run/simgpu/cuda /etc/gpu-gate/gpu-gate.conf.d/hang.conf")


def test_doctor_reads_the_journal_versions_and_sockets(node: Node) -> None:
    """Real ones: journald, containerd, runc; the kubelet's own line of a registration is a
    stand-in's."""
    node.run(
        "systemd-cat -t kubelet echo; echo 'NVRM: Xid (PCI:0000:0f:00): 79, lost' >/dev/kmsg || :",
        check=False,
    )
    node.systemctl("daemon-reload")
    code, out, err = gpu_gate(node, "doctor", "--json")
    assert (code, err) == (0, "")
    said = json.loads(out)
    assert said["versions"]["containerd"][:1].isdigit() and said["versions"]["runc"][:1].isdigit()
    assert said["versions"]["cgroup"] and said["not_asked"] == []
    assert (
        next(f for f in said["findings"] if f["condition"] == "SocketsAnswer")["verdict"] == "holds"
    )
    node.run(["gpu-gate", "evidence", "/tmp/asked"])
    kept = json.loads(node.read("/tmp/asked/manifest.json"))["answers"]
    journal = next(a["answer"]["value"] for a in kept if a["question"][0] == "journal")
    assert any(
        line["source"] == "systemd" and line["text"].startswith("Reload") for line in journal
    ), journal


def test_doctor_as_user_nobody_reports_what_it_cannot_read(node: Node) -> None:
    done = node.run(
        "setpriv --reuid 65534 --regid 65534 --clear-groups gpu-gate doctor", check=False
    )
    assert (done.returncode, "Traceback" in done.stderr) == (4, False), done.stdout + done.stderr
    assert_says(
        done.stdout, ("Nothing is seen broken, but", "run it as root", "the journal (not-permitted")
    )


def test_the_timeline_of_this_boot_and_of_a_bundle(node: Node) -> None:
    """The race that the gate won, on the live node and from one file that was made of it."""
    code, out, err = gpu_gate(node, "evidence", "/tmp/sent.tar.gz")
    assert (code, err) == (0, "")
    assert node.run("stat -c %a /tmp/sent.tar.gz").stdout == "600\n"
    told = []
    for source in ([], ["/tmp/sent.tar.gz"]):
        code, out, err = gpu_gate(node, "timeline", "--json", *source)
        assert (code, err) == (0, "")
        told.append(json.loads(out))
    live, kept = told
    at = {m["what"]: m["at"] for m in reversed(live["moments"])}
    order = [
        at[what]
        for what in ("look", "seen", "stable", "released", "kubelet", "started", "registered")
    ]
    assert order == sorted(order), live
    assert {"persistenced", "nodes", "runtime", "open", "socket"} <= set(at)
    assert [m["what"] for m in kept["moments"]] == [m["what"] for m in live["moments"]]
    code, out, err = gpu_gate(node, "timeline", "/tmp/sent.tar.gz")
    assert (code, err) == (0, "") and max(map(len, out.splitlines())) < 80
    assert "after NVML was stable" in flat(out) and "the kubelet listed every GPU [mark]" in flat(
        out
    )


def test_evidence_gives_the_same_diagnosis_later(node: Node) -> None:
    code, out, err = gpu_gate(node, "evidence", "/tmp/kept")
    assert (code, err) == (0, "")
    assert out.endswith("read it with: gpu-gate doctor /tmp/kept\n")
    node.run("simgpu nvml show=7")
    try:
        code, out, _ = gpu_gate(node, "doctor", "/tmp/kept")
        assert code == 0
        assert_says(out, HOLDS)
    finally:
        node.run("simgpu nvml ok")
    code, out, err = gpu_gate(node, "doctor", "/tmp/nothing")
    assert (code, out) == (1, "")
    assert err.startswith("gpu-gate: /tmp/nothing")
    assert "Traceback" not in err


def test_probe(node: Node) -> None:
    code, out, err = gpu_gate(node, "probe")
    assert (code, err) == (0, "")
    rows = out.splitlines()
    assert [row.split()[0] for row in rows[:8]] == gate.BUS_IDS
    assert rows[8].startswith("answered: 8 GPUs in ")
    node.run("simgpu nvml init=999")
    try:
        code, out, _ = gpu_gate(node, "probe")
        assert code == 1
        assert_says(out, ("NVML_ERROR_UNKNOWN (999)", "error: 0 GPUs in "))
    finally:
        node.run("simgpu nvml ok")


def test_config(node: Node) -> None:
    code, out, err = gpu_gate(node, "config")
    assert (code, err) == (0, "")
    assert f"StableIntervalSec=0.2s # {gate.CONF}:2" in flat(out)
    assert "DeadlineSec=180s # default" in flat(out)
    assert gpu_gate(node, "config", "--check") == (0, "", "")


def test_wrong_arguments(node: Node) -> None:
    for words in (("fly",), ("status", "now"), ()):
        code, out, err = gpu_gate(node, *words)
        assert (code, out) == (2, "")
        assert "gpu-gate" in err and "Traceback" not in err


def test_wait_from_a_shell_ends_at_once(node: Node) -> None:
    code, _, err = gpu_gate(node, "wait")
    assert code == 0
    assert err == "the kubelet may start: stable: NVML enumerates 8 of 8 GPUs\n"


def test_verbs_for_a_user_other_than_root(node: Node) -> None:
    """The unix socket is for root; every user may use HTTP; only root may pause."""

    def as_nobody(verb: str) -> tuple[int, str, str]:
        nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        done = node.run([*nobody, "gpu-gate", verb], check=False)
        return done.returncode, done.stdout, done.stderr

    code, out, err = as_nobody("status")
    assert (code, err) == (0, "")
    assert out.startswith("READY (")
    code, out, err = as_nobody("pause")
    assert code == 1
    assert "are you root" in err and "Traceback" not in err


def test_pause_and_resume(node: Node) -> None:
    code, out, _ = gpu_gate(node, "pause")
    assert (code, out) == (0, "paused until `gpu-gate resume` or the next boot\n")
    node.run("rm /dev/char/195:3")
    cycle = gate.status(node)["cycle"]["number"]
    number = gate.status(node)["probe"]["last"]["number"]
    node.systemctl("daemon-reload")
    gate.until(lambda: gate.status(node)["cycle"]["number"] > cycle, "no cycle")
    assert gate.status(node)["probe"]["last"]["number"] == number, "no probe"
    assert not node.exists("/dev/char/195:3"), "no hand"
    assert gpu_gate(node, "resume")[0] == 0
    node.wait_for("test -L /dev/char/195:3")
    gate.wait_ready(node)


def test_the_journal_has_fields_and_message_ids(node: Node) -> None:
    def entries(message_id: str) -> list[dict[str, str]]:
        out = node.journal("-q", "-o", "json", f"MESSAGE_ID={message_id}")
        return [json.loads(line) for line in out.splitlines()]

    gate.start_over(node, sim="simgpu nvml init=999")
    gate.wait_held(node)
    gate.until(lambda: "999" in gate.gate(node).get("why", ""), lambda: gate.gate(node))
    node.run("simgpu nvml ok")
    gate.wait_ready(node)
    closed, release, opened = (
        entries(one)[-1] for one in (log.GATE_CLOSED, log.KUBELET_RELEASED, log.GATE_OPENED)
    )
    assert closed["GPU_GATE_RELEASED"] in ("yes", "no")
    assert (release["GPU_GATE_RELEASED"], release["MESSAGE"]) == (
        "yes",
        "kubelet released: stable: NVML enumerates 8 of 8 GPUs",
    )
    assert (opened["GPU_GATE_PHASE"], opened["SYSLOG_IDENTIFIER"], opened["_SYSTEMD_UNIT"]) == (
        "OPEN",
        "gpu-gate",
        "gpu-gate.service",
    )
    by_field = node.journal("-q", "-o", "cat", "GPU_GATE_REASON=NvmlUnknown")
    assert "nvmlInit said NVML_ERROR_UNKNOWN (999)" in by_field

    gate.start_over(node, sim="simgpu driver version 550.90.07")
    gate.until(lambda: entries(log.GATE_HELD), "no such line")
    assert entries(log.GATE_HELD)[-1]["PRIORITY"] == "4"
    node.run("simgpu driver load; simgpu nvml ok")


def test_systemctl_status_shows_the_state(node: Node) -> None:
    gate.start_over(node)
    gate.wait_ready(node)
    gate.until(
        lambda: (
            node.show("gpu-gate.service", "StatusText")
            == "OPEN, ready: NVML enumerates 8 of 8 GPUs"
        ),
        lambda: node.show("gpu-gate.service", "StatusText"),
    )
