"""The errors of gpu-gate. Callers decide by the kind of an error, and show its sentence to people.

GateError
├── ActionFailed    an action on the node failed        → the engine retries with backoff
├── BundleError     an evidence bundle is unusable      → exit status of the verb (service/cli)
├── BusError        a D-Bus call has no result          → a refusal, or the outcome of an action
├── RpcError        a gRPC call has no result           → a refusal, or the outcome of an action
├── ProgramError    a program has no complete output    → a refusal, or a broken probe
└── ApiError        the Kubernetes API refused          → the barrier retries with backoff
"""

from __future__ import annotations

from enum import Enum


class ErrorKind(Enum):
    """What callers may decide by. Not a `str`, so that mypy rejects a comparison with a string."""

    FAILED = "failed"
    """the other side reported an error, or its answer cannot be parsed"""
    MISSING = "missing"
    """nothing serves this socket or this name"""
    NOT_FOUND = "not-found"
    """the server knows no such object"""
    BUSY = "busy"
    """the server limits the rate of requests"""
    UNIMPLEMENTED = "unimplemented"
    """the server does not know this call"""
    TIMED_OUT = "timed-out"
    NOT_PERMITTED = "not-permitted"
    NOT_ASKED = "not-asked"
    """gpu-gate itself lacked what it needs to ask: a connection, a thread, a file descriptor"""
    NOT_STARTED = "not-started"
    """the program could not be started"""
    EXITED = "exited"
    """the program ended without an answer"""
    MALFORMED = "malformed"
    """the program wrote something other than one line of text"""
    TOO_LARGE = "too-large"
    """the program wrote more than its limit"""


class GateError(Exception):
    """Something that gpu-gate could not do."""

    def __init__(self, sentence: str, kind: ErrorKind = ErrorKind.FAILED) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.kind = kind


class ActionFailed(GateError):
    """An action on the node failed. The sentence names a next step."""


class BundleError(GateError):
    """An evidence bundle cannot be read or written."""


class BusError(GateError):
    """A D-Bus call has no result."""

    def __init__(self, sentence: str, kind: ErrorKind, error_name: str = "") -> None:
        super().__init__(sentence, kind)
        self.error_name = error_name
        """the D-Bus error name that the peer sent; empty where the failure is on our side"""


class RpcError(GateError):
    """A gRPC call has no result."""

    def __init__(self, sentence: str, kind: ErrorKind, code: str = "") -> None:
        super().__init__(sentence, kind)
        self.code = code
        """gRPC's name of the status code; empty where the failure is on our side"""


class ProgramError(GateError):
    """A program did not give its output. The sentence holds the end of its stderr."""


class ApiError(GateError):
    """The Kubernetes API server refused a request, or gave no answer."""

    def __init__(
        self,
        sentence: str,
        code: int = 0,
        retry_after_s: float = 0.0,
    ) -> None:
        super().__init__(sentence)
        self.code = code
        """HTTP status; 0 where there was no answer"""
        self.retry_after_s = retry_after_s
        """from the Retry-After header; 0.0 where there was none"""
