"""`gpu-gate run`: the agent, as gpu-gate.service starts it."""

from __future__ import annotations

import sys

from .. import config as configuration
from ..boot import first_probe, keep_quiet


def run(config: configuration.Config, verbose: bool) -> int:
    """Run the agent until SIGTERM."""
    if keep_quiet(config.settings):
        config = configuration.load()  # a reload may have been requested meanwhile
    first = first_probe(config.settings)
    # asyncio imports OpenSSL where it is installed, 6 MiB, and works without it: the agent uses
    # no TLS, and Python has hashes of its own.
    for unused in ("ssl", "_hashlib"):
        sys.modules.setdefault(unused, None)  # type: ignore[arg-type]
    import asyncio

    from .. import log
    from ..daemon import Daemon

    log.set_up(verbose)

    async def agent() -> None:
        await Daemon(config, first).run()

    asyncio.run(agent())
    return 0
