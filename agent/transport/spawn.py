"""How every program is started. Apart from process.py, because the first probe of a boot starts
before asyncio is imported.

There is no fork: os.fork and preexec_fn hang for ever beside an open gRPC channel (grpcio 1.51.1).
Popen without preexec_fn uses vfork and exec.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence


def spawn(
    argv: Sequence[str], env: Mapping[str, str] | None = None, holds_stdin: bool = True
) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own and in "/". Raises OSError or ValueError."""
    return subprocess.Popen(
        list(argv),
        env=env,
        cwd="/",
        bufsize=0,
        start_new_session=True,
        stdin=subprocess.PIPE if holds_stdin else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
