"""A real browser for tests: headless Chromium, driven through its debugging pipe without further packages."""

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

from tests.conftest import HANG

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
)


class Browser:
    """One page of a running Chromium, and everything it complained about."""

    def __init__(self, process: "subprocess.Popen[bytes]", to_browser: int, from_browser: int) -> None:
        self.process, self._out, self._in = process, to_browser, from_browser
        self._buffer, self._number, self._session = b"", 0, ""
        self.complaints: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._attach(target)

    def _attach(self, target: str) -> None:
        """Let all that follows be of this page or frame."""
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    @contextlib.contextmanager
    def frame(self) -> Iterator[None]:
        """Within this context everything happens in the page's one sandboxed frame, which is a process of its own."""
        page = self._session
        [frame] = [one for one in self.call("Target.getTargets")["targetInfos"] if one["type"] == "iframe"]
        self._attach(frame["targetId"])
        try:
            yield
        finally:
            self._session = page

    def call(self, method: str, **parameters: Any) -> Any:
        """Send one command of the DevTools protocol and wait for its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self._notice(answer)

    def _read(self) -> dict[str, Any]:
        deadline = time.monotonic() + HANG
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            data = os.read(self._in, 1 << 20) if ready else b""
            assert data, "the browser ended or does not answer"
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer

    def _notice(self, event: dict[str, Any]) -> None:
        method, found = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.complaints.append(str(found["exceptionDetails"]))
        elif method == "Log.entryAdded":
            self.complaints.append(found["entry"]["text"])
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append(str(found["args"]))
        elif method == "Network.requestWillBeSent" and not found["request"]["url"].startswith(("file:", "data:")):
            self.complaints.append(f"request to {found['request']['url']}")

    def open(self, page: Path, fragment: str = "") -> None:
        """Load a file afresh and wait until its scripts have run."""
        self.complaints.clear()
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=f"{page.resolve().as_uri()}#{fragment}")
        self.wait("document.readyState === 'complete' && location.protocol === 'file:'")

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until a JavaScript expression is true."""
        deadline = time.monotonic() + HANG
        while not self.run(condition):
            assert time.monotonic() < deadline, f"never came true: {condition}"
            time.sleep(0.02)

    def picture(self) -> bytes:
        """The PNG of what the window shows."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])


@contextlib.contextmanager
def chromium(profile: Path) -> Iterator[Browser]:
    """Start the machine's Chromium with a fresh profile; skips the test where there is none."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(f"no browser on this machine (looked for {', '.join(NAMES)}); on Debian: apt-get install chromium")
    to_child, from_child = os.pipe(), os.pipe()
    ends = (to_child[0], from_child[1])
    # Chromium reads commands from descriptor 3 and answers on 4.
    command = f'exec "$0" "$@" 3<&{ends[0]} 4>&{ends[1]}'
    process = subprocess.Popen(
        [
            "bash",
            "-c",
            command,
            program,
            *FLAGS,
            f"--user-data-dir={profile}",
            "--window-size=1320,1000",
            "about:blank",
        ],
        pass_fds=ends,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    for end in ends:
        os.close(end)
    try:
        yield Browser(process, to_child[1], from_child[0])
    finally:
        process.terminate()
        try:
            process.wait(HANG)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(to_child[1])
        os.close(from_child[0])
