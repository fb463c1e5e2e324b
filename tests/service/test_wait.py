"""`gpu-gate wait`: it always ends, and always with success."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time

import pytest

from .sandbox import Node, ended

GPU = "0000:07:00.0"


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def mark(node: Node, name: str) -> dict[str, object]:
    found = json.loads((node.run / name).read_text())
    assert isinstance(found, dict)
    return found


def is_over(node: Node, settings: str = "") -> None:
    """This boot began to wait longer ago than the deadline."""
    node.conf(f"[Gate]\nDeadlineSec=1s\n{settings}")
    (node.run / "waiting").write_text(json.dumps({"reason": "x", "at": boottime() - 2.5}))


@pytest.mark.parametrize(
    "functions",
    [
        [],
        [("0000:00:1f.2", "0x8086", "0x010601")],
        [("0000:07:00.1", "0x10de", "0x040300")],
        [("0000:05:00.0", "0x10de", "0x068000")],
        [("0000:00:02.0", "0x8086", "0x030000")],
    ],
    ids=["empty bus", "a disk", "NVIDIA sound", "NVSwitch", "another's GPU"],
)
def test_the_wait_ends_by_itself_on_a_host_without_an_nvidia_gpu(
    node: Node, functions: list[tuple[str, str, str]]
) -> None:
    for function in functions:
        node.pci(*function)
    done = node.gpu_gate("wait")
    assert done.returncode == 0
    assert "no NVIDIA GPU on the PCI bus" in done.stderr
    assert mark(node, "released")["reason"] == "no NVIDIA GPU on the PCI bus"


def test_no_pci_bus_at_all(node: Node) -> None:
    for folder in ("bus/pci/devices", "bus/pci"):
        (node.folder / folder).rmdir()
    assert node.gpu_gate("wait").returncode == 0


def test_a_tegra_has_its_gpu_in_the_soc(node: Node) -> None:
    (node.folder / "devices/soc0").mkdir(parents=True)
    (node.folder / "devices/soc0/family").write_text("Tegra\n")
    is_over(node)
    assert "the deadline is over" in node.gpu_gate("wait").stderr


def test_an_existing_mark(node: Node) -> None:
    node.pci(GPU)
    (node.run / "released").write_text('{"reason": "NVML is stable", "at": 1}')
    done = node.gpu_gate("wait")
    assert (done.returncode, "NVML is stable" in done.stderr) == (0, True)
    assert not (node.run / "waiting").exists()


@pytest.mark.parametrize("content", ["", "by hand", "\0\0", '{"reason": 7}', '{"at": "x"}'])
def test_a_mark_with_any_content_releases(node: Node, content: str) -> None:
    node.pci(GPU)
    (node.run / "released").write_text(content)
    assert node.gpu_gate("wait").returncode == 0


def test_the_mark_appears_while_it_waits(node: Node) -> None:
    node.pci(GPU)
    child = node.start("wait")
    assert child.stderr is not None
    first = child.stderr.readline()
    assert "waiting for the GPUs" in first and "systemctl stop gpu-gate.target" in first
    assert child.poll() is None
    (node.run / "released").write_text('{"reason": "NVML is stable", "at": 1}')
    done = ended(child)
    assert (done.returncode, "NVML is stable" in done.stderr) == (0, True)


def test_the_deadline_with_no_agent_anywhere(node: Node) -> None:
    node.pci(GPU)
    is_over(node)
    done = node.gpu_gate("wait")
    assert done.returncode == 0
    assert "the deadline is over; the agent does not answer" in done.stderr
    assert "systemctl status gpu-gate" in str(mark(node, "released")["reason"])


def test_a_second_start_does_not_extend_the_deadline(node: Node) -> None:
    node.pci(GPU)
    is_over(node)
    before = mark(node, "waiting")
    assert node.gpu_gate("wait").returncode == 0
    assert mark(node, "waiting") == before


def test_a_start_time_in_the_future_is_ignored(node: Node) -> None:
    node.conf("[Gate]\nDeadlineSec=1s\n")
    node.pci(GPU)
    (node.run / "waiting").write_text(json.dumps({"reason": "x", "at": 1e12}))
    assert node.gpu_gate("wait").returncode == 0
    assert abs(float(str(mark(node, "waiting")["at"])) - boottime()) < 60


def test_a_control_plane_has_a_shorter_deadline(node: Node) -> None:
    node.pci(GPU)
    is_over(node)
    node.conf("[Gate]\nControlPlaneDeadlineSec=1s\n")
    manifests = node.folder / "etc/kubernetes/manifests"
    manifests.mkdir(parents=True)
    (manifests / "kube-apiserver.yaml").touch()
    assert node.gpu_gate("wait").returncode == 0


def test_expected_gpus_on_a_bus_without_gpus(node: Node) -> None:
    is_over(node, "ExpectedGPUs=8\n")
    done = node.gpu_gate("wait")
    assert (done.returncode, "the deadline is over" in done.stderr) == (0, True)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 503 Service Unavailable\r\n\r\nNVML said 999\n",
        b"",
        b"junk",
        b"HTTP/1.1 \xff\xff",
        b"HTTP/1.1 200",
    ],
)
def test_an_agent_that_answers_something_at_the_deadline(node: Node, answer: bytes) -> None:
    node.pci(GPU)
    is_over(node)
    with socket.socket(socket.AF_UNIX) as server:
        here = os.open(node.run, os.O_PATH)
        server.bind(
            f"/proc/self/fd/{here}/agent.sock"
        )  # the folder's own path may be too long for a socket
        os.close(here)
        server.listen()
        threading.Thread(target=reply, args=(server, answer), daemon=True).start()
        done = node.gpu_gate("wait")
    assert done.returncode == 0
    assert ("NVML said 999" in done.stderr) is (b"999" in answer)


def reply(server: socket.socket, answer: bytes) -> None:
    connection, _ = server.accept()
    with connection:
        connection.recv(4096)
        connection.sendall(answer)


def test_a_run_folder_that_takes_no_mark(node: Node) -> None:
    node.pci(GPU)
    is_over(node)
    (node.run / "released").mkdir()
    done = node.gpu_gate("wait")
    assert done.returncode == 0
    assert "could not write /run/gpu-gate/released" in done.stderr


@pytest.mark.parametrize(
    "text", ["[Gate]\nDeadlineSec=for ever\n", "\0\xff", "[Gate\nx", "DeadlineSec=1s"]
)
def test_a_broken_configuration_does_not_delay_the_kubelet(node: Node, text: str) -> None:
    node.conf(text)
    assert node.gpu_gate("wait").returncode == 0


def test_the_wait_leaves_only_marks(node: Node) -> None:
    node.pci(GPU)
    is_over(node)
    node.gpu_gate("wait")
    assert sorted(p.name for p in node.run.iterdir()) == ["released", "waiting"]


def test_a_run_that_is_full_still_takes_the_mark(node: Node) -> None:
    """A released kubelet does not wait for the deadline because /run is full."""
    done = node.run_program(
        "sh",
        "-ec",
        """
        mount -t tmpfs -o size=4k tmpfs /run/gpu-gate
        head -c 4096 /dev/zero >/run/gpu-gate/somebodys
        "$0" -m agent wait
        test -f /run/gpu-gate/released
        cd /run/gpu-gate && echo *""",
        sys.executable,
    )
    assert (done.returncode, done.stdout) == (0, "released somebodys\n"), done.stderr
    assert "could not write" not in done.stderr
