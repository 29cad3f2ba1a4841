"""A recording is watched while it is written: through a kill, a resume, evictions and a close."""

import os
import signal
import subprocess
import sys

import numpy as np

import mmreplay
from mmreplay import Field
from tests.support.viewed import FRAME, frame_of, play, record_pictures

WRITE = """
import sys
from pathlib import Path
import mmreplay
from mmreplay import Field
from tests.support.viewed import FRAME, frame_of
path, first, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
writer = mmreplay.create(path, FRAME, Field((), "int64"), flush_s=0, append=True)
writer.reset(frame_of(FRAME, first))
for step in range(steps):
    writer.step(step % 4, 1.0, frame_of(FRAME, first + step + 1))
print("written", flush=True)
sys.stdin.read()
"""


def write(path, first, steps):
    """A process that writes some steps of an episode, and then waits to be killed."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITE, path, str(first), str(steps)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "written\n"
    return process


def kill(process):
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()


def follow(page):
    page.page.get_by_role("button", name="Stay at the newest step (l)").click()


def test_each_step_appears_and_the_newest_is_followed(tmp_path, look):
    writer = record_pictures(tmp_path / "s.zarr", episodes=[(3, "")], close=False)
    page = look(tmp_path / "s.zarr")
    page.sees("live")
    page.sees("1 episode")
    page.press("Enter")
    page.at(0)
    follow(page)
    page.at(3)
    for step in range(3, 8):
        frame = frame_of(FRAME, 500 + step)
        writer.step(1, 0.0, frame)
        page.at(step + 1)
        assert np.array_equal(page.frame()[..., 0], frame)
    writer.step(1, 0.0, frame_of(FRAME, 600), True)
    page.sees("terminated")
    writer.reset(frame_of(FRAME, 700))
    writer.step(1, 0.0, frame_of(FRAME, 701))
    page.at(1)  # of the next episode
    assert np.array_equal(page.frame()[..., 0], frame_of(FRAME, 701))
    assert page.page.url.endswith("#/0/9/1")
    writer.close()
    page.press("Escape")
    page.sees("closed")
    page.sees("2 episodes")


def test_the_newest_is_followed_though_the_one_shown_was_evicted(tmp_path, look):
    frame = Field((6, 5), "uint8", "raw", chunk=8)
    path = tmp_path / "s.zarr"
    writer = record_pictures(path, frame=frame, episodes=[(6, "")], capacity=30, close=False)
    page = look(path, place="#/0/0/2").at(2)
    follow(page)
    page.at(6)
    writer.step(0, 0.0, frame_of(frame, 800), True)
    for _ in range(20):
        play(writer, frame, 5, "terminated", seed=9000)
    writer.reset(frame_of(frame, 9100))
    writer.step(0, 0.0, frame_of(frame, 9101))
    page.at(1)  # of the newest episode
    assert np.array_equal(page.frame()[..., 0], frame_of(frame, 9101))


def test_priorities_that_change_are_shown_as_they_are(tmp_path, look):
    picture = np.zeros(FRAME.shape, np.uint8)
    with mmreplay.PrioritizedReplayBuffer(
        tmp_path / "s.zarr", capacity=1000, frame=FRAME, action=Field((), "int64"), flush_s=0
    ) as buffer:
        buffer.reset(picture)
        for _ in range(9):
            buffer.step(0, 0.0, picture)
        buffer.update_priorities(buffer.ids, np.full(9, 3.0))
        page = look(tmp_path / "s.zarr", place="#/0/0/2").at(2)
        page.page.locator("aside dd").get_by_text("3", exact=True).wait_for()
        buffer.update_priorities(buffer.ids, np.full(9, 77.0))
        buffer.step(0, 0.0, picture)
        page.page.locator("aside dd").get_by_text("77", exact=True).wait_for()


def test_through_a_kill_a_resume_and_a_close(tmp_path, look):
    path = tmp_path / "s.zarr"
    process = write(path, 0, 70)
    page = look(path, place="#/0/0/70").at(70)
    page.sees("open")
    kill(process)
    page.sees("truncated")
    assert np.array_equal(page.frame()[..., 0], frame_of(FRAME, 70))
    page.press("Escape")
    page.sees("crashed")
    process = write(path, 1000, 5)
    page.sees("live")
    page.sees("2 episodes")
    page.press("ArrowDown", "Enter")
    follow(page)  # it may have seen the first of the steps only
    page.at(5)
    assert np.array_equal(page.frame()[..., 0], frame_of(FRAME, 1005))
    kill(process)
    mmreplay.repair(path)
    page.press("Escape")
    page.sees("closed")
    page.press("Enter")
    page.at(0)
    assert np.array_equal(page.frame()[..., 0], frame_of(FRAME, 1000))


def test_an_evicted_episode_says_so_and_others_go_on(tmp_path, look):
    frame = Field((6, 5), "uint8", "raw", chunk=8)
    episodes = [(6, "terminated")] * 20
    writer = record_pictures(
        tmp_path / "s.zarr", frame=frame, episodes=episodes, capacity=30, close=False
    )
    with mmreplay.open(tmp_path / "s.zarr") as store:
        oldest = int(store.episodes["id"][0])
    page = look(tmp_path / "s.zarr", place=f"#/0/{oldest}/2").at(2)
    for _ in range(6):
        play(writer, frame, 6, "terminated", seed=9000)
    page.sees("was evicted meanwhile")
    page.press("Escape")
    page.page.locator(".rows .row").first.wait_for()
    page.page.evaluate(f"() => {{ location.hash = '#/0/{oldest}/0' }}")
    page.sees("was evicted: the capacity")
    page.press("Escape", "End", "Enter")
    page.at(0)
    assert np.array_equal(page.frame()[..., 0], frame_of(frame, 9000))
