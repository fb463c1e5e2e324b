"""Captured states of a real node: the diagnosis, the repair, and that torn state does not
mislead."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from agent.core.collect import collect
from agent.core.diagnose import diagnose
from agent.host.evidence import bundle
from agent.host.tape import Replay
from agent.model.finding import Diagnosis, Finding, Verdict
from agent.model.host import Host
from agent.model.reading import Refusal, Seen
from agent.model.runtime import PluginLogState
from agent.model.settings import Settings
from agent.model.snapshot import Snapshot

from . import repairer
from .load import Around, load, nanoseconds, tape

HERE = Path(__file__).resolve().parent
CAPTURES = HERE / "captures"
DEFAULTS = Settings()


@dataclass(frozen=True)
class Expected:
    """A row of expected.txt."""

    state: str
    broken: str
    registered: str
    plugin: str
    log: str
    checkpoint: str
    repairer: str
    with_access: str
    with_partial: str


def rows() -> Iterator[Any]:
    group = ""
    for line in (HERE / "expected.txt").read_text().splitlines():
        if line.startswith("kubelet-"):
            group = line.strip()
        elif group and line.strip():
            *cells, wrong = (cell.strip() for cell in line.split("|"))
            row = Expected(*cells)
            row = replace(row, state=f"{group}/{row.state}")
            yield pytest.param(
                row, id=row.state, marks=[pytest.mark.xfail(reason=wrong)] if wrong else []
            )


each_state = pytest.mark.parametrize("row", list(rows()))
STATES = sorted(str(p.relative_to(CAPTURES)) for p in CAPTURES.glob("*/*"))


def seen(host: Host, settings: Settings = DEFAULTS) -> tuple[Snapshot, Diagnosis]:
    snapshot = asyncio.run(collect(host, settings))
    return snapshot, diagnose(snapshot, settings)


def replayed(
    folder: Path, settings: Settings = DEFAULTS, may_open: bool | None = None
) -> tuple[Snapshot, Diagnosis]:
    around = replace(Around.of(folder.name), may_open=may_open)
    return seen(Replay(tape(folder, settings, around)), settings)


def finding(diagnosis: Diagnosis, condition: str) -> Finding | None:
    return next((f for f in diagnosis.findings if f.condition == condition), None)


def broken(diagnosis: Diagnosis) -> str:
    first = diagnosis.first_broken()
    return first.reason if first else "-"


def registered(diagnosis: Diagnosis) -> str:
    found, view = diagnosis.registered, diagnosis.repair_facts
    assert found is not None and view is not None
    count = "?" if found.verdict is Verdict.UNKNOWN else str(view.listed)
    return " ".join(filter(None, (found.verdict.value, found.reason, count)))


def plugin(diagnosis: Diagnosis) -> str:
    found = finding(diagnosis, "PluginHealthy")
    if found is None or found.verdict is Verdict.UNKNOWN:
        return "?"
    return "ok" if found.verdict is Verdict.HOLDS else found.reason


def log(snapshot: Snapshot) -> str:
    if not snapshot.plugin.plugins:
        return "-"
    assert len(snapshot.plugin.plugins) == 1
    found = snapshot.plugin.plugins[0].log
    assert isinstance(found, Seen)
    return found.value.says.value + (f" ({found.value.error})" if found.value.error else "")


def checkpoint(snapshot: Snapshot) -> str:
    if isinstance(snapshot.kubelet.checkpoint, Refusal):
        return "?"
    return str(sum(snapshot.kubelet.checkpoint.value.values()))


def would_do(snapshot: Snapshot, diagnosis: Diagnosis, settings: Settings = DEFAULTS) -> str:
    return repairer.would_do(snapshot, diagnosis, settings)


def test_the_table_names_every_state() -> None:
    assert sorted(param.values[0].state for param in rows()) == STATES


@each_state
def test_the_diagnosis_of_each_capture(row: Expected) -> None:
    folder, partial = CAPTURES / row.state, replace(DEFAULTS, repair_partial=True)
    snapshot, diagnosis = replayed(folder)
    verified, found = replayed(folder, may_open=True), replayed(folder, partial)
    assert (
        Expected(
            row.state,
            broken(diagnosis),
            registered(diagnosis),
            plugin(diagnosis),
            log(snapshot),
            checkpoint(snapshot),
            would_do(snapshot, diagnosis),
            would_do(*verified),
            would_do(*found, partial),
        )
        == row
    )


@pytest.mark.parametrize(("state", "missing"), [("partial-gpus-7", 7), ("xid-1-unhealthy", 3)])
def test_the_missing_gpu_is_named(state: str, missing: int) -> None:
    _, diagnosis = replayed(CAPTURES / "kubelet-1.36.3-plugin-0.20.0" / state)
    assert diagnosis.registered is not None
    assert diagnosis.registered.because == (
        f"the kubelet lists 7 of 8 GPUs, not GPU-be4c{missing:04x}-fa4e-4e11-9000-{missing:012x}"
    )


@pytest.mark.parametrize("state", STATES)
def test_a_wrong_checkpoint_is_reported_as_a_hint(state: str) -> None:
    _, diagnosis = replayed(CAPTURES / state)
    found = finding(diagnosis, "Checkpoint")
    if found is not None:
        assert "a hint" in found.because and not found.blocks
    first = diagnosis.first_broken()
    assert first is None or first.condition not in ("Checkpoint", "PluginSocket")


@pytest.mark.parametrize("state", STATES)
def test_the_nodes_plugin_belongs_to_the_present_state(state: str) -> None:
    snapshot, _ = replayed(CAPTURES / state)
    for sight in snapshot.plugin.plugins:
        assert isinstance(sight.detail, Seen) and isinstance(sight.log, Seen)
        assert sight.detail.value.image.endswith(
            state.partition("plugin-")[2].replace("/", "-").split("-")[0]
        )
        assert sight.detail.value.env == {"FAIL_ON_INIT_ERROR": "false"}
        assert sight.detail.value.args == ("/usr/bin/nvidia-device-plugin",)
        assert sight.detail.value.pid > 1
        assert sight.log.value.says is not PluginLogState.NOTHING


@pytest.mark.parametrize("state", STATES)
def test_live_tape_and_bundle_give_the_same_diagnosis(state: str, tmp_path: Path) -> None:
    folder = CAPTURES / state
    live, recorded = seen(load(folder)), tape(folder, DEFAULTS)
    assert seen(Replay(recorded)) == live
    bundle.write(recorded, tmp_path / "bundle")
    assert seen(Replay(bundle.read(tmp_path / "bundle"))) == live


def copied(state: str, target: Path) -> Path:
    return Path(shutil.copytree(CAPTURES / state, target / Path(state).name))


def verdict(diagnosis: Diagnosis) -> Verdict:
    assert diagnosis.registered is not None
    return diagnosis.registered.verdict


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("harm", ["lost", "torn", "empty", "junk"])
def test_a_damaged_capture_causes_no_false_finding(state: str, harm: str, tmp_path: Path) -> None:
    """Each file in turn. What would have been done may then not be done; nothing else may be."""
    snapshot, diagnosis = replayed(CAPTURES / state)
    was = would_do(snapshot, diagnosis)
    for file in sorted((CAPTURES / state).iterdir()):
        folder = copied(state, tmp_path / file.name)
        victim = folder / file.name
        data = victim.read_bytes()
        victim.unlink()
        if harm != "lost":
            victim.write_bytes(
                {"torn": data[: len(data) // 2], "empty": b"", "junk": b"\0\xff{[" * 99}[harm]
            )
        harmed = replayed(folder)
        assert would_do(*harmed) in {was, "none", "held"}, file.name
        assert verdict(harmed[1]) in {verdict(diagnosis), Verdict.UNKNOWN}, file.name


def test_unknown_files_are_ignored(tmp_path: Path) -> None:
    state = "kubelet-1.36.3-plugin-0.20.0/incident-2-nvml-ok-old-container"
    folder = copied(state, tmp_path)
    (folder / "journal.txt").write_text("…")
    (folder / "crictl-inspect-feedfacecafe.json").write_text(
        '{"status": {"id": "feedfacecafe", "state": "NEW"}}'
    )
    (folder / "plugin-feedfacecafe.log").write_text(
        "Registered device plugin for 'nvidia.com/gpu' with Kubelet\n"
    )
    assert replayed(folder) == replayed(CAPTURES / state)
    assert seen(load(tmp_path / "an-empty-folder"))[1].first_broken() is None


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("2026-11-29T12:36:14.099974037Z", 1795955774_099974037),
        ("2026-11-29T12:36:14Z", 1795955774_000000000),
        ("2026-11-29T12:36:14.1Z", 1795955774_100000000),
        ("2026-11-29T13:36:14.1+01:00", 1795955774_100000000),
        ("2026-11-29T12:36:14.0999740371234Z", 1795955774_099974037),
        ("2026-11-29 12:36:14.099974037 +0000", 1795955774_099974037),
        ("2026-11-29T12:36:14.5", 1795955774_500000000),
        ("1795955774099974037", 1795955774_099974037),
        (1795955774, 1795955774),
        ("0001-01-01T00:00:00Z", 0),
        ("1969-12-31T23:59:59.5Z", 0),
        ("2026-13-29T12:36:14Z", 0),
        ("", 0),
        (None, 0),
        ("yesterday", 0),
        (-5, 0),
        ("Nov 29 12:46", 0),
        ("0001-01-01T00:00:00+14:00", 0),
    ],
)
def test_timestamps_are_parsed(written: Any, meant: int) -> None:
    assert nanoseconds(written) == meant
