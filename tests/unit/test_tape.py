"""diagnose(collect(Replay(record(host)))) == diagnose(collect(host)), on nodes that are folders."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.core.collect import collect
from agent.core.diagnose import diagnose
from agent.host.codec import encode
from agent.host.evidence import bundle
from agent.host.live import LiveHost
from agent.host.tape import Recorder, Replay, Tape
from agent.model.errors import BundleError
from agent.model.finding import Scope
from agent.model.reading import Refusal, Seen, Why
from agent.model.settings import Settings
from agent.model.snapshot import Unit

from .snapshots import DEFAULTS

Node = Callable[[Path], None]


def put(root: Path, path: str, text: str = "") -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def pci(
    root: Path,
    bus: str,
    vendor: str = "0x10de",
    class_code: str = "0x030200",
    driver: str = "nvidia",
) -> None:
    put(root, f"sys/bus/pci/devices/{bus}/vendor", f"{vendor}\n")
    put(root, f"sys/bus/pci/devices/{bus}/class", f"{class_code}\n")
    if driver:
        (root / f"sys/bus/pci/devices/{bus}/driver").symlink_to(
            f"../../../bus/pci/drivers/{driver}"
        )


def no_gpu(root: Path) -> None:
    pci(root, "0000:00:1f.2", "0x8086", "0x010601", "ahci")


def empty(root: Path) -> None:
    del root


def gpus(root: Path) -> None:
    no_gpu(root)
    for bus in ("0000:07:00.0", "0000:0f:00.0"):
        pci(root, bus)
        (root / f"proc/driver/nvidia/gpus/{bus}").mkdir(parents=True)
    put(
        root,
        "proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  x\n",
    )
    put(root, "sys/module/nvidia/initstate", "live\n")
    put(root, "proc/devices", "Character devices:\n195 nvidia\n508 nvidia-uvm\n\nBlock devices:\n")
    (root / "dev/char").mkdir(parents=True)
    os.mkfifo(
        root / "dev/nvidia0"
    )  # no device node without root: whatever is there is on the tape as it is
    (root / "dev/char/195:0").symlink_to("../nvidia0")
    put(root, "run/gpu-gate/waiting", '{"reason": "x", "at": 1.5}')
    put(root, "var/lib/kubelet/device-plugins/DEPRECATION")


def device_nodes(root: Path) -> None:
    gpus(root)
    (root / "dev/nvidia0").unlink()
    for name, minor in (("nvidia0", 0), ("nvidia1", 1), ("nvidiactl", 255)):
        os.mknod(root / "dev" / name, 0o020666, os.makedev(195, minor))


def vfio(root: Path) -> None:
    pci(root, "0000:07:00.0", driver="vfio-pci")


def late_driver(root: Path) -> None:
    pci(root, "0000:07:00.0", driver="")
    put(root, "proc/sys/kernel/osrelease", "6.1.0-18-amd64\n")


def installed(root: Path) -> None:
    late_driver(root)
    put(root, "lib/modules/6.1.0-18-amd64/modules.dep", "updates/dkms/nvidia-current.ko.xz: a.ko\n")


def junk(root: Path) -> None:
    gpus(root)
    for path in (
        "proc/driver/nvidia/version",
        "proc/devices",
        "run/gpu-gate/waiting",
        "sys/bus/pci/devices/0000:07:00.0/class",
    ):
        (root / path).write_bytes(b"\xff\x00\n" * 40_000)
    (root / "var/lib/kubelet/device-plugins" / os.fsdecode(b"\xff.sock")).touch()


def learned(root: Path) -> None:
    gpus(root)
    put(root, "etc/machine-id", "abc\n")
    put(
        root, "var/lib/gpu-gate/learned.json", '{"machine": "another", "bus_ids": ["0000:ff:00.0"]}'
    )


NODES: dict[Node, Scope] = {
    empty: Scope.NONE,
    no_gpu: Scope.NONE,
    gpus: Scope.GPUS,
    vfio: Scope.NONE,
    late_driver: Scope.LATE_DRIVER,
    installed: Scope.GPUS,
    learned: Scope.GPUS,
    junk: Scope.UNKNOWN,
    device_nodes: Scope.GPUS,
}


@pytest.mark.parametrize("node", NODES, ids=lambda n: n.__name__)
def test_a_tape_gives_the_same_answers_as_the_node(node: Node, tmp_path: Path) -> None:
    if node is device_nodes and os.geteuid() != 0:
        pytest.skip("device nodes are made by root only")
    node(tmp_path)
    recorder = Recorder(LiveHost(root=str(tmp_path)))
    live = diagnose(asyncio.run(collect(recorder, DEFAULTS)), DEFAULTS)
    assert live.scope is NODES[node]
    bundle.write(recorder.tape, tmp_path / "evidence")
    for tape in (recorder.tape, bundle.read(tmp_path / "evidence")):
        assert diagnose(asyncio.run(collect(Replay(tape), DEFAULTS)), DEFAULTS) == live


def test_the_folder_is_read_and_not_the_machine_that_runs_the_test(tmp_path: Path) -> None:
    device_nodes(tmp_path) if os.geteuid() == 0 else gpus(tmp_path)
    snapshot = asyncio.run(collect(LiveHost(root=str(tmp_path)), DEFAULTS))
    assert isinstance(snapshot.hardware.pci, Seen) and [
        f.bus_id for f in snapshot.hardware.pci.value
    ] == [
        "0000:07:00.0",
        "0000:0f:00.0",
    ]
    assert (
        isinstance(snapshot.hardware.driver_version, Seen)
        and snapshot.hardware.driver_version.value == "550.54.15"
    )
    assert isinstance(
        snapshot.hardware.char_links, Seen
    ) and snapshot.hardware.char_links.value == {"195:0": "../nvidia0"}
    assert isinstance(snapshot.boot.waiting, Seen) and snapshot.boot.waiting.value.at == 1.5


def test_an_answer_missing_on_the_tape_is_not_recorded() -> None:
    host, name = Replay(Tape()), "not-recorded"
    for answer in (
        host.file("/x"),
        host.folder("/x"),
        host.units(("a",)),
        host.manager(),
        host.probe(),
        host.allocatable("/s"),
    ):
        found = asyncio.run(answer)
        assert (
            isinstance(found, Refusal) and found.why is Why.NOT_RECORDED and found.why.value == name
        )
        assert not found.is_telling, "what we did not record is a fact about us"
    assert asyncio.run(host.machine()) == ""
    assert asyncio.run(host.trouble()) == ()
    with pytest.raises(BundleError, match="no clock"):
        asyncio.run(host.clock())


def test_other_settings_need_answers_that_the_tape_lacks(tmp_path: Path) -> None:
    gpus(tmp_path)
    recorder = Recorder(LiveHost(root=str(tmp_path)))
    asyncio.run(collect(recorder, DEFAULTS))
    snapshot = asyncio.run(
        collect(Replay(recorder.tape), Settings(device_plugins_dir="/elsewhere"))
    )
    assert (
        isinstance(snapshot.kubelet.plugin_sockets, Refusal)
        and snapshot.kubelet.plugin_sockets.why is Why.NOT_RECORDED
    )


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda p: None, Why.MISSING),
        (lambda p: p.mkdir(), Why.FAILED),
        (lambda p: p.symlink_to("f"), Why.FAILED),
        (lambda p: p.symlink_to("/nowhere"), Why.MISSING),
    ],
    ids=["missing", "a folder", "a link to itself", "a link to nowhere"],
)
def test_a_file_that_is_none(make: Callable[[Path], None], why: Why, tmp_path: Path) -> None:
    make(tmp_path / "f")
    found = asyncio.run(LiveHost(root=str(tmp_path)).file("/f"))
    assert isinstance(found, Refusal) and found.why is why and found.detail


@pytest.mark.parametrize("name", ["/nul\0", "/half a pair \ud800"])
def test_a_name_that_no_file_can_have_is_missing(name: str, tmp_path: Path) -> None:
    """A CDI spec and a runtime's answer are foreign: what they name must not end the agent."""
    host = LiveHost(root=str(tmp_path))
    for answer in (host.file(name), host.tail(name)):
        found = asyncio.run(answer)
        assert isinstance(found, Refusal) and found.why is Why.MISSING and found.detail
    gone = asyncio.run(host.absent([name]))
    assert isinstance(gone, Seen) and gone.value == (name,)


def test_a_refusal_has_a_reason_if_the_kernel_was_not_asked(tmp_path: Path) -> None:
    found = asyncio.run(LiveHost(root=str(tmp_path)).listener("/too-long" * 20))
    assert isinstance(found, Refusal) and "too long" in found.detail


def test_a_fifo_in_place_of_a_file_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "f")
    asyncio.run(LiveHost(root=str(tmp_path)).file("/f"))


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 200_000)
    found = asyncio.run(LiveHost(root=str(tmp_path)).file("/f", 100_000))
    assert isinstance(found, Seen) and len(found.value) == 100_000


def test_kinds_of_names(tmp_path: Path) -> None:
    (tmp_path / "dir").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("../nvidia0")
    os.mkfifo(tmp_path / "fifo")
    found = asyncio.run(LiveHost(root=str(tmp_path)).folder("/"))
    assert isinstance(found, Seen)
    assert [(e.name, e.kind, e.target) for e in found.value] == [
        ("dir", "dir", ""),
        ("fifo", "fifo", ""),
        ("file", "file", ""),
        ("link", "link", "../nvidia0"),
    ]
    matching = asyncio.run(LiveHost(root=str(tmp_path)).folder("/", "fi*"))
    assert isinstance(matching, Seen) and [e.name for e in matching.value] == ["fifo", "file"]


def test_units_of_an_older_tape_are_read() -> None:
    known = Unit("a.service", "loaded", "active", "", "", 1.0)
    host = Replay(Tape({Tape.key("units", "a.service"): encode(Seen((known,), 1.0))}))
    assert asyncio.run(host.units(("a.service", "new.service"))) == Seen((known,), 1.0)
    assert isinstance(asyncio.run(host.units(("new.service",))), Refusal)
