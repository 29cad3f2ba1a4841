"""States as frames: pixels keep their values, and stacks that cannot be rebuilt are refused."""

import numpy as np
import pytest

from mmreplay.compat import nnabla_rl
from tests.support.atari_games import game


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_every_pixel_value_comes_back_as_it_was(experiences, dtype):
    pixels = np.arange(256, dtype=np.uint8).reshape(16, 16)
    screen = (pixels / 255).astype(dtype)
    with nnabla_rl.MemoryEfficientAtariBuffer(3) as buffer:
        buffer.append((screen, 0, 0.0, 1.0, screen, {}))
        assert experiences.same(buffer[0][0][-1], pixels.astype(np.float32) / np.float32(255))


def test_screens_that_are_no_shifted_stacks_are_refused(experiences):
    steps, _ = game(0, 6, "terminated")
    other, _ = game(1, 6, "terminated")
    with nnabla_rl.MemoryEfficientAtariBuffer(10) as buffer:
        buffer.append_all(steps[:3])
        with pytest.raises(ValueError, match="begins an episode"):
            buffer.append(other[4])
        with pytest.raises(ValueError, match="found other screens"):
            buffer.append((*steps[3][:4], other[3][4], {}))
        with pytest.raises(ValueError, match=r"in \[0, 1\]"):
            bright = np.concatenate((steps[3][4][:3], steps[3][4][3:] + 1))
            buffer.append((steps[3][0], 0, 0.0, 1.0, bright, {}))
        with pytest.raises(ValueError, match="found other screens"):
            buffer.append((steps[3][0], 0, 0.0, 1.0, steps[3][4][-1], {}))
        with pytest.raises(ValueError, match="expected dtype uint8, found int64"):
            buffer.append((np.zeros((6, 5), int), 0, 0.0, 1.0, np.zeros((6, 5), int), {}))
        with pytest.raises(ValueError, match="one screen"):
            buffer.append((np.zeros(84), 0, 0.0, 1.0, np.zeros(84), {}))
        assert len(buffer) == 3
        buffer.append_all(steps[3:])  # and nothing of it was stored
        assert len(buffer) == 6
        assert experiences.same(buffer[5][4], steps[5][4])
