"""This machine as the tests' Node: the same interface as in tests/node, from inside the machine."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from machine import PATH, Command, shown
from nspawn import Node, NodeError

RESULTS = "/dev/ttyS1"
ENVIRONMENT = {"PATH": PATH, "HOME": "/root", "LANG": "C.UTF-8", "TERM": "dumb"}


class Here(Node):
    """No power switch, no disk of its own: the machine that this program runs on."""

    def __init__(self) -> None:
        self.name = os.uname().nodename

    def run(
        self,
        command: Command,
        *,
        check: bool = True,
        timeout: float = 120.0,
        input: str | bytes | None = None,
        env: dict[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        words = ["sh", "-ec", command] if isinstance(command, str) else list(command)
        data = input.encode() if isinstance(input, str) else input
        done = subprocess.run(
            words,
            input=data or b"",
            capture_output=True,
            timeout=timeout,
            check=False,
            env={**ENVIRONMENT, **(env or {})},
        )
        out, err = (stream.decode(errors="replace") for stream in (done.stdout, done.stderr))
        if check and done.returncode:
            raise NodeError(f"{shown(command)} ended with {done.returncode}.\n{out}{err}")
        return subprocess.CompletedProcess(words, done.returncode, out, err)

    @contextlib.contextmanager
    def spawn(self, command: Command, **options: Any) -> Iterator[subprocess.Popen[str]]:
        words = ["sh", "-ec", command] if isinstance(command, str) else list(command)
        with subprocess.Popen(
            words, text=True, env=ENVIRONMENT, stdout=subprocess.PIPE, **options
        ) as proc:
            try:
                yield proc
            finally:
                proc.kill()


def report(name: str, **saw: Any) -> None:
    """One line to the machine's outside."""
    with open(RESULTS, "w", encoding="ascii") as out:
        out.write(json.dumps({"check": name, **saw}) + "\n")


def check(what: Callable[[Here], dict[str, Any]]) -> None:
    """Run one check and report its result or failure. The next one runs in any case."""
    name, began = what.__name__, time.monotonic()
    print(f"{name} …", flush=True)
    try:
        saw = what(Here())
    except Exception:
        report(
            name,
            ok=False,
            failed=traceback.format_exc()[-3000:],
            took_s=round(time.monotonic() - began, 1),
        )
    else:
        report(name, ok=True, saw=saw, took_s=round(time.monotonic() - began, 1))
