"""The page in a headless Chromium; run by hand where one is installed: -m long."""

import base64
import json
import os
import shutil
import subprocess
import sys
import time

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed"),
]

# Chromium reads commands from descriptor 3 and writes to 4: Chrome's DevTools protocol.
START = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); "
    "os.execv(sys.argv[3], sys.argv[3:])"
)


class Browser:
    """One page of a browser."""

    def __init__(self, folder):
        ours, self._write = os.pipe()
        self._read, theirs = os.pipe()
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe",
                   f"--user-data-dir={folder}"]  # fmt: skip
        line = [sys.executable, "-c", START, str(ours), str(theirs), CHROMIUM, *options]
        self._process = subprocess.Popen(
            line, pass_fds=(ours, theirs), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        os.close(ours)
        os.close(theirs)
        self._held, self._number, self._session = b"", 0, None
        self.complaints = []

    def open(self, url):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        asked = {"targetId": target, "flatten": True}
        self._session = self.call("Target.attachToTarget", **asked)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.call("Page.bringToFront")
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def call(self, method, **params):
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            told = answer.get("params", {})
            is_advice = told.get("entry", {}).get("level") in ("verbose", "info")
            if answer.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.complaints += [] if is_advice else [told]
        assert "error" not in answer, answer
        return answer["result"]

    def _next(self):
        while b"\0" not in self._held:
            part = os.read(self._read, 1 << 16)
            assert part, "chromium has ended"
            self._held += part
        message, _, self._held = self._held.partition(b"\0")
        return json.loads(message)

    def value(self, expression):
        asked = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        found = self.call("Runtime.evaluate", **asked)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, expression):
        deadline = time.monotonic() + 20
        while not (found := self.value(expression)):
            assert time.monotonic() < deadline, (
                expression,
                self.value("document.body.innerText")[-300:],
            )
            time.sleep(0.05)
        return found

    def type(self, text):
        self.call("Input.insertText", text=text)

    def press(self, key, code):
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key,
                      windowsVirtualKeyCode=code, **text)  # fmt: skip

    def picture(self, path):
        found = self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(found["data"]))

    def close(self):
        os.close(self._write)
        os.close(self._read)
        self._process.terminate()
        self._process.wait(30)


@pytest.fixture
def browser(tmp_path):
    made = Browser(tmp_path)
    yield made
    made.close()


ANSWER = "[...document.querySelectorAll('.turn.assistant .text')].at(-1)?.textContent.length ?? 0"
BELOW = "[...document.querySelectorAll('.turn.assistant .below')].at(-1)?.textContent ?? ''"
QUESTIONS = "[...document.querySelectorAll('.turn.user .text')].map(one => one.textContent)"


def test_it_sends_streams_stops_edits_and_answers_again(serve, browser, tmp_path):
    with serve("long") as server:
        server.client().chat.completions.create(
            model="long", messages=[{"role": "user", "content": "the"}], max_tokens=1
        )
        server.model("long").ends = frozenset()  # so that an answer goes on until it is stopped
        engine = server.model("long").engine
        browser.open(server.url)
        assert browser.wait("document.querySelector('#model').value") == "long"

        browser.value("document.querySelector('#question').focus()")
        browser.type("the dog")
        browser.press("Enter", 13)
        first = browser.wait(ANSWER)
        assert browser.value("document.querySelector('#send').textContent") == "Stop"
        browser.wait(f"({ANSWER}) > {first}")  # it streams
        browser.press("Escape", 27)
        browser.wait(f"({BELOW}).includes('stopped')")
        stopped = browser.value(ANSWER)
        deadline = time.monotonic() + 20
        while engine.state().running and time.monotonic() < deadline:
            time.sleep(0.02)
        assert engine.state().running == 0
        assert browser.value(ANSWER) == stopped
        assert browser.value("document.querySelector('#send').textContent") == "Send"

        browser.value(
            "const most = document.querySelector('#max_completion_tokens');"
            "most.value = 7; most.dispatchEvent(new Event('change'))"
        )
        browser.value("[...document.querySelectorAll('button')]"
                      ".find(one => one.textContent === 'Edit').click()")  # fmt: skip
        browser.value("document.activeElement.select()")
        browser.type("the cat")
        browser.press("Enter", 13)
        browser.wait(f"({BELOW}).includes('7 tokens') && ({BELOW}).includes('read')")
        assert browser.value(QUESTIONS) == ["the cat"]

        browser.type("the mat")  # the field has the focus again
        browser.press("Enter", 13)
        browser.wait(f"({QUESTIONS}).length === 2 && ({BELOW}).includes('read')")
        browser.value("[...document.querySelectorAll('button')]"
                      ".findLast(one => one.textContent === 'Again').click()")  # fmt: skip
        browser.wait(f"({BELOW}).includes('read')")
        assert browser.value(QUESTIONS) == ["the cat", "the mat"]
        browser.press("ArrowUp", 38)
        assert browser.value("document.activeElement.value") == "the mat"
        browser.picture(tmp_path / "page.png")
        assert (tmp_path / "page.png").stat().st_size > 5000
    assert browser.complaints == []


def test_a_failure_is_shown_and_a_key_is_sent(serve, browser):
    with serve("plain", api_keys=("s3cret", "other")) as server:
        browser.open(server.url)
        assert "its key" in browser.wait("document.querySelector('#model').textContent")
        browser.value(
            "const key = document.querySelector('#key');"
            "key.value = 's3cret'; key.dispatchEvent(new Event('change'))"
        )
        browser.wait("document.querySelector('#model').value === 'plain'")
        browser.value("document.querySelector('#question').focus()")
        browser.type("the dog " * 400)
        browser.press("Enter", 13)
        assert "context-overflow" in browser.wait("document.querySelector('.wrong')?.textContent")
