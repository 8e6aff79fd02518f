"""Headless Chromium, driven over the DevTools protocol through a pair of pipes, without further
packages.

Each page records what must never happen: console errors, exceptions, and requests to other origins.
"""

import base64
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    # Debian's launcher turns drawing on a GPU on, which would be emulated.
    "--disable-gpu-rasterization",
    "--disable-gpu-compositing",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--mute-audio",
    "--remote-debugging-pipe",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--disable-features=Translate",
    # A separate process per tab makes up a fifth of the cost of opening one.
    "--disable-site-isolation-trials",
    "--renderer-process-limit=1",
)
WAIT_SECONDS = 300
KEY_CODES = {
    "Tab": 9,
    "Enter": 13,
    "Escape": 27,
    "ArrowLeft": 37,
    "ArrowUp": 38,
    "ArrowRight": 39,
    "ArrowDown": 40,
}
KEY_CODES |= {"PageUp": 33, "PageDown": 34, "End": 35, "Home": 36, "z": 90, "y": 89, "a": 65}
CTRL = 2
SHIFT = 8


# Gives the two ends of the pipes the numbers Chromium expects, and becomes Chromium
RENUMBER = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
os.dup2(ends[0], 3)
os.dup2(ends[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """A running Chromium; `open` yields pages."""

    def __init__(self, process: subprocess.Popen[bytes], reading: int, writing: int) -> None:
        self.process = process
        self.reading = reading
        self.writing = writing
        self.rest = b""
        self.n_sent = 0
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Send a command and wait for its response; events received meanwhile are stored."""
        self.n_sent += 1
        message = {"id": self.n_sent, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self.writing, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + WAIT_SECONDS
        while True:
            answer = self._next(until)
            if answer.get("id") == self.n_sent:
                assert "error" not in answer, f"{method}: {answer['error']['message']}"
                found: dict[str, Any] = answer["result"]
                return found
            self.events.append(answer)

    def _next(self, until: float) -> dict[str, Any]:
        while b"\0" not in self.rest:
            assert select.select([self.reading], [], [], max(0, until - time.monotonic()))[0], (
                "Chromium does not answer"
            )
            self.rest += os.read(self.reading, 1 << 20)
        line, self.rest = self.rest.split(b"\0", 1)
        message: dict[str, Any] = json.loads(line)
        return message

    @contextmanager
    def open(
        self,
        place: Path | str,
        *,
        width: int = 1280,
        height: int = 900,
        dark: bool = False,
        new_window: bool = False,
    ) -> Iterator["Page"]:
        """Load a local file or a URL, and wait until it has loaded.

        A tab is hidden by a tab that is opened or brought to the front later; a new window is not.
        """
        target = self.call("Target.createTarget", url="about:blank", newWindow=new_window)[
            "targetId"
        ]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        if isinstance(place, Path):
            address = place.resolve().as_uri()
            origin = "file:"
        else:
            address = place
            origin = address[: address.index("/", 8)]
        page = Page(self, session, origin)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        page.resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.call("Emulation.setEmulatedMedia", features=[scheme])
        page.call("Page.navigate", url=address)
        page.wait("document.readyState === 'complete'")
        try:
            yield page
        finally:  # an open tab would hide the pages of other tests, and they would render no frames
            self.call("Target.closeTarget", targetId=target)


class Page:
    """One open page."""

    def __init__(self, browser: Browser, session: str, origin: str) -> None:
        self.browser = browser
        self.session = session
        self.origin = origin

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self.browser.call(method, self.session, **params)

    def resize(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def run(self, script: str) -> Any:
        """Return the value of a JavaScript expression; await it if it is a promise."""
        answer = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, script: str, seconds: float = WAIT_SECONDS) -> None:
        """Wait until a JavaScript expression is true."""
        until = time.monotonic() + seconds
        while not self.run(f"Boolean({script})"):  # an element is returned as an empty object
            assert time.monotonic() < until, f"waited {seconds} s for {script}"
            time.sleep(0.02)

    def open_again(self) -> None:
        """Open the address of the page in the same tab.

        A script that runs while the page reloads itself may never return.
        """
        address = self.run("location.href")
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=address)

    def settle(self) -> None:
        """Wait for two frames, after which pending changes are rendered."""
        frame = "requestAnimationFrame"
        self.run(f"new Promise((done) => {frame}(() => {frame}(() => done(true))))")

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, selector: str, *, times: int = 1, modifiers: int = 0) -> None:
        """Scroll an element into view and click its middle, twice for a double click."""
        x, y = self.middle(selector)
        more = {"button": "left", "modifiers": modifiers}
        for count in range(1, times + 1):
            self.mouse("mousePressed", x, y, clickCount=count, buttons=1, **more)
            self.mouse("mouseReleased", x, y, clickCount=count, buttons=0, **more)
        self.settle()

    def middle(self, selector: str) -> tuple[float, float]:
        element = f"document.querySelector({json.dumps(selector)})"
        self.run(f"{element}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        box = self.run(f"{element}.getBoundingClientRect().toJSON()")
        return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2

    def key(self, key: str, modifiers: int = 0) -> None:
        """Press a key; a capital letter is pressed with Shift."""
        if len(key) == 1 and key.isupper():
            modifiers |= SHIFT
        code = {}
        if key in KEY_CODES:
            code = {"windowsVirtualKeyCode": KEY_CODES[key]}
        text = {}
        if key == "Enter":
            text = {"text": "\r"}
        elif len(key) == 1 and not modifiers & CTRL:
            text = {"text": key}
        more = {"key": key, "code": key, "modifiers": modifiers, **code}
        self.call("Input.dispatchKeyEvent", type="keyDown", **more, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **more)
        self.settle()

    def type(self, text: str) -> None:
        """Type text into the element with the focus."""
        self.call("Input.insertText", text=text)
        self.settle()

    def screenshot(self, file: Path, *, whole: bool = False) -> None:
        self.settle()
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(found["data"]))

    def complaints(self) -> list[str]:
        """Return what went wrong since the page was opened: exceptions, console errors and
        warnings, and requests to other origins."""
        self.settle()
        own = [event for event in self.browser.events if event.get("sessionId") == self.session]
        return [text for event in own if (text := _complaint(event, self.origin))]


def _complaint(event: dict[str, Any], origin: str) -> str | None:
    method = event.get("method")
    params = event.get("params", {})
    if method == "Runtime.exceptionThrown":
        return f"exception: {params['exceptionDetails']}"
    if method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
        return f"console: {params['args']}"
    if method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
        return f"log: {params['entry']['text']}"
    if method == "Network.requestWillBeSent":
        url = params["request"]["url"]
        is_own = url.startswith(origin) and (
            params["type"] == "Document" or origin.startswith("http:")
        )
        if not is_own and not url.startswith(("data:", "blob:")):
            return f"request: {url}"
    return None


@contextmanager
def launched(chromium: str) -> Iterator[Browser]:
    """Start Chromium with an empty profile, and stop it on exit."""
    # Chromium reads from descriptor 3 and writes to 4.
    to_read = os.pipe()
    to_write = os.pipe()
    # Its child processes may still write to the profile for a moment.
    with TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [chromium, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        ends = (to_read[0], to_write[1])
        process = subprocess.Popen(
            [sys.executable, "-c", RENUMBER, *map(str, ends), *command],
            pass_fds=ends,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read[0])
        os.close(to_write[1])
        try:
            browser = Browser(process, to_write[0], to_read[1])
            yield browser
            browser.call("Browser.close")
        finally:
            for end in (to_write[0], to_read[1]):
                os.close(end)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
