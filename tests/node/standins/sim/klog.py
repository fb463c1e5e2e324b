"""Log lines in the form of Kubernetes' klog, and in that of Go's older standard logger."""

from __future__ import annotations

import datetime
import json
import os
import sys


class Klog:
    """``I1129 12:57:44.736752    3809 manager.go:514] "Checkpoint file written" checkpoint="…"``"""

    def __init__(self, out=None, pid: int | None = None, is_old_form: bool = False) -> None:
        self.out = out or sys.stderr
        self.pid = os.getpid() if pid is None else pid
        self.is_old_form = is_old_form
        """``2026/11/29 12:46:07 Loading NVML``"""

    def plain(self, where: str, text: str, level: str = "I") -> None:
        now = datetime.datetime.now(tz=datetime.timezone.utc)
        if self.is_old_form:
            line = f"{now:%Y/%m/%d %H:%M:%S} {text}"
        else:
            line = f"{level}{now:%m%d %H:%M:%S.%f} {self.pid:7d} {where}] {text}"
        # One write a line: threads must not mix theirs.
        self.out.write(line + "\n")
        self.out.flush()

    def say(self, where: str, sentence: str, level: str = "I", **fields) -> None:
        """The structured form; fields keep their order, ``err`` is where callers put it."""
        words = [json.dumps(sentence, ensure_ascii=False)]
        words += [
            f"{k}={json.dumps(v, ensure_ascii=False) if isinstance(v, str) else v}"
            for k, v in fields.items()
        ]
        self.plain(where, " ".join(words), level)
