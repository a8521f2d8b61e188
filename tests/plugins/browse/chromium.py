"""Chromium without a window, driven through pipes by its DevTools protocol: real keys, clicks, files and downloads."""

import base64
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROGRAM = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--hide-scrollbars"]
_KEYS = {
    "ArrowLeft": 37,
    "ArrowUp": 38,
    "ArrowRight": 39,
    "ArrowDown": 40,
    "Enter": 13,
    "Escape": 27,
    " ": 32,
    "Tab": 9,
}
_WITH_PIPES = """
import fcntl, os, sys
pipes = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3]]
os.dup2(pipes[0], 3)
os.dup2(pipes[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""  # Chromium reads from number 3, and writes to number 4


class Chromium:
    """A page in Chromium."""

    def __init__(self, commands, answers):
        self._commands = commands
        self._answers = answers
        self._number = 0
        self._session = None
        self.errors = []  # of scripts, and what the content security policy refused
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "DOM"):
            self.call(f"{domain}.enable")

    def call(self, method, **options):
        self._number += 1
        message = {"id": self._number, "method": method, "params": options}
        if self._session:
            message["sessionId"] = self._session
        self._commands.write(json.dumps(message).encode() + b"\0")
        self._commands.flush()
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def _read(self):
        text = bytearray()
        while (byte := self._answers.read(1)) != b"\0":
            assert byte, "Chromium is gone"
            text += byte
        answer = json.loads(text)
        if answer.get("method") == "Runtime.exceptionThrown":
            self.errors.append(str(answer["params"]["exceptionDetails"]))
        if answer.get("method") == "Log.entryAdded" and answer["params"]["entry"]["level"] == "error":
            self.errors.append(answer["params"]["entry"]["text"])
        return answer

    def run(self, script):
        """The value of an expression."""
        done = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def wait(self, script):
        """Wait until an expression is true, in a page that may be loading another one."""
        for _ in range(600):
            with contextlib.suppress(AssertionError):
                if value := self.run(script):
                    return value
            time.sleep(0.1)
        raise AssertionError(f"never true: {script}")

    def open(self, address):
        self.leave(self.call, "Page.navigate", url=address)

    def leave(self, act, *arguments, **options):
        """Do what loads another page, and wait until it is there."""
        self.run("window.old = true")
        act(*arguments, **options)
        self.wait("!window.old && document.readyState === 'complete'")

    def press(self, *keys):
        for key in keys:
            text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
            code = _KEYS.get(key, ord(key.upper()[0]))
            more = {"key": key, "windowsVirtualKeyCode": code}
            self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **more)
            self.call("Input.dispatchKeyEvent", type="keyUp", **more)

    def click(self, selector):
        script = f"(() => {{ const e = document.querySelector({json.dumps(selector)}); "
        script += "e.scrollIntoView({block: 'center'}); const b = e.getBoundingClientRect(); "
        x, y = self.run(script + "return [b.left + b.width / 2, b.top + b.height / 2]; })()")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def choose(self, selector, *files):
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(file) for file in files])

    def show(self, width=1280, height=900, dark=False):
        """Make the page as wide, narrow or dark."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def picture(self, file):
        Path(file).write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def downloads(self, folder):
        session, self._session = self._session, None
        self.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
        self._session = session

    def close(self):
        self._session = None
        self.call("Browser.close")


@contextlib.contextmanager
def chromium():
    """A page in Chromium, with a profile of its own."""
    from_us, to_it = os.pipe()
    from_it, to_us = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [PROGRAM, *FLAGS, f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"]
        call = [sys.executable, "-c", _WITH_PIPES, str(from_us), str(to_us), *command]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(call, pass_fds=(from_us, to_us), **quiet)
        os.close(from_us)
        os.close(to_us)
        with os.fdopen(to_it, "wb") as commands, os.fdopen(from_it, "rb") as answers:
            page = Chromium(commands, answers)
            try:
                yield page
            finally:
                page.close()
                process.wait(60)
