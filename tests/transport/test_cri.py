"""CRI against an imitated server: the requests, and the results of normal and hostile answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import grpc
import pytest

from agent.host import cri
from agent.model.errors import ErrorKind, RpcError
from agent.model.runtime import Container, ContainerDetail, ContainerState, Sandbox

from .grpc_peers import CRI, message, serving

PATIENCE_S = 60.0
NS = 1_000_000_000
AT = 1_795_955_834 * NS + 242_000_000
"""2026-11-29 12:37:14.242"""
CONTAINER = message(
    (1, "c1"),
    (2, "s1"),
    (3, message((1, "nvidia-device-plugin-ctr"), (2, 3))),
    (4, message((1, "sha256:6ba3"))),
    (5, "sha256:6ba3"),
    (6, 1),
    (7, AT),
    (8, {"io.kubernetes.pod.name": "plugin", "a": "b"}),
    (9, {"hash": "1"}),
    (10, "sha256:6ba3"),
)
SANDBOX = message(
    (1, "s1"),
    (2, message((1, "plugin"), (2, "uid"), (3, "kube-system"), (4, 2))),
    (4, AT),
    (5, {"app": "x"}),
    (6, {"kubernetes.io/config.source": "file"}),
    (7, "nvidia"),
)
SOCKETS = "/var/lib/kubelet/device-plugins"
STATUS = message(
    (1, "c1"),
    (2, message((1, "nvidia-device-plugin-ctr"))),
    (3, 2),
    (4, AT),
    (5, AT + NS),
    (6, AT + 2 * NS),
    (7, 137),
    (8, message((1, "registry.local/nvidia-device-plugin:v0.17.4"))),
    (9, "sha256:6ba3"),
    (10, "Error"),
    (11, "…"),
    (12, {"a": "b"}),
    (14, message((1, "/dev"))),
    (14, message((1, "/x"), (2, SOCKETS))),
    (15, "/var/log/pods/x/0.log"),
)
SPEC = {
    "process": {
        "args": ["nvidia-device-plugin", "--mig-strategy=single"],
        "env": [
            "PATH=/usr/bin",
            "NVIDIA_VISIBLE_DEVICES=0",
            "NVIDIA_VISIBLE_DEVICES=all",
            "FAIL_ON_INIT_ERROR=false",
            "AWS_SECRET_ACCESS_KEY=x",
            "DEVICE_LIST_STRATEGY=cdi-annotations,envvar",
            "EMPTY",
            "PASS_DEVICE_SPECS=true",
            "MIG_STRATEGY=none=x",
        ],
    }
}
ENV = {
    "NVIDIA_VISIBLE_DEVICES": "all",
    "FAIL_ON_INIT_ERROR": "false",
    "PASS_DEVICE_SPECS": "true",
    "DEVICE_LIST_STRATEGY": "cdi-annotations,envvar",
    "MIG_STRATEGY": "none=x",
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "containerd.sock"


def test_running_containers(run: Any, path: Path) -> None:
    bare = message((1, "s2")), message((1, "c2"), (6, 9))
    with serving(
        path,
        CRI,
        {
            "ListPodSandbox": message((1, SANDBOX), (1, bare[0])),
            "ListContainers": message((1, CONTAINER), (1, bare[1])),
        },
    ) as server:
        found = run(cri.runtime(str(path), PATIENCE_S))
    assert [name for name, _ in server.asked] == ["ListPodSandbox", "ListContainers"]
    at = AT / NS
    assert found.sandboxes == (
        Sandbox(
            "s1",
            "plugin",
            "kube-system",
            "uid",
            2,
            True,
            at,
            {"app": "x"},
            {"kubernetes.io/config.source": "file"},
        ),
        Sandbox("s2", "", "", "", 0, True, 0.0, {}, {}),
    )
    assert found.containers == (
        Container(
            "c1",
            "s1",
            "nvidia-device-plugin-ctr",
            3,
            "sha256:6ba3",
            ContainerState.RUNNING,
            at,
            {"a": "b", "io.kubernetes.pod.name": "plugin"},
        ),
        Container("c2", "", "", 0, "", ContainerState.UNKNOWN, 0.0, {}),
    )


def test_of_a_pods_annotations_only_those_that_are_read_are_kept(run: Any, path: Path) -> None:
    notes = {
        "vault.example/token": "s3cret",
        "cdi.k8s.io/gpu": "nvidia.com/gpu=0",
        "kubectl.kubernetes.io/last-applied-configuration": "x" * 250_000,
    }
    with serving(
        path,
        CRI,
        {"ListPodSandbox": message((1, message((1, "s1"), (6, notes)))), "ListContainers": b""},
    ):
        (found,) = run(cri.runtime(str(path), PATIENCE_S)).sandboxes
    assert found.annotations == {"cdi.k8s.io/gpu": "nvidia.com/gpu=0"}


def test_a_runtime_without_containers(run: Any, path: Path) -> None:
    with serving(path, CRI, {"ListPodSandbox": b"", "ListContainers": b""}):
        found = run(cri.runtime(str(path), PATIENCE_S))
    assert (found.sandboxes, found.containers) == ((), ())


def test_half_an_answer_is_none(run: Any, path: Path) -> None:
    with (
        serving(
            path,
            CRI,
            {"ListPodSandbox": message((1, SANDBOX)), "ListContainers": grpc.StatusCode.INTERNAL},
        ),
        pytest.raises(RpcError),
    ):
        run(cri.runtime(str(path), PATIENCE_S))


def test_both_questions_share_one_deadline(run: Any, path: Path) -> None:
    with serving(path, CRI, {"ListPodSandbox": b"", "ListContainers": b""}) as server:
        server.answers["ListContainers"] = server.wait
        with pytest.raises(RpcError) as caught:
            run(cri.runtime(str(path), 0.3))
    assert caught.value.kind is ErrorKind.TIMED_OUT


def detail(run: Any, path: Path, info: str | None, status: bytes = STATUS) -> ContainerDetail:
    answer = message((1, status), *([(2, {"info": info})] if info is not None else []))
    with serving(path, CRI, {"ContainerStatus": answer}) as server:
        found: ContainerDetail = run(cri.container(str(path), "c1", PATIENCE_S))
    assert server.asked == [("ContainerStatus", message((1, "c1"), (2, 1)))]
    return found


def test_a_container_in_containerd(run: Any, path: Path) -> None:
    info = {"pid": 23383, "sandboxID": "s1", "runtimeSpec": SPEC, "config": {"command": ["sh"]}}
    at = AT / NS
    assert detail(run, path, json.dumps(info)) == ContainerDetail(
        "c1",
        ContainerState.EXITED,
        at + 1,
        at + 2,
        137,
        "Error",
        "registry.local/nvidia-device-plugin:v0.17.4",
        "/var/log/pods/x/0.log",
        23383,
        ("nvidia-device-plugin", "--mig-strategy=single"),
        ENV,
        mounts=(SOCKETS,),
    )


def test_a_container_in_cri_o(run: Any, path: Path) -> None:
    notes = {"io.kubernetes.cri-o.ImageName": "quay.io/plugin:v1"}
    info = {
        "sandboxID": "s1",
        "pid": 77,
        "privileged": True,
        "runtimeSpec": {**SPEC, "annotations": notes},
    }
    found = detail(
        run,
        path,
        json.dumps(info),
        STATUS.replace(b"registry.local/nvidia-device-plugin:v0.17.4", b"sha256:" + b"0" * 36),
    )
    assert (found.pid, found.image, found.env) == (77, "quay.io/plugin:v1", ENV)


def test_a_container_that_never_started(run: Any, path: Path) -> None:
    """A Go runtime writes its zero time, long before 1970."""
    found = detail(
        run, path, None, message((1, "c1"), (5, -62135596800 * NS), (8, message((18, "plugin:v1"))))
    )
    assert (found.started_at, found.finished_at, found.pid, found.args, found.env) == (
        0.0,
        0.0,
        0,
        (),
        {},
    )
    assert (found.state, found.image) == (ContainerState.CREATED, "plugin:v1")


def test_requested_devices_if_the_runtime_shows_no_spec(run: Any, path: Path) -> None:
    config = {
        "command": ["nvidia-device-plugin"],
        "args": ["-v"],
        "envs": [
            {"key": "NVIDIA_MIG_MONITOR_DEVICES", "value": "all"},
            {"key": "TOKEN", "value": "x"},
            "junk",
            {},
        ],
    }
    found = detail(run, path, json.dumps({"config": config}))
    assert (found.args, found.env) == (
        ("nvidia-device-plugin", "-v"),
        {"NVIDIA_MIG_MONITOR_DEVICES": "all"},
    )


@pytest.mark.parametrize(
    "info",
    [
        "",
        "{",
        "[]",
        "null",
        "7",
        "[" * 100_000,
        '{"runtimeSpec": 7, "config": []}',
        '{"runtimeSpec": {"process": []}}',
        '{"runtimeSpec": {"process": {"args": {"0": "x"}, "env": "NVIDIA_X=1"}}}',
        '{"runtimeSpec": {"process": {"args": [7, null], "env": [7, {"NVIDIA_X": 1}]}}}',
        '{"config": {"envs": {"key": "NVIDIA_X"}, "command": "sh"}}',
        *(
            f'{{"pid": {pid}}}'
            for pid in ('"7"', "-1", "0", "1", "true", "1e3", "99999999999999999999", "[2]")
        ),
    ],
)
def test_hostile_info(run: Any, path: Path, info: str) -> None:
    found = detail(run, path, info)
    assert (found.pid, found.args, found.env) == (0, (), {})
    assert found.image == "registry.local/nvidia-device-plugin:v0.17.4"


def test_a_flood_is_cut(run: Any, path: Path) -> None:
    process = {"args": ["x" * 5000] * 300, "env": [f"NVIDIA_{n}={'y' * 9000}" for n in range(9)]}
    found = detail(run, path, json.dumps({"runtimeSpec": {"process": process}}))
    assert len(found.args) == cri.ARGS_LIMIT
    assert max(map(len, [*found.args, *found.env.values()])) <= cri.WORD_LIMIT


def test_a_file_that_is_too_large_is_not_read(run: Any, path: Path) -> None:
    assert detail(run, path, json.dumps({"pid": 7}) + " " * cri.INFO_LIMIT).pid == 0


def test_a_container_that_no_longer_exists(run: Any, path: Path) -> None:
    with (
        serving(path, CRI, {"ContainerStatus": grpc.StatusCode.NOT_FOUND}),
        pytest.raises(RpcError) as caught,
    ):
        run(cri.container(str(path), "c1", PATIENCE_S))
    assert caught.value.kind is ErrorKind.NOT_FOUND


@pytest.mark.parametrize("answer", [b"", grpc.StatusCode.NOT_FOUND])
def test_stop_and_remove(run: Any, path: Path, answer: Any) -> None:
    with serving(path, CRI, {"StopContainer": answer, "RemoveContainer": answer}) as server:
        run(cri.stop_container(str(path), "c1", 10, PATIENCE_S))
        run(cri.remove_container(str(path), "c1", PATIENCE_S))
    assert server.asked == [
        ("StopContainer", message((1, "c1"), (2, 10))),
        ("RemoveContainer", message((1, "c1"))),
    ]


@pytest.mark.parametrize(
    "code", ["UNKNOWN", "UNAVAILABLE", "DEADLINE_EXCEEDED", "PERMISSION_DENIED"]
)
def test_a_failed_stop_is_reported_and_not_repeated(run: Any, path: Path, code: str) -> None:
    with serving(path, CRI, {"StopContainer": grpc.StatusCode[code]}) as server:
        with pytest.raises(RpcError) as caught:
            run(cri.stop_container(str(path), "c1", 10, PATIENCE_S))
        assert caught.value.code == code
    assert len(server.asked) == 1


def test_a_stop_that_hangs(run: Any, path: Path) -> None:
    with serving(path, CRI, {"StopContainer": b""}) as server:
        server.answers["StopContainer"] = server.wait
        with pytest.raises(RpcError) as caught:
            run(cri.stop_container(str(path), "c1", 0, 0.2))
    assert caught.value.kind is ErrorKind.TIMED_OUT
