"""A real browser without further packages: headless Chromium, spoken to over its debugging pipe (fd 3 in, fd 4 out)."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Self

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
    "about:blank",
]


def executable() -> str | None:
    """Where Chromium is, if it is installed."""
    return next(
        (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
    )


class Browser:
    """One tab of a headless Chromium; remembers every request, console message and exception."""

    def __init__(self) -> None:
        self.profile = tempfile.mkdtemp()
        command_read, self._write = os.pipe()
        self._read, answer_write = os.pipe()

        def wire() -> None:  # in the child: the pipes become the descriptors that Chromium expects
            saved = os.dup(command_read), os.dup(answer_write)
            os.dup2(saved[0], 3)
            os.dup2(saved[1], 4)

        command = [executable() or "chromium", *FLAGS, f"--user-data-dir={self.profile}"]
        self.process = subprocess.Popen(
            command, preexec_fn=wire, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(command_read)
        os.close(answer_write)
        self.buffer, self.count = b"", 0
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.loaded = False
        targets = self.send("Target.getTargets")["targetInfos"]
        page = next(target for target in targets if target["type"] == "page")
        self.session: str | None = self.send("Target.attachToTarget", targetId=page["targetId"], flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.session = None
            self.send("Browser.close")
        finally:
            self.process.wait(20)
            os.close(self._write)
            os.close(self._read)
            shutil.rmtree(self.profile, ignore_errors=True)

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Give a command and wait for its answer."""
        self.count += 1
        message: dict[str, Any] = {"id": self.count, "method": method, "params": params}
        if getattr(self, "session", None):
            message["sessionId"] = self.session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self.count:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            chunk = os.read(self._read, 2**16)
            if not chunk:
                raise RuntimeError("Chromium ended")
            self.buffer += chunk
        message, _, self.buffer = self.buffer.partition(b"\0")
        event = json.loads(message)
        self._note(event.get("method", ""), event.get("params", {}))
        return event

    def _note(self, method: str, params: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Page.loadEventFired":
            self.loaded = True
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(params["exceptionDetails"]["text"])
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(params["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.complaints.append(str(params["args"]))

    def open(self, path: Path, width: int, height: int = 900) -> None:
        """Load a file in a window of this size."""
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.loaded = False
        self.send("Page.navigate", url=path.resolve().as_uri())
        while not self.loaded:
            self._next()

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def click(self, selector: str) -> None:
        """A real click of the mouse in the middle of an element."""
        box = self.run(
            f"""(() => {{
                const found = document.querySelector({json.dumps(selector)});
                found.scrollIntoView({{block: "center", inline: "center", behavior: "instant"}});
                const box = found.getBoundingClientRect();
                return [box.x + box.width / 2, box.y + box.height / 2];
            }})()"""
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    def screenshot(self, path: Path) -> None:
        """The whole page as PNG."""
        answer = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))
