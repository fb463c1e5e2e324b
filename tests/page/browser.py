"""A headless Chromium, driven by the DevTools protocol over a pipe: JSON messages that end with
NUL.

The words are those of chromium 150 (chrome://inspect, devtools-protocol): Target, Page, Runtime,
Log, Network, Emulation.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ANSWER_S = 60.0
OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--remote-debugging-pipe",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
)


class BrowserError(Exception):
    """The browser did not execute a command."""


class Browser:
    """One page."""

    def __init__(self, to: int, answers: int) -> None:
        self._to, self._answers = to, answers
        self._number = 0
        self._read = b""
        self._session = ""
        self.complaints: list[str] = []
        "console messages, exceptions, and violations of the policy"
        self.asked: set[str] = set()
        "every address that got a request"
        target = self.tell("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.tell("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self.tell(f"{domain}.enable")

    def tell(self, method: str, **how: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": how}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next(ANSWER_S)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error']}")
                return dict(answer["result"])

    def _next(self, within_s: float) -> dict[str, Any]:
        ends = time.monotonic() + within_s
        while b"\0" not in self._read:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, ends - time.monotonic()))
            part = os.read(self._answers, 1 << 20) if ready else b""
            if not part:
                raise BrowserError("the browser does not answer")
            self._read += part
        line, _, self._read = self._read.partition(b"\0")
        message = dict(json.loads(line))
        self._hear(message.get("method", ""), message.get("params", {}))
        return message

    def _hear(self, method: str, said: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(said["exceptionDetails"])[:500])
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append(json.dumps(said["args"])[:500])
        elif method == "Log.entryAdded":
            self.complaints.append(f"{said['entry']['source']}: {said['entry']['text']}"[:500])
        elif method == "Network.requestWillBeSent":
            self.asked.add(said["request"]["url"])
        elif method == "Page.javascriptDialogOpening":
            self.complaints.append(f"dialog: {said['message']}")

    def go(self, url: str) -> None:
        self.tell("Page.navigate", url=url)

    def value(self, expression: str) -> Any:
        said = self.tell(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in said:
            raise BrowserError(f"{expression}: {said['exceptionDetails']}")
        return said["result"].get("value")

    def wait(self, expression: str, within_s: float = 90.0) -> Any:
        """Its value, once there is one; while a page loads there may be none."""

        def asked() -> Any:
            with contextlib.suppress(BrowserError):
                return self.value(expression)

        ends = time.monotonic() + within_s
        while not (found := asked()):
            if time.monotonic() > ends:
                raise BrowserError(
                    f"not within {within_s:.0f} s: {expression}; the page: {self.text()[:2000]}; "
                    f"{self.complaints}"
                )
            time.sleep(0.1)
        return found

    def text(self) -> str:
        return str(self.value("document.body.innerText"))

    def look(
        self, width: int, height: int, theme: str = "light", is_phone: bool = False, **media: str
    ) -> None:
        self.tell(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if is_phone else 1,
            mobile=is_phone,
        )
        features = [
            {"name": "prefers-color-scheme", "value": theme},
            *({"name": name.replace("_", "-"), "value": value} for name, value in media.items()),
        ]
        self.tell("Emulation.setEmulatedMedia", features=features)

    def press(self, key: str) -> None:
        code = {"Enter": 13, "Tab": 9, "ArrowRight": 39, "ArrowLeft": 37}[key]
        more = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.tell(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
                **more,
            )

    def picture(self, path: Path) -> None:
        shot = self.tell("Page.captureScreenshot", captureBeyondViewport=True, format="png")
        path.write_bytes(base64.b64decode(shot["data"]))


@contextlib.contextmanager
def browser(home: Path) -> Iterator[Browser]:
    program = shutil.which("chromium")
    if program is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(
            "chromium is missing: tests/tools/setup node test"
        )
    theirs, to = os.pipe()
    answers, mine = os.pipe()
    argv = [program, *OPTIONS, f"--user-data-dir={home}"]
    # The browser reads from 3 and writes to 4.
    with subprocess.Popen(
        ["bash", "-c", f'exec "$@" 3<&{theirs} 4>&{mine}', "-", *argv],
        pass_fds=(theirs, mine),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        os.close(theirs)
        os.close(mine)
        try:
            yield Browser(to, answers)
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
            os.close(to)
            os.close(answers)
