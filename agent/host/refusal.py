"""Exceptions as refusals: which of them are facts about the node, and which are only about us."""

from __future__ import annotations

import errno

from ..model.errors import BusError, ErrorKind, RpcError
from ..model.reading import Refusal, Why

_BY_ERRNO = {
    errno.ENOENT: Why.MISSING,
    errno.ENOTDIR: Why.MISSING,
    errno.ENODEV: Why.MISSING,
    errno.ENXIO: Why.MISSING,
    errno.EACCES: Why.NOT_PERMITTED,
    errno.EPERM: Why.NOT_PERMITTED,
    # We ran out of file descriptors or memory: whether the file exists is unknown.
    errno.EMFILE: Why.NOT_ASKED,
    errno.ENFILE: Why.NOT_ASKED,
    errno.ENOMEM: Why.NOT_ASKED,
}
_BY_KIND = {
    ErrorKind.MISSING: Why.MISSING,
    ErrorKind.NOT_FOUND: Why.MISSING,
    ErrorKind.UNIMPLEMENTED: Why.MISSING,
    ErrorKind.TIMED_OUT: Why.TIMED_OUT,
    ErrorKind.NOT_PERMITTED: Why.NOT_PERMITTED,
    ErrorKind.NOT_ASKED: Why.NOT_ASKED,
}


def refusal(exc: OSError | ValueError | BusError | RpcError) -> Refusal:
    """Python raises ValueError for a path that no file can have: one with a null byte, or with half
    of a surrogate pair."""
    if isinstance(exc, BusError) and exc.kind is ErrorKind.MISSING:
        # A bus that is gone is a fact about our connection, not about the node's units.
        return Refusal(Why.FAILED, exc.sentence)
    if isinstance(exc, (BusError, RpcError)):
        return Refusal(_BY_KIND.get(exc.kind, Why.FAILED), exc.sentence)
    if isinstance(exc, ValueError):
        return Refusal(Why.MISSING, f"not a valid file name: {exc}")
    return Refusal(
        _BY_ERRNO.get(exc.errno or 0, Why.FAILED),
        f"{exc.strerror or exc}: {exc.filename or ''}".rstrip(": "),
    )
