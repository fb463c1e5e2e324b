"""gRPC against real servers on a socket, and against sockets that only look like one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from agent.model.errors import ErrorKind, RpcError
from agent.transport import protos
from agent.transport.grpc_unix import (
    MAX_MESSAGE_BYTES,
    AllocatableRow,
    Channel,
    get_allocatable,
    unary,
)

from .conftest import until
from .grpc_peers import POD_RESOURCES, Answer, Server, listening, message, serving

METHOD = "GetAllocatableResources"
ONE_GPU = message((1, message((1, "nvidia.com/gpu"), (2, "GPU-0"))))
PATIENCE_S = 60.0
NOBODY = 65534


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kubelet.sock"


def pod_resources(path: Path, answer: Answer) -> Any:
    return serving(path, POD_RESOURCES, {METHOD: answer})


async def ask(over: Any, within_s: float = PATIENCE_S) -> Any:
    types = protos.pod_resources()
    return await unary(
        over,
        f"/{POD_RESOURCES}/{METHOD}",
        types["AllocatableResourcesRequest"](),
        types["AllocatableResourcesResponse"],
        within_s,
    )


def refused(run: Any, path: Path, within_s: float = PATIENCE_S) -> RpcError:
    with pytest.raises(RpcError) as caught:
        run(get_allocatable(str(path), within_s))
    return caught.value


def test_an_answer(run: Any, path: Path) -> None:
    newer = message((2, 3), (9, "a field of a later kubelet"))
    with pod_resources(
        path, ONE_GPU + message((1, message((1, "x/y"), (2, "a"), (2, "b")))) + newer
    ) as server:
        assert run(get_allocatable(str(path), PATIENCE_S)) == [
            AllocatableRow("nvidia.com/gpu", ("GPU-0",)),
            AllocatableRow("x/y", ("a", "b")),
        ]
    assert server.asked == [(METHOD, b"")]
    assert server.authorities == ["localhost"]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("UNAVAILABLE", ErrorKind.MISSING),
        ("NOT_FOUND", ErrorKind.NOT_FOUND),
        ("RESOURCE_EXHAUSTED", ErrorKind.BUSY),
        ("UNIMPLEMENTED", ErrorKind.UNIMPLEMENTED),
        ("DEADLINE_EXCEEDED", ErrorKind.TIMED_OUT),
        ("PERMISSION_DENIED", ErrorKind.NOT_PERMITTED),
        ("UNAUTHENTICATED", ErrorKind.NOT_PERMITTED),
        ("INTERNAL", ErrorKind.FAILED),
        ("UNKNOWN", ErrorKind.FAILED),
        ("FAILED_PRECONDITION", ErrorKind.FAILED),
    ],
)
def test_the_kind_of_each_status_code(run: Any, path: Path, code: str, kind: ErrorKind) -> None:
    with pod_resources(path, grpc.StatusCode[code]) as server:
        error = refused(run, path)
    assert (error.kind, error.code) == (kind, code)
    assert METHOD in error.sentence
    assert len(server.asked) == 1, "nothing is tried twice"


def test_a_missing_method(run: Any, path: Path) -> None:
    with serving(path, POD_RESOURCES, {}):
        assert refused(run, path).kind is ErrorKind.UNIMPLEMENTED


def test_bytes_that_are_no_message(run: Any, path: Path) -> None:
    with pod_resources(path, b"\xff\xff\xff\xff"):
        error = refused(run, path)
    assert error.kind is ErrorKind.FAILED
    assert "4 bytes of the reply are not a valid AllocatableResourcesResponse" in error.sentence


def test_text_that_is_no_utf8(run: Any, path: Path) -> None:
    with pod_resources(path, message((1, message((1, b"\xff\xfe"))))):
        assert refused(run, path).kind is ErrorKind.FAILED


def test_a_large_answer_and_one_that_is_too_large(run: Any, path: Path) -> None:
    large = message((1, message((1, "x"), (2, "y" * (5 << 20)))))
    with pod_resources(path, large):  # 4 MiB is gRPC's default
        assert len(run(get_allocatable(str(path), PATIENCE_S))[0].ids[0]) == 5 << 20
    path.unlink(missing_ok=True)
    with pod_resources(path, b"\0" * (MAX_MESSAGE_BYTES + 1)):
        error = refused(run, path)
    assert (error.kind, error.code) == (ErrorKind.FAILED, "RESOURCE_EXHAUSTED"), (
        "our limit is not the kubelet's"
    )


def test_a_slow_server(run: Any, path: Path) -> None:
    with pod_resources(path, b"") as server:
        server.answers[METHOD] = server.wait
        assert refused(run, path, 0.2).kind is ErrorKind.TIMED_OUT


SETTINGS = b"\0\0\0\4\0\0\0\0\0"
"""The frame with which an HTTP/2 server begins (RFC 9113, 6.5)."""


def nothing(_: socket.socket) -> None:
    """Accept, and never send a byte."""


def garbage(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n" + b"\xff" * 64)


def half_an_answer(connection: socket.socket) -> None:
    """HTTP/2 settings, and then a frame header that announces more than ever comes."""
    connection.recv(24)
    connection.sendall(SETTINGS + b"\0\x10\0\1\4\0\0\0\1" + b"\x88")
    connection.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    ("treat", "kinds"),
    [
        (nothing, {ErrorKind.TIMED_OUT, ErrorKind.MISSING}),
        (garbage, {ErrorKind.MISSING, ErrorKind.FAILED, ErrorKind.TIMED_OUT}),
        (half_an_answer, {ErrorKind.MISSING, ErrorKind.FAILED, ErrorKind.TIMED_OUT}),
        (socket.socket.close, {ErrorKind.MISSING, ErrorKind.FAILED, ErrorKind.TIMED_OUT}),
    ],
)
def test_a_socket_that_only_looks_like_a_server(
    run: Any, path: Path, treat: Any, kinds: set[ErrorKind]
) -> None:
    with listening(path, treat):
        assert refused(run, path, 0.5).kind in kinds


def test_no_socket(run: Any, path: Path) -> None:
    assert refused(run, path).kind is ErrorKind.MISSING


def test_a_plain_file_and_a_dead_socket(run: Any, path: Path) -> None:
    path.write_text("not a socket")
    assert refused(run, path).kind is ErrorKind.MISSING
    path.unlink()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert refused(run, path).kind is ErrorKind.MISSING


def test_a_path_that_is_too_long(run: Any, path: Path) -> None:
    assert refused(run, path.parent / ("s" * 120)).kind in {ErrorKind.MISSING, ErrorKind.FAILED}


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """Every thread of this process: glibc changes them all."""
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.skipif(os.geteuid() != 0, reason="wants root, to be somebody else for a moment")
def test_a_socket_that_is_closed_to_us(run: Any, path: Path) -> None:
    with pod_resources(path, ONE_GPU):
        path.chmod(0)
        with as_nobody():
            # grpcio 1.41 does not say why a connection failed.
            assert refused(run, path).kind == (
                ErrorKind.MISSING if grpc.__version__ < "1.5" else ErrorKind.NOT_PERMITTED
            )


def test_one_connection_for_one_snapshot(run: Any, path: Path) -> None:
    async def look(server: Server) -> None:
        with Channel(str(path)) as ch:
            for _ in range(3):
                await ask(ch)
                assert server.connections() == 1
        await until(lambda: server.connections() == 0)

    with pod_resources(path, ONE_GPU) as server:
        run(look(server))
    assert len(server.asked) == 3


def test_a_server_that_returns_is_queried_at_once(run: Any, path: Path) -> None:
    """No back-off is inherited from the channels before."""

    async def look() -> None:
        for _ in range(3):
            with pytest.raises(RpcError):
                await ask(str(path))
        with pod_resources(path, ONE_GPU):
            assert len((await ask(str(path))).devices) == 1

    run(look())


def test_a_channel_that_was_closed(run: Any, path: Path) -> None:
    async def late() -> None:
        ch = Channel(str(path))
        ch.close()
        with pytest.raises(RpcError) as caught:
            await ask(ch)
        assert caught.value.kind is ErrorKind.FAILED

    run(late())


def test_a_cancelled_wait_leaves_nothing_behind(run: Any, path: Path) -> None:
    asked, gone = threading.Event(), threading.Event()

    def until_gone(connection: socket.socket) -> None:
        connection.sendall(SETTINGS)
        while connection.recv(1 << 16):
            asked.set()
        gone.set()

    async def look() -> None:
        waiting = asyncio.ensure_future(ask(str(path), 10 * PATIENCE_S))
        await until(asked.is_set)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await until(gone.is_set)

    with listening(path, until_gone):
        began = time.monotonic()
        run(look())  # asyncio.run waits for the pool's threads
        assert time.monotonic() - began < 2 * PATIENCE_S, (
            "closing the channel ends the call in its thread"
        )


def test_a_pool_without_a_free_thread(
    run: Any, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from concurrent.futures import ThreadPoolExecutor

    release = threading.Event()

    async def look() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        blocked = loop.run_in_executor(None, release.wait, 30)
        with pytest.raises(RpcError) as caught:
            await ask(str(path), 0.1)
        assert caught.value.kind is ErrorKind.TIMED_OUT
        release.set()
        await blocked

    monkeypatch.setattr("agent.transport.grpc_unix.BACKSTOP_S", 0.1)
    run(look())


def test_the_tables_equal_what_protobuf_reads() -> None:
    types = protos.cri()
    status = types["ContainerStatus"](labels={"a": "b"}, state=1)
    assert status.SerializeToString() == message((3, 1), (12, {"a": "b"}))
    assert types["PodSandbox"].FromString(message((3, 7))).state == 7, (
        "a state that we do not know yet"
    )
    assert set(types) & set(protos.pod_resources()) == set()


def test_a_call_leaves_no_thread(run: Any, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer, not a crash of the agent; and a failed request is not sent later, when a thread is
    available."""

    def none_left(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def story() -> RpcError:
        with Channel(str(path)) as over:
            with monkeypatch.context() as nobody, pytest.raises(RpcError) as caught:
                nobody.setattr(threading.Thread, "start", none_left)
                await ask(over)
            await asyncio.get_running_loop().run_in_executor(None, time.monotonic)
        return caught.value

    with pod_resources(path, ONE_GPU) as server:
        error = run(story())
        assert (error.kind, server.asked) == (ErrorKind.NOT_ASKED, [])
    assert "can't start new thread" in error.sentence
