"""The page of `mmreplay view` in Chromium, on a store of a million rows and beside a writer.

How long until a frame is painted, how fast steps are, what the server holds in memory, and what a
writer loses while it is watched. It needs what `make test-browser` installs, and a processor for
the browser beside that of the server: on a busy machine it says so in its figures.
"""

from __future__ import annotations

import http.client
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
from playwright.sync_api import sync_playwright

import mmreplay
from benchmarks.results import Result
from benchmarks.sizes import Scale
from benchmarks.timing import spread
from mmreplay import Field

__all__ = ["FRAME", "frames", "run"]

FRAME = Field((84, 84), "uint8", "lz4")
EPISODE_STEPS = 230  # about as long as a random policy's in Breakout
WATCHED_S = 4.0

STEPS = """async (n) => {
    const canvas = document.querySelector("canvas.frame");
    const times = [];
    for (let k = 0; k < n; k++) {
        const before = Number(canvas.dataset.step);
        const begin = performance.now();
        document.body.dispatchEvent(
            new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true }));
        const isNext = Number(canvas.dataset.step) === before + 1;
        times.push(isNext ? performance.now() - begin : Infinity);
        await new Promise((done) => requestAnimationFrame(done));
    }
    return times;
}"""

JUMPS = """async (places) => {
    const times = [];
    for (const [id, step] of places) {
        const begin = performance.now();
        location.hash = `#/0/${id}/${step}`;
        for (;;) {
            const canvas = document.querySelector("canvas.frame");
            const here = location.hash.endsWith(`/${id}/${step}`);
            if (here && canvas && canvas.dataset.step === String(step)) break;
            await new Promise((done) => setTimeout(done, 1));
        }
        times.push(performance.now() - begin);
    }
    return times;
}"""

PLAY = """async (n) => {
    const speed = document.querySelector(".transport select");
    speed.value = 60;
    speed.dispatchEvent(new Event("change"));
    const canvas = document.querySelector("canvas.frame");
    const shown = [];
    new MutationObserver(() => shown.push(performance.now()))
        .observe(canvas, { attributes: true, attributeFilter: ["data-step"] });
    document.body.dispatchEvent(new KeyboardEvent("keydown", { key: " ", bubbles: true }));
    while (shown.length < n) await new Promise((done) => setTimeout(done, 20));
    document.body.dispatchEvent(new KeyboardEvent("keydown", { key: " ", bubbles: true }));
    return shown;
}"""

WRITE = """
import sys, time
import gymnasium
import mmreplay
from benchmarks.record_experience import one_atari
from benchmarks.view import FRAME
from mmreplay import Field
env = one_atari("ALE/MsPacman-v5")
env.action_space.seed(0)
writer = mmreplay.create(sys.argv[1], FRAME, Field((), "int64"))
env = mmreplay.RecordExperience(env, writer)
env.reset(seed=0)
for line in sys.stdin:
    begin, n = time.perf_counter(), 0
    while time.perf_counter() - begin < float(line):
        *_, terminated, truncated, _ = env.step(env.action_space.sample())
        n += 1
        if terminated or truncated:
            env.reset()
    print(n / (time.perf_counter() - begin), flush=True)
"""


def frames(n: int) -> np.ndarray:
    """Pictures that compress about as a game's do: a still ground, and a few things that move."""
    rng = np.random.default_rng(0)
    ground = np.repeat(np.repeat(rng.integers(0, 256, (12, 12), np.uint8), 7, 0), 7, 1)
    out = np.repeat(ground[None], n, 0)
    for k in range(n):
        y, x = k * 3 % 76, k * 5 % 76
        out[k, y : y + 8, x : x + 8] = k % 256
    return out


def make_store(path: Path, rows: int) -> None:
    """A closed store of so many rows in episodes of one length."""
    tape = frames(512)
    with mmreplay.create(path, FRAME, Field((), "int64"), flush_s=0) as writer:
        for episode in range(rows // (EPISODE_STEPS + 1)):
            writer.reset(tape[episode % 512])
            for step in range(EPISODE_STEPS):
                frame = tape[(episode + step) % 512]
                writer.step(step % 4, float(step % 50 == 0), frame, step == EPISODE_STEPS - 1)


def serve(*arguments: object) -> tuple[subprocess.Popen, str]:
    """The command, and its URL."""
    command = [sys.executable, "-m", "mmreplay_cli", "view", "--no-browser", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    return process, process.stdout.readline().strip()


def resident_mb(pid: int, field: str) -> float:
    """VmRSS or VmHWM of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(one.split()[1]) for one in lines if one.startswith(f"{field}:")) / 1024


def scrub(url: str, ids: list[int], n_bytes: float) -> int:
    """Ask for blocks of frames in random order, as a page would; the bytes that came."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port)
    connection.request("GET", f"/?{parts.query}")
    reply = connection.getresponse()
    reply.read()
    cookie = {"Cookie": reply.headers["set-cookie"].partition(";")[0]}

    def get(path: str) -> bytes:
        connection.request("GET", path, headers=cookie)
        answer = connection.getresponse()
        body = answer.read()
        assert answer.status == 200, body
        return body

    version = json.loads(get("/data/heads.json"))[0]["version"]
    rng, done = np.random.default_rng(1), 0
    while done < n_bytes:
        first = ids[rng.integers(len(ids))]
        start = int(rng.integers(EPISODE_STEPS // 64)) * 64
        path = f"/data/0/{version}/episode/{first}/rows/0/{start}-{start + 64}.bin"
        done += len(get(path))
    connection.close()
    return done


def run(result: Result, scale: Scale, data: Path) -> None:
    """A closed store, then one that is written."""
    paths = [data / "viewed.zarr", data / "watched.zarr"]
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)
    try:
        make_store(paths[0], scale.viewed_rows)
        with mmreplay.open(paths[0]) as store:
            ids = store.episodes["id"].tolist()
        with sync_playwright() as playwright:
            chromium = shutil.which("chromium") or shutil.which("google-chrome")
            browser = playwright.chromium.launch(
                executable_path=chromium,
                args=["--no-sandbox"],
                # Which users' browsers do not have.
                ignore_default_args=["--disable-ipc-flooding-protection"],
            )
            measure_page(result, scale, browser, paths[0], ids)
            measure_writer(result, scale, browser, paths[1])
            browser.close()
    finally:
        for path in paths:
            shutil.rmtree(path, ignore_errors=True)


def measure_page(result: Result, scale: Scale, browser, path: Path, ids: list[int]) -> None:
    """Of one closed store: a server and a page for each run, and in the last the blocks."""
    rng = np.random.default_rng(2)
    first_s, steps, jumps, late, rates = ([] for _ in range(5))
    for k in range(scale.view_runs):
        process, url = serve(path, "--episode", len(ids) // 2)
        try:
            begin = time.perf_counter()
            page = browser.new_page()
            page.goto(url)
            page.locator("canvas.frame[data-step]").wait_for()
            first_s.append(time.perf_counter() - begin)
            page.locator("section.stack[data-step]").wait_for()
            time.sleep(1)
            steps.append(np.percentile(page.evaluate(STEPS, 200), [50, 99]))
            chosen = rng.choice(len(ids), min(60, len(ids)), replace=False).tolist()
            places = [[str(ids[one]), int(rng.integers(EPISODE_STEPS))] for one in chosen]
            jumps.append(np.percentile(page.evaluate(JUMPS, places), [50, 95]))
            page.evaluate(JUMPS, [[str(ids[0]), 0]])
            time.sleep(1)
            gaps = np.diff(page.evaluate(PLAY, 200))
            late.append(100 * float(np.mean(gaps > 1.5 * 1000 / 60)))
            rates.append(1000 / gaps.mean())
            page.close()
            if k == scale.view_runs - 1:
                done = scrub(url, ids, scale.scrubbed_gb * 1e9)
                now, most = (resident_mb(process.pid, field) for field in ("VmRSS", "VmHWM"))
        finally:
            process.kill()
            process.communicate()
    result.add("page: URL printed to first frame painted", spread(first_s), "s", at_most=2)
    for name, times, bounds in (("step", steps, (None, 16.7)), ("jump", jumps, (None, 100))):
        high = {"step": "99", "jump": "95"}[name]
        what = {"step": "a step to a frame that is there", "jump": "a jump to another episode"}
        middles, highs = np.transpose(times)
        result.add(f"page: {what[name]}", spread(middles), "ms", at_most=bounds[0])
        note = f"{high} of 100 took at most this"
        result.add(f"page: {what[name]}, slow", spread(highs), "ms", at_most=bounds[1], note=note)
    result.add("page: playing at 60/s", spread(rates), "frames/s")
    result.add("page: playing at 60/s, late frames", spread(late), "%", at_most=1)
    note = f"after {done / 1e9:.1f} GB of frames"
    result.add("server: memory", now, "MB", at_most=150, note=note)
    result.add("server: memory, most", most, "MB", note=note)


def measure_writer(result: Result, scale: Scale, browser, path: Path) -> None:
    """What a page that follows a writer costs it, in turns, and when it sees a step."""
    command = [sys.executable, "-c", WRITE, str(path)]
    writer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def write_for(seconds: float) -> float:
        writer.stdin.write(f"{seconds}\n")
        writer.stdin.flush()
        return float(writer.stdout.readline())

    write_for(0.2)
    process, url = serve(path, "--episode", 0)
    try:
        page = browser.new_page()
        page.goto(url)
        page.locator("canvas.frame[data-step]").wait_for()
        page.keyboard.press("End")
        page.keyboard.press("l")
        seen = []
        for _ in range(5):
            write_for(0.05)
            begin = time.perf_counter()
            with mmreplay.open(path) as store:
                newest = store.episodes["length"][-1]  # of the one that runs
            page.locator(f'canvas.frame[data-step="{newest}"]').wait_for()
            seen.append(time.perf_counter() - begin)
        result.add("writer: until its step is in the page", spread(seen), "s", at_most=2)
        ratios = []
        for _ in range(scale.view_pairs):
            watched = write_for(WATCHED_S)
            page.goto("about:blank")
            alone = write_for(WATCHED_S)
            ratios.append(watched / alone)
            page.goto(url)
            page.locator("canvas.frame[data-step]").wait_for()
            page.keyboard.press("l")
            time.sleep(2)  # what it takes to open a page is no part of this
        result.add("writer: speed, watched by alone", spread(ratios), "times", at_least=0.98)
    finally:
        writer.kill()
        writer.communicate()
        process.kill()
        process.communicate()
