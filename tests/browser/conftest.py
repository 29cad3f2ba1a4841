"""A real Chromium, and pages of `mmreplay view` in it. Only `make test-browser` comes here."""

import base64
import os
import shutil
import subprocess
import sys
from urllib.parse import urlsplit

import numpy as np
import pytest

if not os.environ.get("MMREPLAY_BROWSER"):
    collect_ignore_glob = ["test_*.py"]

PATIENCE_MS = 20_000  # of a busy machine; what is measured is in benchmarks/view.py
NAMES = ("chromium", "chromium-browser", "google-chrome")

# As text: a list of numbers would take seconds.
PIXELS = """canvas => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    return btoa(Array.from(data, (one) => String.fromCharCode(one)).join(""));
}"""


class Watched:
    """A page, with what it asked for, what it complained of, and a few looks at it."""

    def __init__(self, page, url):
        self.page, self.url = page, url
        self.requests, self.complaints = [], []
        page.set_default_timeout(PATIENCE_MS)
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", self._console)

    def _console(self, message):
        # A sentence of the server comes with a status, which the console repeats.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.complaints.append(message.text)

    def open(self, place=""):
        self.page.goto(self.url + place)

    def press(self, *keys):
        for key in keys:
            self.page.keyboard.press(key)

    def at(self, step):
        """Wait until the frames and the stack of a step are painted."""
        self.page.locator(".frames > *").first.wait_for()
        for frame in self.page.locator("canvas.frame").all():
            frame.and_(self.page.locator(f'[data-step="{step}"]')).wait_for()
        return self

    def stack_at(self, step):
        self.page.locator(f'section.stack[data-step="{step}"]').wait_for()
        return self

    def pixels(self, canvas):
        """(height, width, 3) uint8, as painted."""
        width, height = (int(canvas.get_attribute(name)) for name in ("width", "height"))
        data = base64.b64decode(canvas.evaluate(PIXELS))
        found = np.frombuffer(data, np.uint8).reshape(height, width, 4)
        return np.where(found[..., 3:] == 255, found[..., :3], 77)  # what is not opaque is wrong

    def frame(self, name="frame"):
        return self.pixels(self.page.locator(f'canvas.frame[data-column="{name}"]'))

    def stack(self, side, name="frame"):
        """The pictures of an observation: side 0, or of the next one: side 1."""
        strip = self.page.locator("section.stack .strip").nth(side)
        canvases = strip.locator(f'canvas[data-column="{name}"]').all()
        return np.array([self.pixels(one) for one in canvases])

    def numbers(self):
        """The list beside the frame."""
        names = self.page.locator("aside .numbers dt").all_text_contents()
        values = self.page.locator("aside .numbers dd").all_text_contents()
        return dict(zip(names, values, strict=True))

    def sees(self, text):
        self.page.get_by_text(text).filter(visible=True).first.wait_for()

    def is_quiet(self):
        """It asked nobody else, and nothing went wrong."""
        origin = urlsplit(self.url)
        strangers = [one for one in self.requests if urlsplit(one).netloc != origin.netloc]
        return (strangers, self.complaints) == ([], [])


@pytest.fixture(scope="session")
def browser():
    from playwright.sync_api import sync_playwright

    path = next(filter(None, map(shutil.which, NAMES)), None)
    assert path, "no Chromium: apt-get install chromium"
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path,
            args=sandbox,
            # Which users' browsers do not have.
            ignore_default_args=["--disable-ipc-flooding-protection"],
        )
        yield browser
        browser.close()


@pytest.fixture
def serve():
    """Starts `mmreplay view` on stores, and returns its URL: `serve(*paths)`."""
    processes = []

    def start(*arguments):
        process = subprocess.Popen(
            [sys.executable, "-m", "mmreplay_cli", "view", "--no-browser", *map(str, arguments)],
            stdout=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process, process.stdout.readline().strip()

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture
def watch(browser):
    """Opens an address in a browser of its own: `watch(url, **of_context)`; quiet at the end."""
    pages = []

    def open_page(url, **options):
        context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **options})
        pages.append((context, Watched(context.new_page(), url)))
        return pages[-1][1]

    yield open_page
    for context, watched in pages:
        assert watched.is_quiet(), (watched.requests, watched.complaints)
        context.close()


@pytest.fixture
def look(serve, watch):
    """Both: `look(*paths, place="#/0/0/5")`."""

    def at(*paths, place="", **options):
        watched = watch(serve(*paths)[1], **options)
        watched.open(place)
        return watched

    return at
