"""Which frames are on a contact sheet, and where."""

import numpy as np
import pytest
from PIL import Image

import mmreplay
from mmreplay.rendering.episode import Episode
from mmreplay.rendering.sheet import MOST_TILES, chosen_steps, write_sheet


@pytest.mark.parametrize("length", [1, 5, 46, 47])
def test_of_a_short_episode_all_frames(length):
    assert chosen_steps(np.zeros(length)) == [*range(length + 1)]


@pytest.mark.parametrize("length", [48, 49, 100, 27_000])
def test_of_a_long_one_the_first_the_last_and_even_parts_between(length):
    steps = chosen_steps(np.zeros(length))
    assert len(steps) == len(set(steps)) == MOST_TILES
    assert (steps[0], steps[-1], steps) == (0, length, sorted(steps))
    assert max(np.diff(steps)) <= 2 * length / (MOST_TILES - 2) + 1


def test_the_largest_rewards_are_among_them():
    rewards = np.zeros(1000)
    rewards[[3, 4, 500, 999]] = [1, -5, 2, np.nan]
    steps = chosen_steps(rewards)
    assert {4, 500} < set(steps)
    assert 3 not in steps


def test_every_frame_is_on_the_sheet_as_it_is(games, tmp_path):
    with mmreplay.open(games / "one.zarr") as store:
        shown = Episode(store, -1)
        numbers = chosen_steps(shown.reward)
        size = write_sheet(tmp_path / "x.png", shown, "T" * 999, 1, shown.moments(numbers))
        frames = store.trajectory(-1).observation[numbers]
    with Image.open(tmp_path / "x.png") as found:
        page = np.asarray(found)
    assert (page.shape, found.format) == ((size[1], size[0], 3), "PNG")
    for place, frame in enumerate(frames):
        row, column = divmod(place, 6)
        y, x = 56 + row * (84 + 22), 8 + column * (84 + 8)
        assert np.array_equal(page[y : y + 84, x : x + 84], np.stack([frame] * 3, -1))
