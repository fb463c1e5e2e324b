"""An error of the kernel's as a refusal: what it tells of the node, and what only of us."""

from __future__ import annotations

import errno

from ..model.reading import Refusal, Why

_WHY = {
    errno.ENOENT: Why.MISSING,
    errno.ENOTDIR: Why.MISSING,
    errno.ENODEV: Why.MISSING,
    errno.ENXIO: Why.MISSING,
    errno.EACCES: Why.NOT_PERMITTED,
    errno.EPERM: Why.NOT_PERMITTED,
    # Nothing left for us to ask with; what was to be read may be there or not.
    errno.EMFILE: Why.NOT_ASKED,
    errno.ENFILE: Why.NOT_ASKED,
    errno.ENOMEM: Why.NOT_ASKED,
}


def refusal(exc: OSError | ValueError) -> Refusal:
    """ValueError is Python's word for a path that no file can have: with a null byte, or half of a
    surrogate pair."""
    if isinstance(exc, ValueError):
        return Refusal(Why.MISSING, f"no file can be called so: {exc}")
    return Refusal(
        _WHY.get(exc.errno or 0, Why.FAILED),
        f"{exc.strerror or exc}: {exc.filename or ''}".rstrip(": "),
    )
