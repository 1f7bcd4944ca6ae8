"""Drives chromium without a window, through two pipes, with the DevTools protocol. It needs no library."""

import json
import os
import shutil
import subprocess
import tempfile
import time


class Browser:
    """One page in a browser of its own. Use it in a with statement."""

    def __init__(self):
        path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        if path is None:
            raise SystemExit("install chromium")
        self.home = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        commands, self.out = os.pipe()
        self.answers, answers = os.pipe()

        def descriptors():  # the browser reads from 3 and writes to 4
            first, second = os.dup(commands), os.dup(answers)
            os.dup2(first, 3)
            os.dup2(second, 4)

        options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-pipe"]
        self.process = subprocess.Popen(
            [path, *options, f"--user-data-dir={self.home.name}", "about:blank"],
            preexec_fn=descriptors, close_fds=False, stderr=subprocess.DEVNULL)
        os.close(commands)
        os.close(answers)
        self.rest, self.last, self.session, self.events = b"", 0, None, []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.out)  # the browser ends
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.answers)
        self.home.cleanup()

    def read(self):
        """Returns the next message of the browser."""
        while b"\0" not in self.rest:
            more = os.read(self.answers, 1 << 20)
            if not more:
                raise RuntimeError("the browser has ended")
            self.rest += more
        text, self.rest = self.rest.split(b"\0", 1)
        return json.loads(text)

    def call(self, method, **params):
        """Sends a command, and returns its result. Events that come before it are kept."""
        self.last += 1
        message = {"id": self.last, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while (answer := self.read()).get("id") != self.last:
            self.events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def go(self, url):
        """Opens the URL, and waits until it is loaded. Returns the events of the page."""
        self.events.clear()
        self.call("Page.navigate", url=url)
        seen = 0
        while True:
            for event in self.events[seen:]:
                if event.get("method") == "Page.loadEventFired":
                    return self.events
            seen = len(self.events)
            self.events.append(self.read())

    def run(self, script):
        """Runs the script in the page, waits for its promise if it returns one, and returns its value."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{script}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait(self, script, limit=60):
        """Waits until the script returns something that is true, and returns it."""
        end = time.monotonic() + limit
        while not (value := self.run(script)):
            if time.monotonic() > end:
                raise RuntimeError(f"not true within {limit} s: {script}")
            time.sleep(0.05)
        return value
