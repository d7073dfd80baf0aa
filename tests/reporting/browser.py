"""A headless Chromium, driven through chromedriver by plain HTTP."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
_WIDTH, _HEIGHT = 1500, 1330


def there_is_one() -> bool:
    """Whether both programs are installed."""
    return bool(shutil.which("chromedriver") and shutil.which("chromium"))


class Browser:
    """One session; every call is one of the W3C WebDriver protocol's."""

    def __init__(self, port: int, profile: Path) -> None:
        self._base = f"http://127.0.0.1:{port}"
        options = {
            "binary": shutil.which("chromium"),
            "args": [
                *FLAGS,
                f"--user-data-dir={profile}",
                f"--window-size={_WIDTH},{_HEIGHT}",
            ],
        }
        wanted = {
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        made = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._base += f"/session/{made['sessionId']}"
        self._call("POST", "/url", {"url": "about:blank"})  # its first page asks a lot
        self.complaints()
        self.requests()

    def open(self, page: Path) -> None:
        """Show a file, and wait until it has drawn itself."""
        self._call("POST", "/url", {"url": page.as_uri()})
        for _ in range(12_000):
            if self.run("return document.documentElement.dataset.ready === 'yes'"):
                break
            if self.run("return !(document.getElementById('failure')?.hidden ?? true)"):
                raise AssertionError(self.text("#failure"))
            time.sleep(0.05)
        self.settle()

    def settle(self) -> None:
        """Wait for two frames: what was asked to be drawn is drawn then."""
        self._call(
            "POST",
            "/execute/async",
            {
                "script": "const done = arguments[0];"
                "requestAnimationFrame(() => requestAnimationFrame(() => done(1)))",
                "args": [],
            },
        )

    def run(self, script: str, *args: object) -> Any:
        """What a script's body returns."""
        entries = {"script": script, "args": list(args)}
        return self._call("POST", "/execute/sync", entries)

    def text(self, selector: str) -> str:
        """The text of the first element that fits."""
        script = "return document.querySelector(arguments[0]).innerText"
        return str(self.run(script, selector))

    def point(self, selector: str, x: float, y: float, click: bool = False) -> None:
        """Move the pointer to a place in an element, in pixels; click there, or not."""
        place = self._place(selector, x, y)
        moves: list[dict[str, object]] = [{"type": "pointerMove", **place}]
        if click:
            buttons = ("pointerDown", "pointerUp")
            moves += [{"type": each, "button": 0} for each in buttons]
        self._act({"type": "pointer", "id": "mouse", "actions": moves})

    def wheel(self, selector: str, x: float, y: float, by: int) -> None:
        """Turn the wheel over a place in an element."""
        place = self._place(selector, x, y)
        turn = {"type": "scroll", "deltaX": 0, "deltaY": by, **place}
        self._act({"type": "wheel", "id": "wheel", "actions": [turn]})

    def _place(self, selector: str, x: float, y: float) -> dict[str, int]:
        left, top = self.run(
            "const e = document.querySelector(arguments[0]); e.scrollIntoView("
            "{block: 'center'}); const b = e.getBoundingClientRect();"
            "return [b.left, b.top]",
            selector,
        )
        return {"duration": 0, "x": round(left + x), "y": round(top + y)}

    def _act(self, source: dict[str, object]) -> None:
        self._call("POST", "/actions", {"actions": [source]})
        self.settle()

    def complaints(self) -> list[str]:
        """What the console was told of since it was last asked."""
        found = self._call("POST", "/se/log", {"type": "browser"})
        return [str(entry["message"]) for entry in found]

    def requests(self) -> list[str]:
        """The addresses that were asked for since this was last called."""
        found = []
        for entry in self._call("POST", "/se/log", {"type": "performance"}):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                found.append(str(message["params"]["request"]["url"]))
        return found

    def close(self) -> None:
        """End the session, and Chromium with it."""
        self._call("DELETE", "")

    def _call(self, method: str, path: str, entries: object = None) -> Any:
        data = None if entries is None else json.dumps(entries).encode()
        request = urllib.request.Request(
            self._base + path,
            data,
            {"Content-Type": "application/json"},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as reply:
                return json.load(reply)["value"]
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(json.load(error)["value"]["message"]) from None


@contextlib.contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A Chromium with a profile of its own, ended with the context."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with subprocess.Popen(
        ["chromedriver", f"--port={port}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as driver:
        try:
            _await(port)
            session = Browser(port, profile)
            try:
                yield session
            finally:
                session.close()
        finally:
            driver.terminate()


def _await(port: int) -> None:
    for _ in range(12_000):
        with contextlib.suppress(OSError), socket.socket() as there:
            there.connect(("127.0.0.1", port))
            return
        time.sleep(0.05)
    raise AssertionError("chromedriver does not answer")
