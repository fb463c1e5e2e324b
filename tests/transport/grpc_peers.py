"""gRPC servers on a unix socket that answer with given bytes, and sockets that are no server.

Messages are written byte by byte here, with the numbers of the .proto files: the tables of
agent/transport/protos.py are what is tested.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc

POD_RESOURCES = "v1.PodResourcesLister"
CRI = "runtime.v1.RuntimeService"
Answer = bytes | grpc.StatusCode | Callable[[bytes], bytes]


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def message(*fields: tuple[int, Any]) -> bytes:
    """A protobuf message: (number, int | str | bytes | dict of strings); a number may come
    again."""
    out = b""
    for number, value in fields:
        if isinstance(value, dict):
            out += message(*((number, message((1, k), (2, v))) for k, v in value.items()))
        elif isinstance(value, int):
            out += varint(number << 3) + varint(value)
        else:
            data = value.encode() if isinstance(value, str) else value
            out += varint(number << 3 | 2) + varint(len(data)) + data
    return out


class Server:
    """Methods by name; every request is kept."""

    def __init__(self, path: Path, service: str, answers: dict[str, Answer]) -> None:
        self.path = path
        self.answers = answers
        self.asked: list[tuple[str, bytes]] = []
        self.authorities: list[str] = []
        self.release = threading.Event()
        self._server = grpc.server(
            futures.ThreadPoolExecutor(4),
            options=[("grpc.so_reuseport", 0), ("grpc.max_send_message_length", -1)],
        )
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(self._handler(name)) for name in answers
        }
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, handlers),)
        )
        self._server.add_insecure_port(f"unix:{path}")
        self._server.start()

    def _handler(self, name: str) -> Callable[[bytes, Any], bytes]:
        def handle(request: bytes, context: Any) -> bytes:
            self.asked.append((name, request))
            self.authorities.append(
                context._rpc_event.call_details.host.decode()
            )  # grpcio shows it nowhere else
            answer = self.answers[name]
            if isinstance(answer, grpc.StatusCode):
                context.abort(answer, "as the test wants it")
            return answer if isinstance(answer, bytes) else answer(request)

        return handle

    def wait(self, _request: bytes) -> bytes:
        """An answer that does not come before the test lets it."""
        self.release.wait(30)
        return b""

    def connections(self) -> int:
        """Connections that are open on the server's side."""
        lines = Path("/proc/net/unix").read_text().splitlines()
        return sum(line.endswith(f" {self.path}") and line.split()[5] == "03" for line in lines)

    def stop(self) -> None:
        self.release.set()
        self._server.stop(0).wait()


@contextlib.contextmanager
def serving(path: Path, service: str, answers: dict[str, Answer]) -> Iterator[Server]:
    server = Server(path, service, answers)
    try:
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def listening(path: Path, treat: Callable[[socket.socket], Any]) -> Iterator[None]:
    """A socket that accepts, does with each connection what `treat` does, and is no gRPC server."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        kept: list[socket.socket] = []

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    kept.append(listener.accept()[0])
                    treat(kept[-1])

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in kept:
                connection.close()
