"""A headless Chromium for tests of pages, driven over WebDriver: chromedriver's own protocol, and nothing to install
beside Debian's packages ``chromium`` and ``chromium-driver``."""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"

KEYS = {"Enter": "\ue007", "Escape": "\ue00c", "Tab": "\ue004", "ArrowLeft": "\ue012", "ArrowUp": "\ue013",
        "ArrowRight": "\ue014", "ArrowDown": "\ue015", "End": "\ue010"}  # fmt: skip

_ARGUMENTS = [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
    "--disable-breakpad", "--disable-crash-reporter",
]  # fmt: skip


def missing() -> str:
    """What a test of a page lacks here; empty where it can run."""
    lacking = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"not installed: {', '.join(lacking)} (Debian: apt-get install chromium chromium-driver)" if lacking else ""


class Browser:
    """One window. Every method waits until the browser has done it."""

    def __init__(self, client: httpx.Client, session: str) -> None:
        self._client = client
        self._path = f"/session/{session}"

    def _post(self, path: str, **body: Any) -> Any:
        answer = self._client.post(f"{self._path}/{path}", json=body)
        value = answer.json()["value"]
        assert answer.is_success, f"{value['error']}: {value['message'].splitlines()[0]}"
        return value

    def open(self, page: Path, fragment: str = "") -> None:
        """Show a file, and wait for its load event."""
        self._post("url", url=page.resolve().as_uri() + fragment)

    def go(self, address: str) -> None:
        """Show a page of a server, and wait for its load event."""
        self._post("url", url=address)

    def run_later(self, script: str, *arguments: Any) -> Any:
        """What a script gives to the function that it finds as its last argument, within half a minute."""
        return self._post("execute/async", script=script, args=list(arguments))

    def run(self, script: str, *arguments: Any) -> Any:
        """What a script's ``return`` gives."""
        return self._post("execute/sync", script=script, args=list(arguments))

    def find(self, selector: str) -> str:
        """The first element of a CSS selector; an AssertionError where there is none."""
        return str(self._post("element", using="css selector", value=selector)[_ELEMENT])

    def click(self, selector: str) -> None:
        """Click as a user: an element that is covered or hidden is an AssertionError."""
        self._post(f"element/{self.find(selector)}/click")

    def press(self, *keys: str) -> None:
        """Press keys one after the other, wherever the focus is."""
        strokes = [
            {"type": kind, "value": KEYS.get(key, key)} for key in keys for kind in ("keyDown", "keyUp")
        ]  # fmt: skip
        self._post("actions", actions=[{"type": "key", "id": "keyboard", "actions": strokes}])

    def text(self, selector: str) -> str:
        """The text that is to be seen of an element, with "?" for lone surrogates, which WebDriver cannot carry."""
        visible = r"return document.querySelector(arguments[0]).innerText.replace(/\p{Surrogate}/gu, '?')"
        return str(self.run(visible, selector))

    def look(self, *, width: int = 1200, height: int = 900, scheme: str = "light") -> None:
        """The size of the page's view in CSS pixels, and the colours that its user prefers."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._cdp("Emulation.setDeviceMetricsOverride", metrics)
        self._cdp("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})

    def _cdp(self, command: str, parameters: dict[str, Any]) -> Any:
        return self._post("goog/cdp/execute", cmd=command, params=parameters)

    def screenshot(self, path: Path) -> None:
        """A PNG of what is in view."""
        path.write_bytes(base64.b64decode(self._client.get(f"{self._path}/screenshot").json()["value"]))

    def log(self) -> list[str]:
        """What the page wrote to the console since the last call: errors and refused requests among it."""
        entries = self._post("se/log", type="browser")
        return [entry["message"] for entry in entries]


@contextmanager
def browser(*arguments: str) -> Iterator[Browser]:
    """A browser with a profile of its own."""
    driver = subprocess.Popen(
        ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )  # fmt: skip
    try:
        with tempfile.TemporaryDirectory() as profile, httpx.Client(base_url=_address(driver), timeout=30) as client:
            options = {
                "binary": shutil.which("chromium"),
                "args": [*_ARGUMENTS, *arguments, f"--user-data-dir={profile}"],
            }
            wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
            answer = client.post("/session", json={"capabilities": {"alwaysMatch": wanted}}).json()["value"]
            assert "sessionId" in answer, answer
            try:
                yield Browser(client, answer["sessionId"])
            finally:
                client.delete(f"/session/{answer['sessionId']}")
    finally:
        _end(driver)


def _end(driver: subprocess.Popen[str]) -> None:
    """The driver and whatever is left of its browser."""
    left = psutil.Process(driver.pid).children(recursive=True)
    driver.terminate()
    driver.wait(10)
    if driver.stdout is not None:
        driver.stdout.close()
    for process in psutil.wait_procs(left, timeout=5)[1]:
        process.kill()


def _address(driver: subprocess.Popen[str]) -> str:
    assert driver.stdout is not None
    for line in driver.stdout:
        if found := re.search(r"on port (\d+)\.", line):
            return f"http://127.0.0.1:{found[1]}"
    raise AssertionError("chromedriver ended before it said its port")
