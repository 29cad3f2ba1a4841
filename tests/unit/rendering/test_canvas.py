"""What is drawn around frames, and that the frames themselves are not changed."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

import mmreplay
from mmreplay.rendering import canvas
from mmreplay.rendering.canvas import FilmCanvas, fitting, put_text, reward_ink, reward_text
from mmreplay.rendering.episode import Episode, Moment


def episode_of(rewards, end="terminated", flags=None):
    rewards = np.array(rewards, float)
    flags = np.ones(len(rewards), bool) if flags is None else np.array(flags)
    return SimpleNamespace(
        reward=rewards,
        length=len(rewards),
        end=end,
        non_terminal=flags,
        action_text=lambda number: f"A{number}",
    )


def drawn(episode, number=0, shape=(84, 84), scale=None, value=200):
    image = np.full(shape, value, np.uint8)
    return FilmCanvas(episode, shape, scale).draw(Moment(number, image))


def test_the_frame_is_in_the_film_pixel_for_pixel(games):
    with mmreplay.open(games / "one.zarr") as store:
        shown = Episode(store, 0)
        moment = next(shown.moments())
        out = FilmCanvas(shown, moment.image.shape, 3).draw(moment)
        assert np.array_equal(
            out[:252, :252], moment.image.repeat(3, 0).repeat(3, 1)[..., None] * [1, 1, 1]
        )


@pytest.mark.parametrize("shape", [(84, 84), (7, 9), (33, 500, 3), (5, 5), (450, 9, 3)])
@pytest.mark.parametrize("scale", [None, 1, 3])
def test_sides_are_even_whatever_the_frame(shape, scale):
    out = drawn(episode_of([1, 0]), 1, shape, scale)
    assert (out.shape[0] % 2, out.shape[1] % 2, out.shape[2]) == (0, 0, 3)
    assert out.shape[1] >= 240


def test_colour_frames_keep_their_colours():
    image = np.random.default_rng(0).integers(0, 256, (250, 260, 3), np.uint8)
    out = FilmCanvas(episode_of([0]), image.shape, 1).draw(Moment(0, image))
    assert np.array_equal(out[:250, :260], image)


def test_rewards_and_ends_are_on_the_timeline():
    def inks(episode):
        found = drawn(episode, scale=1)[84:].reshape(-1, 3)
        return {tuple(one) for one in found.tolist()}

    gain, loss, cut = reward_ink(1), reward_ink(-1), (244, 178, 62)
    assert gain in inks(episode_of([0, 2, 0], "open"))
    assert gain not in inks(episode_of([0, 0, 0], "open"))
    assert loss in inks(episode_of([0, -2, 0], "open"))
    assert loss in inks(episode_of([0, 0], "terminated"))
    assert cut in inks(episode_of([0, 0], "truncated"))
    assert not {gain, loss, cut} & inks(episode_of([0, 0], "open"))
    assert loss in inks(episode_of([0, 0, 0], "open", [True, False, True]))  # a life


def test_the_larger_reward_of_two_in_one_column_is_shown():
    heights = canvas._reward_heights(np.array([1.0, -4.0, 0, 0, 2.0, np.nan]), 3, 8)
    assert heights.tolist() == [-8, 0, 4]
    assert not canvas._reward_heights(np.zeros(5), 9, 8).any()


def test_each_step_is_told_and_the_return_so_far():
    episode = episode_of([1.0, 1.0, 1.0])
    images = [drawn(episode, number) for number in range(4)]
    assert all((a != b).any() for a, b in itertools.pairwise(images))


def test_text():
    assert reward_text(1.0) == "+1"
    assert reward_text(-0.25) == "-0.25"
    assert reward_text(0.0) == ""
    assert fitting("short", 200) == "short"
    assert fitting("x" * 9_999, 80).endswith("…")
    assert fitting("abc", 0) == ""
    out = canvas.blank(40, 20)
    assert put_text(out, "\x1b[1m\ud800", 0, 0) > 0
