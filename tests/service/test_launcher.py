"""The launch actions: a unit's start beside the cycle, a manifest placed complete or not at all."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from agent.host.launcher import MANIFEST_BYTES, Launcher
from agent.host.live import LiveHost
from agent.model.actions import LaunchUnit, PlaceManifest, RefreshCdi
from agent.model.errors import ActionFailed, BusError, ErrorKind
from agent.model.reading import Refusal, Seen, Why

PLACE = PlaceManifest("/etc/plugin.yaml", "/m/gpu-gate-plugin.yaml")
POD = b"kind: Pod\n"


class Bus:
    """systemd, as far as starts go."""

    def __init__(self, result: str | Exception = "done") -> None:
        self.result = result
        self.asked: list[str] = []

    async def call(self, member: str, signature: str, body: list[str]) -> list[Any]:
        self.asked.append(f"{member} {body[0]}")
        raise BusError("Unit is not loaded.", ErrorKind.FAILED)

    async def start_unit(
        self, name: str, mode: str = "replace", within_s: float = 30.0, member: str = "StartUnit"
    ) -> str:
        self.asked.append(f"{member} {name} {mode}")
        await asyncio.sleep(0)
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


def done(root: Path, action: Any, bus: Bus) -> str:
    async def main() -> str:
        told: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        launcher = Launcher(bus, told.set_result, str(root))  # type: ignore[arg-type]
        launcher.begin(action)
        said = await asyncio.wait_for(told, 10)
        await launcher.close()
        return said

    return asyncio.run(main())


def mark(root: Path) -> str | None:
    path = root / "run/gpu-gate/launched"
    return str(json.loads(path.read_bytes())["reason"]) if path.exists() else None


def test_the_cdi_unit_is_reset_and_run_without_its_dependencies(tmp_path: Path) -> None:
    bus = Bus("failed")
    assert done(tmp_path, RefreshCdi("cdi.service", "old"), bus) == "cdi.service: failed"
    assert bus.asked == [
        "ResetFailedUnit cdi.service",
        "RestartUnit cdi.service ignore-dependencies",
    ]
    assert mark(tmp_path) is None


@pytest.mark.parametrize("result", ["done", "failed"])
def test_a_unit_is_started_and_then_marked(tmp_path: Path, result: str) -> None:
    bus = Bus(result)
    assert done(tmp_path, LaunchUnit("dp.service"), bus) == f"dp.service: {result}"
    assert (
        bus.asked == ["StartUnit dp.service replace"] and mark(tmp_path) == f"dp.service: {result}"
    )


def test_a_launch_without_dbus_is_not_marked(tmp_path: Path) -> None:
    assert (
        done(tmp_path, LaunchUnit("dp.service"), Bus(BusError("no D-Bus", ErrorKind.MISSING)))
        == "not started: no D-Bus"
    )
    assert mark(tmp_path) is None


def test_one_start_at_a_time(tmp_path: Path) -> None:
    async def main() -> None:
        launcher = Launcher(Bus(), lambda said: None, str(tmp_path))  # type: ignore[arg-type]
        launcher.begin(LaunchUnit("a.service"))
        with pytest.raises(ActionFailed, match="still starting"):
            launcher.begin(RefreshCdi("b.service", ""))
        await launcher.close()

    asyncio.run(main())


def place(root: Path) -> None:
    Launcher(Bus(), lambda said: None, str(root)).begin(PLACE)  # type: ignore[arg-type]


@pytest.fixture
def node(tmp_path: Path) -> Path:
    for folder in ("etc", "m", "var/lib/gpu-gate"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "etc/plugin.yaml").write_bytes(POD)
    return tmp_path


def test_a_manifest_is_placed_and_recorded(node: Path) -> None:
    place(node)
    assert (node / "m/gpu-gate-plugin.yaml").read_bytes() == POD
    assert os.listdir(node / "m") == ["gpu-gate-plugin.yaml"]
    assert (node / "var/lib/gpu-gate/manifest").read_text() == "/m/gpu-gate-plugin.yaml\n"
    assert mark(node) == "placed /m/gpu-gate-plugin.yaml"
    place(node)  # killed before its mark: the same again is nothing
    assert os.listdir(node / "m") == ["gpu-gate-plugin.yaml"]


def other(node: Path) -> None:
    (node / "m/gpu-gate-plugin.yaml").write_text("kind: Pod # theirs\n")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (other, "was not replaced"),
        (lambda n: (n / "m/gpu-gate-plugin.yaml").symlink_to("nowhere"), "could not write"),
        (lambda n: (n / "m/gpu-gate-plugin.yaml").mkdir(), "could not write"),
        (lambda n: (n / "m").rmdir(), "could not write"),
        (lambda n: (n / "etc/plugin.yaml").unlink(), "could not read"),
        (lambda n: (n / "etc/plugin.yaml").write_bytes(b" \n"), "is empty"),
        (
            lambda n: (n / "etc/plugin.yaml").write_bytes(b"a" * (MANIFEST_BYTES + 1)),
            "larger than 1 MiB",
        ),
        (
            lambda n: ((n / "etc/plugin.yaml").unlink(), os.mkfifo(n / "etc/plugin.yaml")),
            "not a regular file",
        ),
        (
            lambda n: ((n / "etc/plugin.yaml").unlink(), (n / "etc/plugin.yaml").mkdir()),
            "regular file|could not read",
        ),
    ],
)
def test_manifests_that_are_not_placed(node: Path, change: Any, says: str) -> None:
    change(node)
    before = sorted(os.listdir(node / "m")) if (node / "m").exists() else []
    with pytest.raises(ActionFailed, match=says):
        place(node)
    assert mark(node) is None
    assert (sorted(os.listdir(node / "m")) if (node / "m").exists() else []) == before


def read(host: LiveHost, path: str, limit: int = 1 << 20) -> Any:
    return asyncio.run(host.document(path, limit))


def test_a_document_is_parsed_again_only_after_a_change(tmp_path: Path) -> None:
    host, path = LiveHost(root=str(tmp_path)), tmp_path / "a.yaml"
    path.write_text("a: 1\n")
    os.utime(path, (1.0, 1.0))
    first = read(host, "/a.yaml")
    assert first.value == b'{"a": 1}' and read(host, "/a.yaml").value is first.value
    path.write_text("a: {\n")
    assert isinstance(read(host, "/a.yaml"), Refusal)
    path.write_text("a: [\n")
    os.utime(path, (2.0, 2.0))
    found = read(host, "/a.yaml")
    assert isinstance(found, Refusal) and found.why is Why.FAILED and read(host, "/a.yaml") is found
    path.unlink()
    assert read(host, "/a.yaml").is_missing
    path.write_text("a: 1\n" * 100)
    assert "larger than" in str(read(host, "/a.yaml", 100))
    (tmp_path / "b.json").mkdir()
    assert isinstance(read(host, "/b.json"), Refusal)


def test_absent_files(tmp_path: Path) -> None:
    host = LiveHost(root=str(tmp_path))
    (tmp_path / "a").write_text("")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    found = asyncio.run(host.absent(["/a", "/b", "/a/c", "/dangling"]))
    assert isinstance(found, Seen) and found.value == ("/b", "/a/c", "/dangling")
    assert isinstance(asyncio.run(host.absent(["/loop"])), Refusal)
