"""An episode's frames and numbers, as `Store.trajectory` has them."""

import numpy as np
import pytest

import mmreplay
from mmreplay import EmptyBufferError, Field, InvalidIdError, SchemaError
from mmreplay.reading.info import action_names
from mmreplay.rendering import episode
from mmreplay.rendering.episode import Episode


@pytest.mark.parametrize("name", ["one.zarr", "two.zarr"])
@pytest.mark.parametrize("number", [0, -1])
def test_frames_and_numbers_are_those_of_the_trajectory(games, monkeypatch, name, number):
    monkeypatch.setattr(episode, "_BLOCK", 7)
    with mmreplay.open(games / name) as store:
        expected, shown = store.trajectory(number), Episode(store, number)
        moments = list(shown.moments(range(shown.length + 1)))
        assert [one.number for one in moments] == [*range(len(expected) + 1)]
        assert np.array_equal([one.image for one in moments], expected.observation)
        assert np.array_equal(shown.reward, expected.reward)
        assert np.array_equal(shown.action, expected.action)
        assert shown.number == number % len(store.episodes)
        some = [0, 3, len(expected)]
        chosen = np.array([one.image for one in shown.moments(some)])
        assert np.array_equal(chosen, expected.observation[some])


def test_actions_are_called_as_the_game_does(games):
    with mmreplay.open(games / "two.zarr") as store:
        shown = Episode(store, 0)
        names = ["NOOP", "FIRE", "RIGHT", "LEFT"]
        assert action_names(store.live) == names
        assert shown.action_text(0) == names[shown.action[0]]


def test_an_action_that_is_a_vector_is_shown_in_numbers(dicts):
    with mmreplay.open(dicts.path) as store:
        assert Episode(store, 0, "rgb").action_text(2) == "2 0.5"


def test_frames_of_a_key(dicts):
    with mmreplay.open(dicts.path) as store:
        shown = [one.image for one in Episode(store, 0, "rgb").moments(range(4))]
        assert np.array_equal(shown, [one["rgb"] for one in dicts.shown])
        depths = np.array([one["depth"] for one in dicts.shown])
        low, high = depths.min(), depths.max()
        expected = np.rint((depths.astype(float) - low) / (float(high) - float(low)) * 255)
        shown = [one.image for one in Episode(store, 0, "depth").moments(range(4))]
        assert np.array_equal(shown, expected)


@pytest.mark.parametrize("key", [None, "speed", "nothing"])
def test_a_key_that_is_missing_or_not_an_image(dicts, key):
    with mmreplay.open(dicts.path) as store:
        found = "" if key is None else f", found {key!r}"
        with pytest.raises(SchemaError, match=f"several images: choose 'rgb' or 'depth'{found}$"):
            Episode(store, 0, key)


def test_no_episode_yet(make):
    writer = make(frame=Field((9, 9)))
    with (
        mmreplay.open(writer.path) as store,
        pytest.raises(EmptyBufferError, match=r"has no whole episode$"),
    ):
        Episode(store, 0)


def test_an_episode_without_its_beginning_is_shown_elsewhere(make, story):
    writer = make(frame=Field((9, 9)), capacity=20)
    story.play(writer, 30)
    with (
        mmreplay.open(writer.path) as store,
        pytest.raises(EmptyBufferError, match="mmreplay view"),
    ):
        Episode(store, 0)


def test_an_episode_that_is_evicted_meanwhile(make, story):
    writer = make(frame=Field((9, 9)), capacity=40)
    story.play(writer, 30, "terminated")
    with mmreplay.open(writer.path) as store:
        shown = Episode(store, 0)
        moments = shown.moments(range(31))
        next(moments)
        for _ in range(20):
            story.play(writer, 30, "terminated")
        with pytest.raises(InvalidIdError):
            list(shown.moments(range(shown.length + 1)))
