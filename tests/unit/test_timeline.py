"""This boot as a race is read: from scenes, without a node."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from agent.core.common.kernel_log import words
from agent.core.doctor.boot_events import clock_set
from agent.core.doctor.timeline import Timeline, timeline
from agent.model.kernel import KernelLine
from agent.model.mark import Mark
from agent.model.reading import Refusal
from agent.model.runtime import ContainerState
from agent.model.snapshot import Entry, Hardware, Manager, Snapshot
from agent.service.commands.timeline import report, text

from .snapshots import (
    BOOT_ID,
    BUSES,
    DEFAULTS,
    DENIED,
    FAILED_LOG,
    NODES,
    OFFSET,
    changed,
    container,
    entry,
    seen,
    sight,
    snapshot,
    unit,
)

STAMPED = b"2023-11-14T21:57:03.600000000Z stderr F " + FAILED_LOG.splitlines()[1]
"""OFFSET is 2023-11-14T21:56:40Z."""
KERNEL = [KernelLine(1.5, f"pci {bus}: [10de:2330] type 00 class 0x030200") for bus in BUSES] + [
    KernelLine(1.6, "pci 0000:07:00.1: [10de:22a3] type 00 class 0x068000"),
    KernelLine(9.0, "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.161.07"),
]


def marks(**at: float) -> dict[str, Any]:
    return {name: seen(Mark("", instant)) for name, instant in at.items()}


def told(**changes: Any) -> Timeline:
    return timeline(snapshot(**changes), DEFAULTS)


def incident(**changes: Any) -> Snapshot:
    """Seed 003: persistenced, a second later the plugin, and NVML works only 5 s after that."""
    plugin = sight(STAMPED, of=container(created_at=OFFSET + 23.0), started_at=OFFSET + 23.0)
    return changed(
        snapshot(
            kernel=seen(words(KERNEL)),
            plugins=(plugin,),
            allocatable=seen(()),
            manager=seen(Manager("252", 4.0)),
            nodes=seen(tuple(replace(n, made_at=OFFSET + 12.0 + n.minor % 2 * 2) for n in NODES)),
            units=seen(
                (
                    unit("nvidia-persistenced.service", since=22.0),
                    unit("kubelet.service", since=21.5),
                )
            ),
            milestones=marks(look=6.0, seen=26.2, stable=28.2, open=28.2),
        ),
        **changes,
    )


def test_the_timeline_of_the_incident() -> None:
    found = timeline(incident(), DEFAULTS)
    assert found.sentences == (
        "the plugin started 1.0 s after nvidia-persistenced, 5.2 s before NVML was stable",
        "the plugin logged 0.6 s after its start: Failed to initialize NVML: nvml: Unknown "
        "Error; it logged no success since",
        "the kubelet was up 6.7 s before NVML was stable",
    )
    assert [(m.what, round(m.at, 1)) for m in found.boot_events] == [
        ("pci", 1.5),
        ("reload", 4.0),
        ("look", 6.0),
        ("module", 9.0),
        ("first-node", 12.0),
        ("nodes", 14.0),
        ("kubelet", 21.5),
        ("persistenced", 22.0),
        ("started", 23.0),
        ("said-init-failed", 23.6),
        ("seen", 26.2),
        ("stable", 28.2),
        ("open", 28.2),
    ]
    assert found.unknown == (
        "when the kubelet listed every GPU: no mark of it in this boot; it lists 0 now",
    )


def test_the_text_fits_80_columns_and_begins_with_the_summary() -> None:
    lines = text(incident(), timeline(incident(), DEFAULTS))
    assert lines[0] == "The plugin started 1.0 s after nvidia-persistenced, 5.2 s before NVML was"
    assert max(map(len, lines)) < 80
    assert "     23.0       +1.0  the plugin started [runtime]" in lines
    assert any("2023-11-14 21:56:40 UTC" in line for line in lines)


def test_as_json() -> None:
    shown = json.loads(json.dumps(report(incident(), timeline(incident(), DEFAULTS))))
    assert (shown["version"], shown["boot_at"], shown["boot_id"]) == (1, OFFSET, BOOT_ID)
    started = next(m for m in shown["moments"] if m["what"] == "started")
    assert (started["at"], started["gap"], started["converted"]) == (23.0, 1.0, True)


def test_without_marks_the_timeline_shows_no_gap_to_nvml() -> None:
    """gpu-gate was installed later: its first probe is when it saw NVML, not when NVML came."""
    found = timeline(
        incident(milestones=marks(look=600.0, seen=601.0, stable=603.0, open=603.0)), DEFAULTS
    )
    assert found.sentences[0] == "the plugin started 1.0 s after nvidia-persistenced"
    assert (
        "no gate delayed the kubelet: gpu-gate's first snapshot came 9 min 38 s after it was up"
        in found.sentences
    )
    assert (
        "whether NVML was complete before 600.0 s: gpu-gate took no earlier snapshot"
        in found.unknown
    )


def test_a_gated_boot() -> None:
    found = told(
        milestones=marks(look=2.0, seen=20.0, stable=22.0, open=22.0, registered=101.5),
        released=seen(Mark("NVML was stable", 22.0)),
        units=seen((unit("nvidia-persistenced.service"), unit("kubelet.service", since=22.4))),
    )
    assert (
        "the kubelet was up 0.4 s after NVML was stable; it was released 0.0 s after that"
        in found.sentences
    )
    assert (
        "the plugin started 90.0 s after nvidia-persistenced, 78.0 s after NVML was stable"
        in found.sentences
    )
    assert not any("listed" in sentence for sentence in found.unknown)


def test_a_container_created_too_early_then_a_kubelet_restart_and_a_reload() -> None:
    found = told(
        kernel=seen(words([KernelLine(103.0, KERNEL[-1].text)])),
        manager=seen(Manager("252", 300.0)),
        units=seen((unit("kubelet.service", since=500.0),)),
    )
    assert "3.0 s before the module was loaded" in found.sentences[0]
    assert (
        "the kubelet was up 6 min 40 s after the plugin started, so the plugin had to register again"
        in found.sentences
    )
    assert "the last daemon-reload came 3 min 20 s after the plugin started" in found.sentences


def test_repairs_of_this_boot_and_their_outcomes() -> None:
    done = (
        entry(1, OFFSET + 500, boot_id="another"),
        entry(2, OFFSET + 600, cause="PluginInitFailed a/b c"),
        entry(2, OFFSET + 612, what="outcome", outcome="the kubelet lists every GPU"),
    )
    found = told(ledger=seen(done))
    assert [(m.what, m.text) for m in found.boot_events if m.source == "ledger"] == [
        ("repair", "repair 2 begins: rebuild c0, for PluginInitFailed"),
        ("outcome", "repair 2: the kubelet lists every GPU"),
    ]
    assert "repair 2 took 12.0 s until its outcome was known" in found.sentences


def test_several_plugins_are_distinguished() -> None:
    old = sight(
        of=container("oldoldoldold", created_at=OFFSET + 50, state=ContainerState.EXITED),
        finished_at=OFFSET + 90.0,
        exit_code=2,
    )
    found = told(plugins=(sight(of=container("newnewnewnew")), old))
    assert [m.text for m in found.boot_events if m.source == "runtime"] == [
        "the plugin oldoldol started",
        "the plugin oldoldol ended, status 2",
        "the plugin newnewne started",
    ]


@pytest.mark.parametrize(
    ("moved", "is_set"), [(0.3, False), (-0.4, False), (3600.0, True), (-7200.0, True)]
)
def test_a_changed_clock_is_reported(moved: float, is_set: bool) -> None:
    """The mark was written at 12 s by our clock; its file's time is of the clock before it was
    set."""
    changed = snapshot(
        waiting=seen(Mark("", 12.0)),
        run_files=seen(
            (Entry("waiting", "file", mtime=OFFSET - moved + 12.0), Entry("other", "file"))
        ),
    )
    found = timeline(changed, DEFAULTS)
    said = [sentence for sentence in found.unknown if "clock was set" in sentence]
    assert bool(said) is is_set
    if is_set:
        assert (
            f"the clock was set {'forward' if moved > 0 else 'back'} by {abs(moved) // 3600:.0f} h"
            in said[0]
        )
        assert clock_set(changed) == (pytest.approx(moved), 12.0)
        assert any(line[9:10] == "*" for line in text(changed, found))


def test_a_stamp_of_another_boot_is_no_moment_of_this_one() -> None:
    found = told(plugins=(sight(of=container(created_at=OFFSET - 5000.0)),))
    assert not any(m.source == "runtime" for m in found.boot_events)
    assert (
        "when the plugin started: its timestamp is from another boot, or the clock was set since"
        in found.unknown
    )


def test_an_unanswered_question_is_unknown() -> None:
    parts = (
        "kernel",
        "units",
        "nodes",
        "runtime",
        "allocatable",
        "manager",
        "ledger",
        "plugin_sockets",
        "run_files",
    )
    found = told(plugins=(), **dict.fromkeys(parts, DENIED))
    assert (found.boot_events, found.sentences) == ((), ())
    for words_ in (
        "on PCI: not-permitted",
        "module was loaded: not-permitted",
        "units started: not-permitted",
        "device nodes were made: not-permitted",
        "gpu-gate has no mark",
        "plugin started: not-permitted",
        "the kubelet was not asked (not-permitted",
    ):
        assert any(words_ in sentence for sentence in found.unknown), words_


def test_no_part_of_a_scene_is_needed() -> None:
    bare = Snapshot(clock=snapshot().clock, hardware=Hardware(Refusal(DENIED.why)))
    assert text(bare, timeline(bare, DEFAULTS))[0].startswith("Since boot (2023-11-14")
