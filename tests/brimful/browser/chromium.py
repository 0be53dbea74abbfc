"""A headless Chromium, driven over its DevTools protocol through a pair of pipes. Standard library
only.

Protocol: https://chromedevtools.github.io/devtools-protocol/ ; with --remote-debugging-pipe the
browser reads JSON messages from file descriptor 3 and writes them to 4, each ended by a zero byte.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",  # as root, in a container
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-default-apps",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
PATIENCE_S = 60.0


def find() -> str | None:
    """The browser's path: $BRIMFUL_CHROMIUM, the first of the usual names on the path, or
    Playwright's own build.
    """
    named = os.environ.get("BRIMFUL_CHROMIUM")
    installed = next((path for name in NAMES if (path := shutil.which(name))), None)
    builds = Path(
        os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or Path.home() / ".cache/ms-playwright"
    )
    return (
        named
        or installed
        or next(
            (str(path) for path in sorted(builds.glob("chromium-*/chrome-linux*/chrome"))), None
        )
    )


class Chromium:
    """One browser process with an empty profile. Use as a context manager."""

    def __init__(self, binary: str) -> None:
        self._profile = tempfile.TemporaryDirectory(
            prefix="brimful-chromium-", ignore_cleanup_errors=True
        )
        read_by_it, self._to = os.pipe()
        self._from, written_by_it = os.pipe()
        # The shell gives the pipes the numbers 3 and 4 that the browser expects.
        line = f'exec "$0" "$@" 3<&{read_by_it} 4>&{written_by_it}'
        arguments = [*FLAGS, f"--user-data-dir={self._profile.name}", "about:blank"]
        self._process = subprocess.Popen(
            ["bash", "-c", line, binary, *arguments],
            pass_fds=(read_by_it, written_by_it),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_by_it)
        os.close(written_by_it)
        self._buffer = b""
        self._last_id = 0
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> "Chromium":
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.call("Browser.close")
            self._process.wait(timeout=PATIENCE_S)
        except (OSError, RuntimeError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._to)
        os.close(self._from)
        self._profile.cleanup()

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """The result of one method. Raises RuntimeError if the browser refuses, is gone, or does
        not answer.
        """
        self._last_id += 1
        message = {
            "id": self._last_id,
            "method": method,
            "params": params,
            **({"sessionId": session} if session else {}),
        }
        os.write(self._to, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE_S
        while True:
            answer = self._next(deadline)
            if answer.get("id") != self._last_id:
                self.events.append(answer)
            elif "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']}")
            else:
                return answer["result"]

    def wait_for(self, method: str, session: str) -> dict[str, Any]:
        """The first event of that name in that session, past or to come."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            for event in self.events:
                if event.get("method") == method and event.get("sessionId") == session:
                    return event
            self.events.append(self._next(deadline))

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], max(deadline - time.monotonic(), 0))
            if not ready:
                raise RuntimeError("Chromium does not answer")
            chunk = os.read(self._from, 1 << 16)
            if not chunk:
                raise RuntimeError("Chromium ended")
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(line)

    def open(
        self,
        path: Path,
        width: int = 1200,
        height: int = 900,
        dark: bool = False,
        scripts: bool = True,
    ) -> "Page":
        """The file at `path` in a tab of its own, loaded."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, target, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        page.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        page.call("Emulation.setFocusEmulationEnabled", enabled=True)
        page.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        page.media("screen", dark)
        # those of about:blank
        self.events = [e for e in self.events if e.get("sessionId") != session]
        page.call("Page.navigate", url=path.resolve().as_uri())
        self.wait_for("Page.loadEventFired", session)
        return page


class Page:
    """One tab."""

    def __init__(self, browser: Chromium, target: str, session: str) -> None:
        self.browser, self._target, self._session = browser, target, session

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self.browser.call(method, self._session, **params)

    def media(self, kind: str, dark: bool) -> None:
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", media=kind, features=features)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, a promise awaited. Raises RuntimeError if it
        throws.
        """
        answer = self.call(
            "Runtime.evaluate",
            expression=expression,
            returnByValue=True,
            awaitPromise=True,
            userGesture=True,
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def click(self, selector: str) -> None:
        box = self.evaluate(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); "
            f"e.scrollIntoView({{block: 'center'}});"
            " const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / "
            "2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call(
                "Input.dispatchMouseEvent",
                type=kind,
                x=box[0],
                y=box[1],
                button="left",
                clickCount=1,
            )

    def _events(self, method: str) -> list[dict[str, Any]]:
        self.evaluate("1")  # events on their way before this have arrived by now
        events = self.browser.events
        return [
            e["params"]
            for e in events
            if e.get("method") == method and e.get("sessionId") == self._session
        ]

    def requests(self) -> list[str]:
        """Every address that the page asked for, its own included."""
        return [event["request"]["url"] for event in self._events("Network.requestWillBeSent")]

    def complaints(self) -> list[str]:
        """Errors and warnings on the console, exceptions, and what the page's policy stopped."""
        calls = [
            str(e["args"])
            for e in self._events("Runtime.consoleAPICalled")
            if e["type"] in ("error", "warning", "assert")
        ]
        thrown = [str(e["exceptionDetails"]) for e in self._events("Runtime.exceptionThrown")]
        logged = [
            e["entry"]["text"]
            for e in self._events("Log.entryAdded")
            if e["entry"]["level"] in ("error", "warning")
        ]
        return calls + thrown + logged

    def screenshot(self, path: Path) -> None:
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        data = self.call(
            "Page.captureScreenshot", captureBeyondViewport=True, clip={**size, "scale": 1}
        )["data"]
        path.write_bytes(base64.b64decode(data))

    def close(self) -> None:
        self.browser.call("Target.closeTarget", targetId=self._target)
