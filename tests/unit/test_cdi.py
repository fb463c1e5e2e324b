"""CDI: the content of a spec, its faults on this node, and when they end readiness."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from agent.core.cdi import specs as cdi
from agent.core.cdi.collect import MOST_FILES, toolkit
from agent.core.common.watched import CDI_UNIT
from agent.model.cdi import CdiFile, CdiSpec, Toolkit
from agent.model.finding import Diagnosis, Verdict
from agent.model.reading import Reading, Refusal, Seen, Why

from .cdi_files import DRIVER, HOST, LIB, ctk, text
from .snapshots import (
    DENIED,
    FAILED,
    MISSING,
    NO_DRIVER,
    UUIDS,
    diagnosed,
    finding,
    seen,
    sight,
    unit,
)
from .test_collect import DictHost

RUN, ETC = "/run/cdi/nvidia.yaml", "/etc/cdi/nvidia.yaml"
REFRESH = unit(CDI_UNIT, active="inactive", since=None)


def test_a_spec_by_nvidia_ctk() -> None:
    assert cdi.spec(text(ctk())) == CdiSpec(
        "nvidia.com/gpu", ("0", UUIDS[0], "1", UUIDS[1], "all"), (DRIVER,), HOST
    )


def test_a_spec_with_device_numbers_and_a_renamed_node() -> None:
    node = {"path": "/dev/nvidia0", "hostPath": "/dev/host0", "major": 195, "minor": 0}
    device = {"name": 0, "containerEdits": {"deviceNodes": [node]}}
    found = cdi.spec(text({"kind": "nvidia.com/gpu", "devices": [device]}))
    assert found == CdiSpec(
        "nvidia.com/gpu", ("0",), (), ("/dev/host0",), (("/dev/host0", 195, 0),)
    )


@pytest.mark.parametrize(
    ("kind", "mine"),
    [
        ("nvidia.com/gpu", True),
        ("k8s.device-plugin.nvidia.com/gpu", True),
        ("management.nvidia.com/gpu", True),
        ("amd.com/gpu", False),
        ("nvidia.com/imex-channel", False),
    ],
)
def test_kinds(kind: str, mine: bool) -> None:
    assert (cdi.spec(text(ctk(kind=kind))) is not None) == mine


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"[]", "no object"),
        (b"\xff", "no object"),
        (b"{}", "no kind"),
        (b'{"kind": 7}', "no kind"),
        (b'{"kind": "gpu"}', "no kind"),
        (text({"kind": "nvidia.com/gpu"}), "no device"),
        (text(ctk(devices=[])), "no device"),
        (text(ctk(devices={})), "no device"),
        (text(ctk(devices=[{"name": str(n)} for n in range(cdi.MOST + 1)])), "more than"),
    ],
)
def test_no_spec(data: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        cdi.spec(data)


@pytest.mark.parametrize(
    "edits",
    [
        None,
        [],
        "x",
        {"mounts": 3},
        {"mounts": [3, {"hostPath": 4}, {}]},
        {"deviceNodes": [{"path": "relative"}, {"path": "/a\0b"}, {"major": 1}]},
    ],
)
def test_hostile_edits_are_not_used_as_paths(edits: Any) -> None:
    found = cdi.spec(
        text({"kind": "nvidia.com/gpu", "devices": [{"name": "0"}, 7], "containerEdits": edits})
    )
    assert found == CdiSpec("nvidia.com/gpu", ("0",), (), ())


@pytest.mark.parametrize(
    ("data", "mode"),
    [
        (b"", "auto"),
        (b'[nvidia-container-runtime]\nmode = "cdi"\n', "cdi"),
        (b'mode = "cdi"\n', "auto"),
        (b'[nvidia-container-runtime] # x\n  mode="legacy" # y\n', "legacy"),
        (
            b"[nvidia-container-runtime]\n#mode = "
            b'"cdi"\n[nvidia-container-runtime.modes.csv]\nmode = "x"\n',
            "auto",
        ),
        (b"\0\0", None),
    ],
)
def test_the_runtimes_mode(data: bytes, mode: str | None) -> None:
    assert cdi.runtime_mode(data) == mode


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b'  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]\n', True),
        (b"[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia.options]\n", False),
        (b"[crio.runtime.runtimes.nvidia]\n", True),
        (b'[plugins.cri.containerd.runtimes."nvidia"]', True),
        (b"# [crio.runtime.runtimes.nvidia]\n", False),
        (b"[plugins.cri.containerd.runtimes.runc]\n", False),
    ],
)
def test_a_runtime_handler_is_found(data: bytes, named: bool) -> None:
    assert cdi.names_handler(data) == named


def test_enable_cdi() -> None:
    assert cdi.enables_cdi(b"    enable_cdi = true\n")
    assert not cdi.enables_cdi(b"# enable_cdi = true\n  enable_cdi = false\n")


def looked(files: dict[str, Any]) -> Toolkit:
    return asyncio.run(toolkit(DictHost(files)))


def test_a_look_at_the_files() -> None:
    found = looked(
        {
            "/etc/cdi/*": ["nvidia.yaml", "amd.json", ".nvidia.yaml.tmp", "README"],
            ETC: text(ctk()),
            "/etc/cdi/amd.json": text(ctk(kind="amd.com/gpu")),
            "/run/cdi/*": ["broken.yml"],
            "/run/cdi/broken.yml": b"1",
            "/etc/nvidia-container-runtime/config.toml": b"[nvidia-container-runtime]\nmode = "
            b'"cdi"\n',
            "/etc/containerd/config.toml": b"enable_cdi = true\n",
            "/etc/containerd/conf.d/*": ["99-nvidia.toml", "x.bak"],
            "/etc/containerd/conf.d/99-nvidia.toml": b"[plugins.x.containerd.runtimes.nvidia]\n",
            **{path: b"" for path in HOST[1:]},
        }
    )
    assert isinstance(found.specs, Seen)
    assert [f.path for f in found.specs.value] == [
        "/etc/cdi/nvidia.yaml",
        "/etc/cdi/amd.json",
        "/run/cdi/broken.yml",
    ]
    assert found.specs.value[1].spec == seen(None)
    assert found.specs.value[2].spec == Refusal(Why.FAILED, "it holds no object")
    assert found.absent == seen(HOST[:1]) and found.mode == seen("cdi")
    assert found.handlers == ("/etc/containerd/conf.d/99-nvidia.toml",)
    assert found.cdi_enabled == "/etc/containerd/config.toml"


def test_no_folder_is_no_spec_and_an_unreadable_one_is_no_answer() -> None:
    assert looked({}).specs == Seen((), 0.0)
    assert looked({"/run/cdi/*": DENIED}).specs == DENIED
    many = looked({"/run/cdi/*": [f"{n}.json" for n in range(MOST_FILES + 1)]}).specs
    assert isinstance(many, Refusal) and many.why is Why.FAILED


def parts(
    *files: tuple[str, Any],
    absent: Reading[tuple[str, ...]] | None = None,
    mode: str = "",
    **changes: Any,
) -> Toolkit:
    """A toolkit in a snapshot; a file is a spec, or the reason why it could not be read."""
    found = tuple(
        CdiFile(p, s if isinstance(s, Refusal) else seen(cdi.spec(text(s)))) for p, s in files
    )
    read = Toolkit(seen(found), absent or seen(()), seen(mode) if mode else MISSING)
    return replace(read, **changes)


def assessment(found: Toolkit, *units: Any, **changes: Any) -> Diagnosis:
    return diagnosed(
        toolkit=found, units=seen((unit("kubelet.service", since=50.0), *units)), **changes
    )


def test_a_node_without_cdi_is_healthy() -> None:
    said = finding(assessment(parts()), "CdiSpec")
    assert said.verdict is Verdict.HOLDS and "the runtime's own hook" in said.because
    assert not any(f.condition == "RuntimeHandler" for f in assessment(parts()).findings)


@pytest.mark.parametrize(
    "files",
    [
        [(RUN, ctk())],
        [(ETC, ctk())],
        [(RUN, ctk()), (ETC, ctk(driver="535.1.2"))],  # /run/cdi wins
        [(RUN, ctk(devices=[{"name": n} for n in ("0:0", "MIG-1", "1", "all")]))],
        [(RUN, ctk(devices=[{"name": "gpu0"}, {"name": "gpu1"}]))],
        [(RUN, ctk()), ("/run/cdi/p.json", ctk(kind="k8s.device-plugin.nvidia.com/gpu"))],
        [(RUN, ctk()), ("/run/cdi/amd.json", ctk(kind="amd.com/gpu"))],
    ],
)
def test_a_spec_that_holds(files: list[tuple[str, Any]]) -> None:
    diagnosis = assessment(parts(*files, mode="cdi"), REFRESH)
    assert finding(diagnosis, "CdiSpec").verdict is Verdict.HOLDS
    assert diagnosis.refresh is None


FAULTS: list[tuple[str, Toolkit, str]] = [
    ("CdiMissing", parts(), "no CDI spec of kind nvidia.com/gpu"),
    (
        "CdiMissing",
        parts(("/run/cdi/m.json", ctk(kind="management.nvidia.com/gpu"))),
        "no CDI spec of kind",
    ),
    ("CdiUnreadable", parts((RUN, Refusal(Why.FAILED, "it is no YAML"))), f"{RUN}: it is no YAML"),
    (
        "CdiOlderDriver",
        parts((RUN, ctk(driver="535.161.07"))),
        "names driver 535.161.07, loaded is 550.54.15",
    ),
    (
        "CdiPathsMissing",
        parts((RUN, ctk()), absent=seen((f"{LIB}/libcuda.so.{DRIVER}",))),
        "libcuda",
    ),
    (
        "CdiOtherNumbers",
        parts(
            (
                RUN,
                ctk(
                    containerEdits={
                        "deviceNodes": [{"path": "/dev/nvidia-uvm", "major": 508, "minor": 0}]
                    }
                ),
            )
        ),
        "/dev/nvidia-uvm",
    ),
    ("CdiLacksGpu", parts((RUN, ctk(uuids=UUIDS[:1]))), f"lacks {UUIDS[1]}"),
    (
        "CdiConflict",
        parts((RUN, ctk()), ("/run/cdi/old.json", ctk())),
        "both define nvidia.com/gpu=0",
    ),
]


@pytest.mark.parametrize(("reason", "found", "says"), FAULTS)
def test_a_broken_spec(reason: str, found: Toolkit, says: str) -> None:
    diagnosis = assessment(found, REFRESH)
    said = finding(diagnosis, "CdiSpec")
    assert (said.verdict, said.reason, said.blocks) == (Verdict.FAILS, reason, False)
    assert says in said.because and said.missing
    if reason == "CdiConflict":
        assert diagnosis.refresh is None and "remove one" in said.next_step
    else:
        assert diagnosis.refresh is not None and reason in diagnosis.refresh.evidence
        assert said.next_step.startswith("nvidia-ctk cdi generate --output=/")
    assert diagnosis.first_broken() is None


@pytest.mark.parametrize(("reason", "found", "says"), FAULTS)
def test_a_broken_spec_ends_readiness_if_cdi_names_are_used(
    reason: str, found: Toolkit, says: str
) -> None:
    assert assessment(replace(found, mode=seen("cdi")), REFRESH).first_broken() is not None
    by_env: dict[str, Any] = {"env": {"DEVICE_LIST_STRATEGY": "cdi-annotations"}}
    for how in (by_env, {"args": ("--device-list-strategy=envvar,cdi-cri",)}):
        broken = assessment(found, REFRESH, plugins=(sight(**how),)).first_broken()
        assert broken is not None and broken.reason == reason
        assert "the device plugin hands out CDI names" in broken.because


@pytest.mark.parametrize(
    "off",
    [
        unit(CDI_UNIT, load="not-found"),
        unit(CDI_UNIT, load="masked"),
        unit(CDI_UNIT, file_state="disabled"),
    ],
)
def test_a_disabled_unit_is_not_queried(off: Any) -> None:
    assert assessment(parts((RUN, ctk(driver="535.1.2"))), off).refresh is None
    assert finding(assessment(parts(), off), "CdiSpec").verdict is Verdict.HOLDS


@pytest.mark.parametrize(
    "found",
    [
        parts(specs=DENIED),
        parts((RUN, DENIED)),
        parts((RUN, ctk()), absent=FAILED),
        parts(specs=Refusal(Why.NOT_RECORDED)),
    ],
)
def test_an_unread_spec_is_unknown_and_causes_no_refresh(found: Toolkit) -> None:
    diagnosis = assessment(replace(found, mode=seen("cdi")), REFRESH)
    assert finding(diagnosis, "CdiSpec").verdict is Verdict.UNKNOWN
    assert diagnosis.refresh is None and diagnosis.first_broken() is None


def test_a_file_that_vanished_while_it_was_read_is_no_broken_one() -> None:
    assert (
        finding(assessment(parts((RUN, ctk()), ("/run/cdi/x.json", MISSING))), "CdiSpec").verdict
        is Verdict.UNKNOWN
    )


def test_no_cdi_finding_without_a_driver() -> None:
    assert not any(
        f.condition == "CdiSpec" for f in assessment(parts(), REFRESH, **NO_DRIVER).findings
    )


def test_no_gpu_is_lacking_before_a_complete_probe() -> None:
    found = assessment(parts((RUN, ctk(uuids=UUIDS[:1]))), REFRESH, probe=MISSING)
    assert finding(found, "CdiSpec").verdict is Verdict.HOLDS


@pytest.mark.parametrize(
    ("found", "verdict", "says"),
    [
        (
            parts(mode="auto", handlers=("/etc/crio/crio.conf",)),
            Verdict.HOLDS,
            "auto; handler nvidia in /etc/crio",
        ),
        (
            parts(mode="auto", cdi_enabled="/etc/containerd/x.toml"),
            Verdict.HOLDS,
            "enable_cdi in /etc/containerd",
        ),
        (
            parts(handlers=("/etc/crio/crio.conf",)),
            Verdict.HOLDS,
            "no configuration of the NVIDIA runtime",
        ),
        (parts(mode="auto"), Verdict.FAILS, "names a handler nvidia"),
    ],
)
def test_the_runtimes_handler_is_a_hint(found: Toolkit, verdict: Verdict, says: str) -> None:
    said = finding(assessment(found), "RuntimeHandler")
    assert (said.verdict, said.blocks) == (verdict, False) and says in said.because


def test_the_runtime_answers() -> None:
    said = finding(assessment(parts()), "RuntimeAnswers")
    assert said.because == "/run/containerd/containerd.sock answers: 1 container"


def test_a_running_unit_is_reported_as_running() -> None:
    found = assessment(parts(), unit(CDI_UNIT, active="activating")).refresh
    assert found is not None and found.is_running
