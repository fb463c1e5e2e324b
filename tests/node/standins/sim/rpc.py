"""gRPC over unix sockets, without generated stubs."""

from __future__ import annotations

from concurrent import futures
from pathlib import Path

import grpc

# Rust and Java servers reject the authority that newer gRPC libraries make out of a unix path.
_OPTIONS = (("grpc.default_authority", "localhost"), ("grpc.max_receive_message_length", 16 << 20))


def open_channel(socket: str | Path) -> grpc.Channel:
    return grpc.insecure_channel(f"unix://{socket}", options=_OPTIONS)


def call(channel: grpc.Channel, method: str, request, answer_type, timeout_s: float | None = 5.0):
    """One unary call; raises grpc.RpcError."""
    make = channel.unary_unary(
        method,
        request_serializer=lambda m: m.SerializeToString(),
        response_deserializer=answer_type.FromString,
    )
    return make(request, timeout=timeout_s)


def stream(channel: grpc.Channel, method: str, request, answer_type):
    make = channel.unary_stream(
        method,
        request_serializer=lambda m: m.SerializeToString(),
        response_deserializer=answer_type.FromString,
    )
    return make(request)


def to_bytes(answer) -> bytes:
    """Handlers may answer with a message, or with bytes where a test wants garbage on the wire."""
    return answer if isinstance(answer, bytes) else answer.SerializeToString()


def unary(handler, request_type) -> grpc.RpcMethodHandler:
    return grpc.unary_unary_rpc_method_handler(handler, request_type.FromString, to_bytes)


def streaming(handler, request_type) -> grpc.RpcMethodHandler:
    return grpc.unary_stream_rpc_method_handler(handler, request_type.FromString, to_bytes)


def serve(
    socket: str | Path, service: str, methods: dict[str, grpc.RpcMethodHandler], threads: int = 16
) -> grpc.Server:
    """Binds and starts; the socket exists when this returns."""
    server = grpc.server(futures.ThreadPoolExecutor(threads), options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
    server.add_insecure_port(f"unix://{socket}")
    server.start()
    return server
