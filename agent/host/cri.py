"""The container runtime's API (CRI): what runs, one container in detail, and the two calls that end
a container.

The second half converts messages to model values. It is pure, so that tests feed it the output of
crictl.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from typing import Any

from ..model.access import Device
from ..model.errors import ErrorKind, RpcError
from ..model.runtime import Container, ContainerDetail, ContainerState, Runtime, Sandbox
from ..transport.grpc_unix import Channel, unary
from ..transport.protos import cri
from .evidence.redact import KEPT_ENV

_STATES = {0: ContainerState.CREATED, 1: ContainerState.RUNNING, 2: ContainerState.EXITED}
_READY = 0

INFO_LIMIT = 4 << 20
ARGS_LIMIT, WORD_LIMIT = 256, 4096
KEPT_NOTES = (
    "kubernetes.io/config.source",
    "kubectl.kubernetes.io/last-applied-configuration",
    "cdi.k8s.io/",
)
"""Prefixes of the annotations that are read. A pod may have 256 KiB of others, with secrets among
them."""
NOTE_LIMIT = 16 << 10
PID_MAX = 1 << 22
"""include/linux/threads.h, PID_MAX_LIMIT."""


async def runtime(socket: str, within_s: float) -> Runtime:
    """Every sandbox and container, over one channel, within `within_s` seconds in all. Raises
    RpcError."""
    ends_at = _now() + within_s
    with Channel(socket) as ch:
        sandboxes = await _ask(ch, "ListPodSandbox", {}, ends_at)
        containers = await _ask(ch, "ListContainers", {}, ends_at)
    return Runtime(
        tuple(sandbox_of(m) for m in sandboxes.items),
        tuple(container_of(m) for m in containers.containers),
    )


async def container(socket: str, container_id: str, within_s: float) -> ContainerDetail:
    """One container; Raises RpcError, of kind NOT_FOUND where there is none of this id."""
    with Channel(socket) as ch:
        return await _detail(ch, container_id, _now() + within_s)


async def containers(
    socket: str, ids: Sequence[str], within_s: float
) -> tuple[ContainerDetail, ...]:
    """As many of these containers as the runtime returns within `within_s` seconds, over one
    channel, without those that are gone. Raises RpcError if there is not even one."""
    ends_at = _now() + within_s
    found: list[ContainerDetail] = []
    with Channel(socket) as ch:
        for container_id in ids:
            if _now() >= ends_at and found:
                break
            try:
                found.append(await _detail(ch, container_id, ends_at))
            except RpcError as exc:
                if exc.kind is ErrorKind.NOT_FOUND:
                    continue
                if found:
                    break
                raise
    return tuple(found)


async def stop_container(socket: str, container_id: str, grace_s: int, within_s: float) -> None:
    """Send SIGTERM, and SIGKILL after `grace_s` seconds. A container that is gone is a success.
    Raises RpcError.

    `within_s` must be longer than the grace: containerd stops stopping when its caller hangs up.
    """
    await _end(
        socket, "StopContainer", {"container_id": container_id, "timeout": grace_s}, within_s
    )


async def remove_container(socket: str, container_id: str, within_s: float) -> None:
    """Remove a container. One that is gone is a success. Raises RpcError."""
    await _end(socket, "RemoveContainer", {"container_id": container_id}, within_s)


async def _end(socket: str, method: str, fields: dict[str, Any], within_s: float) -> None:
    with Channel(socket) as ch:
        try:
            await _ask(ch, method, fields, _now() + within_s)
        except RpcError as exc:
            if exc.kind is not ErrorKind.NOT_FOUND:
                raise


async def _detail(ch: Channel, container_id: str, ends_at: float) -> ContainerDetail:
    answer = await _ask(
        ch, "ContainerStatus", {"container_id": container_id, "verbose": True}, ends_at
    )
    return detail_of(answer.status, info_of(answer.info))


async def _ask(ch: Channel, method: str, fields: dict[str, Any], ends_at: float) -> Any:
    types = cri()
    request = types[f"{method}Request"](**fields)
    return await unary(
        ch,
        f"/runtime.v1.RuntimeService/{method}",
        request,
        types[f"{method}Response"],
        ends_at - _now(),
    )


def _now() -> float:
    return asyncio.get_running_loop().time()


def sandbox_of(message: Any) -> Sandbox:
    """Of a runtime.v1 PodSandbox."""
    meta = message.metadata
    return Sandbox(
        message.id,
        meta.name,
        meta.namespace,
        meta.uid,
        meta.attempt,
        message.state == _READY,
        _seconds(message.created_at),
        _map(message.labels),
        _notes(message.annotations),
    )


def container_of(message: Any) -> Container:
    """Of a runtime.v1 Container."""
    meta, labels = message.metadata, _map(message.labels)
    name = meta.name or labels.get("io.kubernetes.container.name", "")
    image = message.image.image
    if not image or image.startswith("sha256:"):
        # user_specified_image is what the pod's author wrote (kubelet 1.29 and later).
        image = message.image.user_specified_image or image or message.image_ref
    return Container(
        message.id,
        message.pod_sandbox_id,
        name,
        meta.attempt,
        image,
        _STATES.get(message.state, ContainerState.UNKNOWN),
        _seconds(message.created_at),
        labels,
    )


def detail_of(status: Any, info: dict[str, Any]) -> ContainerDetail:
    """Of a runtime.v1 ContainerStatus and the object in its verbose info. What the latter lacks
    stays empty."""
    return ContainerDetail(
        id=status.id,
        state=_STATES.get(status.state, ContainerState.UNKNOWN),
        started_at=_seconds(status.started_at),
        finished_at=_seconds(status.finished_at),
        exit_code=status.exit_code,
        reason=status.reason,
        image=_image(status, info),
        log_path=status.log_path,
        pid=_pid(info.get("pid")),
        args=_args(info),
        env={k: v for k, v in _env(info) if k.startswith(KEPT_ENV)},
        mounts=tuple(
            mount.host_path[:WORD_LIMIT] for mount in status.mounts[:ARGS_LIMIT] if mount.host_path
        ),
        device_rules=_device_rules(info),
    )


def info_of(info: Any) -> dict[str, Any]:
    """The JSON object that containerd and CRI-O put under the key "info"; empty where there is
    anything else."""
    text = info.get("info", "")
    try:
        found = json.loads(text) if len(text) <= INFO_LIMIT else None
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _map(found: Any) -> dict[str, str]:
    """Sorted, because protobuf's maps have no order, and two tapes of one answer should be
    equal."""
    return dict(sorted(found.items()))


def _notes(found: Any) -> dict[str, str]:
    return {
        k: v for k, v in _map(found).items() if k.startswith(KEPT_NOTES) and len(v) <= NOTE_LIMIT
    }


def _seconds(nanoseconds: int) -> float:
    """0.0 where it has not happened: CRI then has 0, or a time before 1970 (Go's zero time)."""
    return max(nanoseconds, 0) / 1_000_000_000


def _image(status: Any, info: dict[str, Any]) -> str:
    """The name with its tag. Only the spec's annotations still have a name that was moved to
    another image since."""
    named = str(status.image.image)
    if named and not named.startswith("sha256:"):
        return named
    notes = _object(_object(info, "runtimeSpec"), "annotations")
    for key in (
        "io.kubernetes.cri.image-name",
        "io.kubernetes.cri-o.ImageName",
        "io.kubernetes.cri-o.Image",
    ):
        if isinstance(notes.get(key), str) and notes[key]:
            return str(notes[key])[:WORD_LIMIT]
    return str(status.image.user_specified_image or named or status.image_ref)


def _pid(written: Any) -> int:
    # Never 1 or less: a signal to those reaches the whole node.
    usable = isinstance(written, int) and not isinstance(written, bool) and 1 < written <= PID_MAX
    return int(written) if usable else 0


def _args(info: dict[str, Any]) -> tuple[str, ...]:
    """The arguments that were executed; without a spec, those that the pod's author wrote."""
    spec = _words(_object(_object(info, "runtimeSpec"), "process").get("args"))
    config = _object(info, "config")
    return spec or _words(config.get("command")) + _words(config.get("args"))


def _env(info: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for word in _words(
        _object(_object(info, "runtimeSpec"), "process").get("env"), limit=8 * ARGS_LIMIT
    ):
        key, _, value = word.partition("=")
        yield key, value
    if "runtimeSpec" in info:
        return
    envs = _object(info, "config").get("envs")
    for pair in envs if isinstance(envs, list) else ():
        if isinstance(pair, dict):
            yield str(pair.get("key", "")), str(pair.get("value", ""))[:WORD_LIMIT]


def _device_rules(info: dict[str, Any]) -> tuple[tuple[Device, str], ...]:
    """The allow rules in linux.resources.devices of the OCI spec. A rule without a type stands for
    both types, one without a number for every number."""
    found: list[tuple[Device, str]] = []
    rules = _object(_object(_object(info, "runtimeSpec"), "linux"), "resources").get("devices")
    for rule in rules[:ARGS_LIMIT] if isinstance(rules, list) else ():
        if not isinstance(rule, dict) or rule.get("allow") is not True:
            continue
        major, minor = (rule.get(key, -1) for key in ("major", "minor"))
        rights = "".join(r for r in "rwm" if r in str(rule.get("access", "rwm")))
        if (
            type(major) is not int
            or type(minor) is not int
            or not -1 <= major < 1 << 12
            or not -1 <= minor < 1 << 20
        ):
            continue
        kinds = {"c": "c", "u": "c", "b": "b"}.get(str(rule.get("type", "a")), "cb")
        found += [(Device(kind, major, minor), rights) for kind in kinds]
    return tuple(found)


def _object(parent: dict[str, Any], key: str) -> dict[str, Any]:
    found = parent.get(key)
    return found if isinstance(found, dict) else {}


def _words(found: Any, limit: int = ARGS_LIMIT) -> tuple[str, ...]:
    if not isinstance(found, list):
        return ()
    return tuple(word[:WORD_LIMIT] for word in found[:limit] if isinstance(word, str))
