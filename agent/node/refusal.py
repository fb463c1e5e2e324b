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
}


def refusal(exc: OSError) -> Refusal:
    return Refusal(_WHY.get(exc.errno or 0, Why.FAILED), f"{exc.strerror}: {exc.filename or ''}".rstrip(": "))
