"""Films as other programs read them."""

import av
import numpy as np
import pytest
from PIL import Image, ImageSequence

from mmreplay import DiskFullError
from mmreplay.rendering.render import write_film


def film(path, images, fps=30):
    write_film(path, map(Image.fromarray, images), images[0].shape[1::-1], fps)


def read(path):
    with Image.open(path) as found:
        return [np.asarray(one.convert("RGB")) for one in ImageSequence.Iterator(found)]


def screens(n_colours, n=6, shape=(40, 64)):
    rng = np.random.default_rng(n_colours)
    colours = rng.integers(0, 256, (n_colours, 3), np.uint8)
    return [colours[rng.integers(0, n_colours, shape)] for _ in range(n)]


@pytest.mark.parametrize("n_colours", [1, 2, 100, 255])
def test_a_gif_has_every_pixel(tmp_path, n_colours):
    images = screens(n_colours)
    film(tmp_path / "x.gif", images)
    if n_colours == 1:  # nothing changes, and readers may take that for one frame
        images = images[:1]
    assert np.array_equal(read(tmp_path / "x.gif")[: len(images)], images)


def test_a_gif_has_what_moves_and_what_comes_back(tmp_path):
    images = []
    for place in (0, 10, 20, 10, 0):
        image = np.zeros((40, 64, 3), np.uint8)
        image[place : place + 5, place : place + 9] = place + 1, 0, 7
        images.append(image)
    film(tmp_path / "x.gif", images)
    assert np.array_equal(read(tmp_path / "x.gif"), images)


@pytest.mark.parametrize("fps", [1, 7, 30, 50])
def test_a_gif_keeps_time_and_shows_its_last_frame_for_a_second(tmp_path, fps):
    film(tmp_path / "x.gif", screens(5, 8), fps)
    with Image.open(tmp_path / "x.gif") as found:
        times = [one.info["duration"] for one in ImageSequence.Iterator(found)]
        assert found.info["loop"] == 0
    assert sum(times[:-1]) == pytest.approx(7_000 / fps, abs=10)
    assert times[-1] == 1000


def test_an_mp4_has_all_frames_nearly_as_they_were(tmp_path):
    images = [np.full((40, 64, 3), 20 * number, np.uint8) for number in range(9)]
    film(tmp_path / "x.mp4", images, fps=10)
    with av.open(tmp_path / "x.mp4") as found:
        frames = [(one.time, one.to_ndarray(format="rgb24")) for one in found.decode(video=0)]
    assert [time for time, _ in frames] == pytest.approx([n / 10 for n in range(9)])
    for (_, frame), image in zip(frames, images, strict=True):
        assert np.abs(frame.astype(int) - image).max() < 6


@pytest.mark.parametrize("suffix", [".gif", ".mp4"])
def test_a_full_disk(suffix, tmp_path):
    (tmp_path / f"x{suffix}").symlink_to("/dev/full")
    with pytest.raises(DiskFullError, match="no room on the disk for writing a film"):
        film(tmp_path / f"x{suffix}", screens(255, 60))
