"""What is drawn around frames, and that the frames themselves are not changed."""

from types import SimpleNamespace

import numpy as np
import pytest

import mmreplay
from mmreplay.rendering.canvas import (
    CUT,
    GAIN,
    LOSS,
    MOST_TILES,
    FilmCanvas,
    chosen_steps,
    draw_sheet,
)
from mmreplay.rendering.episode import Episode, Moment


def episode_of(rewards, end="terminated", flags=None, shape=(84, 84)):
    rewards = np.array(rewards, float)
    flags = np.ones(len(rewards), bool) if flags is None else np.array(flags)
    return SimpleNamespace(
        reward=rewards,
        length=len(rewards),
        shape=shape[:2],
        end=end,
        end_text=end,
        non_terminal=flags,
        action_text=lambda number: f"A{number}",
    )


def drawn(episode, number=0, shape=(84, 84), scale=None):
    image = np.full(shape, 200, np.uint8)
    return np.asarray(FilmCanvas(episode, scale).draw(Moment(number, image)))


def test_the_frame_is_in_the_film_pixel_for_pixel(games):
    with mmreplay.open(games / "one.zarr") as store:
        shown = Episode(store, 0)
        (moment,) = shown.moments([0])
        out = np.asarray(FilmCanvas(shown, 3).draw(moment))
        assert np.array_equal(
            out[:252, :252], moment.image.repeat(3, 0).repeat(3, 1)[..., None] * [1, 1, 1]
        )


@pytest.mark.parametrize("shape", [(84, 84), (7, 9), (33, 500, 3), (5, 5), (450, 9, 3)])
@pytest.mark.parametrize("scale", [None, 1, 3])
def test_sides_are_even_whatever_the_frame(shape, scale):
    out = drawn(episode_of([1, 0], shape=shape), 1, shape, scale)
    assert (out.shape[0] % 2, out.shape[1] % 2, out.shape[2]) == (0, 0, 3)
    assert out.shape[1] >= 240


def test_rewards_and_ends_are_on_the_timeline():
    def inks(episode):
        found = drawn(episode, scale=1)[84:].reshape(-1, 3)
        return {tuple(one) for one in found.tolist()}

    assert GAIN in inks(episode_of([0, 2, 0], "open"))
    assert LOSS in inks(episode_of([0, -2, 0], "open"))
    assert LOSS in inks(episode_of([0, 0], "terminated"))
    assert CUT in inks(episode_of([0, 0], "truncated"))
    assert not {GAIN, LOSS, CUT} & inks(episode_of([0, 0], "open"))
    assert LOSS in inks(episode_of([0, 0, 0], "open", [True, False, True]))  # a lost life


def test_the_largest_reward_of_a_column_of_pixels_is_the_one_that_shows():
    rewards = np.zeros(100_000)
    rewards[40_000:40_003] = 1, -9, 2
    found = drawn(episode_of(rewards, "open"), scale=1)[84:]
    assert (found == LOSS).all(-1).any()
    assert not (found == GAIN).all(-1).any()


def test_text_that_is_too_long_or_cannot_be_printed():
    episode = episode_of([0])
    episode.action_text = lambda _: "\x1b[1m\ud800" * 999
    drawn(episode)


# ---------------------------------------------------------------- contact sheets


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


def test_every_frame_is_on_the_sheet_as_it_is(games):
    with mmreplay.open(games / "one.zarr") as store:
        shown = Episode(store, -1)
        numbers = chosen_steps(shown.reward)
        page = np.asarray(draw_sheet(shown, "T" * 999, 1, numbers, shown.moments(numbers)))
        frames = store.trajectory(-1).observation[numbers]
    for place, frame in enumerate(frames):
        row, column = divmod(place, 6)
        y, x = 50 + row * (84 + 26), 8 + column * (84 + 8)
        assert np.array_equal(page[y : y + 84, x : x + 84], np.stack([frame] * 3, -1))
