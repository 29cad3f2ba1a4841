"""PNG files that another library reads."""

import io

import numpy as np
import pytest
from PIL import Image

from mmreplay.pictures import png, strip_png


@pytest.mark.parametrize("shape", [(1, 1), (5, 7), (84, 84), (5, 7, 3), (3, 300, 3)])
def test_every_pixel_is_read_back(shape):
    image = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    with Image.open(io.BytesIO(png(image))) as read:
        read.verify()
    with Image.open(io.BytesIO(png(image))) as read:
        assert read.mode == ("L" if len(shape) == 2 else "RGB")
        assert np.array_equal(np.asarray(read), image)


def test_a_strip_shows_eight_frames_of_the_first_key_with_pictures():
    screens = np.random.default_rng(0).integers(0, 256, (20, 84, 84), np.uint8)
    frames = {"speed": np.zeros((20, 2)), "screen": screens}
    shown = np.asarray(Image.open(io.BytesIO(strip_png(frames))))
    assert shown.shape == (84, 8 * 86 - 2)
    assert np.array_equal(shown[:, :84], screens[0])
    assert np.array_equal(shown[:, -84:], screens[-1])
    large = np.zeros((2, 200, 300, 3))
    assert np.asarray(Image.open(io.BytesIO(strip_png(large)))).shape == (50, 2 * 77 - 2, 3)
    assert strip_png(screens[:0]) is None
    assert strip_png(np.zeros((3, 4))) is None
