"""Episodes of real games as films and contact sheets."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image, ImageSequence

import mmreplay
from mmreplay import CorruptStoreError, SchemaError
from mmreplay.rendering.render import render


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch, quick_disk):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def short(make):
    """Three episodes of five steps, frames of 9 x 9; the last one runs."""
    writer = make(frame=mmreplay.Field((9, 9)))
    for number in range(3):
        writer.reset(np.full((9, 9), 40 * number, np.uint8))
        for t in range(1, 6):
            frame = np.full((9, 9), 40 * number + t, np.uint8)
            writer.step(0, float(t == 3), frame, t == 5 and number < 2)
    return writer


def frames_of(path, scale=1, side=9):
    with Image.open(path) as film:
        shown = [np.asarray(one.convert("RGB")) for one in ImageSequence.Iterator(film)]
    left = (shown[0].shape[1] - side * scale) // 2
    return [one[: side * scale, left : left + side * scale, 0] for one in shown]


def test_a_film_of_a_game_has_every_frame(games):
    made = render(games / "two.zarr", "x.gif", 0, scale=1)
    with mmreplay.open(games / "two.zarr") as store:
        expected = store.trajectory(0)
    assert (made.frames, made.steps, made.episode) == (len(expected) + 1, len(expected), 0)
    assert np.array_equal(frames_of("x.gif", side=84), expected.observation)


@pytest.mark.parametrize(("number", "end"), [(0, "terminated"), (1, "terminated"), (-1, "open")])
def test_each_episode_also_of_a_live_store(short, number, end):
    made = render(short.path, "x.gif", number, scale=2)
    first = number % 3 * 40
    assert [one[0, 0] for one in frames_of("x.gif", 2)] == [*range(first, first + 6)]
    assert (made.episode, made.end, made.total, made.frames) == (number % 3, end, 1.0, 6)


@pytest.mark.parametrize("out", ["x.gif", "x.mp4", "x.png"])
def test_an_interrupt_leaves_no_file(short, tmp_path, out):
    def interrupt(done, total):
        if done == 3:
            raise KeyboardInterrupt

    before = {one.name for one in tmp_path.iterdir()}
    with pytest.raises(KeyboardInterrupt):
        render(short.path, out, progress=interrupt)
    assert {one.name for one in tmp_path.iterdir()} == before


@pytest.mark.parametrize("out", ["x.gif", "x.mp4", "x.png"])
def test_a_damaged_chunk_is_an_error_and_no_half_film(games, tmp_path, out):
    shutil.copytree(games / "one.zarr", tmp_path / "d.zarr")
    (shard,) = (tmp_path / "d.zarr" / "frames").glob("c.0*")
    data = bytearray(shard.read_bytes())
    for place in range(200, len(data) - 600, 50):
        data[place] ^= 0xFF
    shard.write_bytes(data)
    with pytest.raises(CorruptStoreError, match="frames"):
        render("d.zarr", out, 0)
    assert {one.name for one in tmp_path.iterdir()} == {"d.zarr"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fps": 0}, "fps: expected a whole number, 1 to 50; found 0"),
        ({"fps": 51}, "1 to 50"),
        ({"fps": 2.5}, "fps"),
        ({"scale": 0}, "scale: expected a whole number, 1 to 64"),
        ({"episode": 3}, "from 0 to 2, or from -1"),
        ({"episode": "1"}, "episode: expected a whole number"),
        ({"key": "frame"}, "not dicts"),
    ],
)
def test_settings_out_of_range(short, tmp_path, settings, message):
    before = {one.name for one in tmp_path.iterdir()}
    with pytest.raises(SchemaError, match=message):
        render(short.path, "x.gif", **settings)
    assert {one.name for one in tmp_path.iterdir()} == before


def test_a_missing_library_is_told_with_the_command_that_helps():
    code = """
import sys
import mmreplay
for missing, name in (("av", "render"), ("PIL", "render"), ("matplotlib", "plot")):
    sys.modules[missing] = None
    try:
        getattr(mmreplay, name)
    except mmreplay.MissingExtraError as error:
        print(str(error).partition(": ")[2])
    del sys.modules[missing]
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == 'pip install "mmreplay[pictures]"\n' * 3


@pytest.mark.deep(only=True)
def test_memory_does_not_grow_with_the_episode(make, tmp_path):
    """A film of 240 MB of frames, drawn with the memory of one of 48 MB."""
    code = """
import resource, sys
import mmreplay
mmreplay.render(sys.argv[1], sys.argv[2], 0, scale=1)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
    peaks = []
    for n_steps in (100, 500):
        writer = make(f"{n_steps}.zarr", frame=mmreplay.Field((400, 400, 3), codec="lz4"))
        frame = np.zeros((400, 400, 3), np.uint8)
        writer.reset(frame)
        for t in range(n_steps):
            frame[t % 400] = t % 256
            writer.step(0, 0.0, frame)
        writer.close()
        arguments = [writer.path, tmp_path / f"{n_steps}.gif"]
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        )
        assert done.returncode == 0, done.stderr
        peaks.append(int(done.stdout))
    assert peaks[1] < peaks[0] + 70_000


@pytest.mark.parametrize(("name", "shape"), [("x.gif", (1025, 9)), ("x.png", (400, 400))])
def test_a_scale_that_is_too_large(make, name, shape):
    writer = make(frame=mmreplay.Field(shape))
    writer.reset(np.zeros(shape, np.uint8))
    for _ in range(60):
        writer.step(0, 0.0, np.zeros(shape, np.uint8))
    with pytest.raises(SchemaError, match=r"scale: 64 makes .* pixels, more than 16,384 per side"):
        render(writer.path, name, scale=64)
    assert not os.path.exists(name)
