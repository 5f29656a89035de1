"""A headless Chromium on a leash: the DevTools protocol over a pair of pipes."""

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any, Self

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--no-first-run",
    "--remote-debugging-pipe",
)

# Chromium reads commands from descriptor 3 and answers on 4: this puts them there.
LEASH = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD_CLOEXEC, 10) for end in sys.argv[1:3]]
for end, place in zip(ends, (3, 4)):
    os.dup2(end, place)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """One page in a browser of its own.

    Attributes:
        problems: console errors, uncaught exceptions and whatever the browser complained about.
        requests: every address that was asked for.
    """

    def __init__(self) -> None:
        path = shutil.which("chromium")
        if path is None:
            raise RuntimeError("these tests need a browser: apt-get install chromium")
        self.problems: list[str] = []
        self.requests: list[str] = []
        self._session: str | None = None
        self._script = True
        self._loaded = False
        self._calls = 0
        self._unread = b""
        self._profile = tempfile.mkdtemp(prefix="pushsum-browser-")
        command_in, self._send = os.pipe()
        self._receive, answer_out = os.pipe()
        leash = [sys.executable, "-c", LEASH, str(command_in), str(answer_out)]
        self._process = subprocess.Popen(
            [*leash, path, *FLAGS, f"--user-data-dir={self._profile}"],
            pass_fds=(command_in, answer_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(command_in)
        os.close(answer_out)
        try:
            page = self.call("Target.createTarget", url="about:blank")["targetId"]
            attached = self.call("Target.attachToTarget", targetId=page, flatten=True)
            self._session = attached["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.call(f"{domain}.enable")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._send)
        os.close(self._receive)
        shutil.rmtree(self._profile, ignore_errors=True)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command and its answer; events that arrive meanwhile are noted."""
        self._calls += 1
        message: dict[str, Any] = {"id": self._calls, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._calls:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result

    def open(self, path: Path, width: int = 1400, height: int = 900, script: bool = True) -> None:
        """Load a local page in a window of this size."""
        self.resize(width, height)
        self._script = script
        self.call("Emulation.setScriptExecutionDisabled", value=not script)
        self.problems.clear()
        self.requests.clear()
        self._loaded = False
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not self._loaded:
            self._next()

    def resize(self, width: int, height: int = 900) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, after two frames have been drawn.

        It can be asked for on a page whose own scripts are switched off, too.
        """
        code = expression
        if self._script:
            frames = "await new Promise(f => requestAnimationFrame(() => requestAnimationFrame(f)))"
            code = f"(async () => {{ {frames}; return {expression}; }})()"
        answer = self.call(
            "Runtime.evaluate", expression=code, awaitPromise=self._script, returnByValue=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """A key goes down and up again."""
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else None)
        code = {"Enter": 13, "ArrowRight": 39, "ArrowLeft": 37, "Escape": 27, "Tab": 9}
        common = {"key": key, "windowsVirtualKeyCode": code.get(key, ord(key[0]))}
        typed = {"text": text} if text else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **common, **typed)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def point(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, selector: str) -> None:
        """With the mouse, where the element is."""
        found = f"document.querySelector({json.dumps(selector)})"
        x, y = self.evaluate(
            f"((e, b) => (e.scrollIntoView({{block: 'center'}}), b = e.getBoundingClientRect(), "
            f"[b.x + b.width / 2, b.y + b.height / 2]))({found})"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def screenshot(self, path: Path) -> None:
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        data = self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))

    def _next(self) -> dict[str, Any]:
        limit = monotonic() + 300  # seconds; only what is broken takes as long
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._receive], [], [], max(0, limit - monotonic()))
            chunk = os.read(self._receive, 1 << 20) if ready else b""
            if not chunk:
                raise RuntimeError("the browser does not answer")
            self._unread += chunk
        message, _, self._unread = self._unread.partition(b"\0")
        event: dict[str, Any] = json.loads(message)
        self._note(event.get("method"), event.get("params", {}))
        return event

    def _note(self, method: str | None, event: dict[str, Any]) -> None:
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Network.requestWillBeSent":
            self.requests.append(event["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.problems.append(str(event["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and event["type"] in ("error", "warning"):
            self.problems.append(str(event["args"]))
        elif method == "Log.entryAdded":
            self.problems.append(event["entry"]["text"])
