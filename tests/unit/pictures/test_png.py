"""PNG files that another library reads."""

import io

import numpy as np
import pytest
from PIL import Image

from mmreplay.pictures.png import png


@pytest.mark.parametrize("shape", [(1, 1), (5, 7), (84, 84), (5, 7, 3), (3, 300, 3)])
def test_every_pixel_is_read_back(shape):
    image = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    with Image.open(io.BytesIO(png(image))) as read:
        read.verify()
    with Image.open(io.BytesIO(png(image))) as read:
        assert read.mode == ("L" if len(shape) == 2 else "RGB")
        assert np.array_equal(np.asarray(read), image)
