"""Selections and splits: what is refused, and what is around them. Draws: tests/property."""

import pickle
import shutil

import numpy as np
import pytest

import mmreplay
from mmreplay import EmptyBufferError, Field, InvalidIdError, SchemaError

ACTION = Field((), "int64")


@pytest.fixture
def path(tmp_path, quick_disk):
    """Episodes of 3, 5, 2 and 4 steps; returns are their lengths."""
    path = tmp_path / "store.zarr"
    with mmreplay.create(path, Field((1,)), ACTION) as writer:
        play(writer, (3, 5, 2, 4))
    return path


def play(writer, lengths):
    for length in lengths:
        writer.reset(np.zeros(1, "uint8"))
        for t in range(length):
            writer.step(t, 1.0, np.full(1, t + 1, "uint8"), terminated=t == length - 1)


@pytest.fixture
def data(path):
    with mmreplay.load(path, stack=None) as loaded:
        yield loaded


def test_episodes_tell_their_environment(tmp_path, quick_disk):
    with mmreplay.create(tmp_path / "two.zarr", Field(()), ACTION, lanes=2) as writer:
        writer.reset(np.zeros(2, "uint8"))
        writer.step([0, 0], [1.0, 2.0], np.ones(2, "uint8"), [True, False], [False, True])
    path = str(tmp_path / "two.zarr")
    shutil.copytree(path, tmp_path / "twin.zarr")
    with mmreplay.load([path, tmp_path / "twin.zarr"], stack=None) as data:
        assert data.episodes["env"].tolist() == [0, 1, 2, 3]
        of_one = data.select(episodes=lambda episodes: episodes["env"] == 2)
        assert of_one.ids.tolist() == [1 << 40]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "expected episodes= or ids="),
        ({"episodes": [True]}, "a bool for each of 4 episodes"),
        ({"episodes": [4]}, "expected episodes 0 to 3, found number 4"),
        ({"episodes": ["a"]}, "episodes: expected whole numbers"),
        ({"ids": [True]}, "a bool for each of 14 ids"),
        ({"ids": [1.5]}, "ids: expected integers"),
    ],
)
def test_what_selects_nothing_that_there_is_is_refused(data, given, words):
    with pytest.raises(SchemaError, match=words):
        data.select(**given)


def test_an_id_that_cannot_be_sampled_is_named(data):
    with pytest.raises(InvalidIdError, match="id 14 "):
        data.select(ids=[0, 14])
    with pytest.raises(InvalidIdError, match=r"id 4 .*selected before"):
        data.select(episodes=[0]).select(ids=[0, 4])


@pytest.mark.parametrize("fraction", [0, 1, 0.0, 1.0, -0.5, float("nan"), "0.5", None, True])
def test_a_fraction_is_more_than_none_and_less_than_all(data, fraction):
    with pytest.raises(SchemaError, match="fraction"):
        data.split(fraction)


def test_an_epoch_goes_on_with_the_same_selection_only(data):
    best = data.select(episodes=[1, 3])
    batches = best.batches(2)
    next(batches)
    state = best.state_dict()
    rest = [batch.id.tolist() for batch in batches]
    again = data.select(episodes=[1, 3])
    again.load_state_dict(state)
    assert [batch.id.tolist() for batch in again.batches(2)] == rest
    for other in (data, data.select(episodes=[0, 1, 2])):
        other.load_state_dict(state)
        with pytest.raises(SchemaError, match="selection: expected"):
            other.batches(2)


def test_a_selection_does_not_close_the_store(data):
    with data.select(episodes=[1]) as best:
        best.sample(1)
    assert len(data.sample(2)) == 2
    assert len(best.sample(2)) == 2
    data.close()
    with pytest.raises(mmreplay.ClosedError):
        best.sample(2)


@pytest.mark.parametrize("kind", [mmreplay.ReplayBuffer, mmreplay.PrioritizedReplayBuffer])
def test_of_a_live_buffer_a_selection_is_what_there_was(tmp_path, quick_disk, kind):
    with kind(tmp_path / "b.zarr", 20, stack=None, frame=Field((1,)), action=ACTION) as buffer:
        play(buffer, (3, 5))
        buffer.reset(np.zeros(1, "uint8"))
        buffer.step(0, 1.0, np.zeros(1, "uint8"))
        state = buffer.generator.bit_generator.state
        last = buffer.select(episodes=[-1, 0])
        assert buffer.generator.bit_generator.state == state
        assert last.ids.tolist() == [0, 1, 2, 8]
        assert len(last.episodes) == 2
        buffer.step(0, 1.0, np.zeros(1, "uint8"))
        if kind is mmreplay.PrioritizedReplayBuffer:
            buffer.update_priorities([0, 1, 8], [100.0, 0.0, 0.0])
        assert set(last.sample(100).id.tolist()) == {0, 1, 2, 8}  # uniform
        assert last.episodes["id"].tolist() == [0]  # the other one has gone on
        play(buffer, (17,))
        assert last.ids.tolist() == [8]
        play(buffer, (20,))
        assert len(last) == 0
        for draw in (
            lambda: last.sample(1),
            lambda: last.sample(1, replace=False),
            lambda: last.sample(2, group=2),
            lambda: last.batches(1),
            lambda: last.sample_sequences(1, 1),
            lambda: last.sample_trajectories(1),
        ):
            with pytest.raises(
                EmptyBufferError, match=r"b\.zarr: all selected .* evicted; select again"
            ):
                draw()
        with pytest.raises(EmptyBufferError, match="nothing is selected"):
            last.select(ids=lambda ids: ids)


def test_another_store_at_the_path_is_refused(path, data, tmp_path):
    best = data.select(episodes=[1])
    state = pickle.dumps(best)
    shutil.move(path, tmp_path / "aside.zarr")
    with mmreplay.create(path, Field((1,)), ACTION) as writer:
        play(writer, (9, 9))
    data.refresh()
    for call in (
        lambda: best.sample(2),
        lambda: len(best),
        lambda: best.ids,
        lambda: best.episodes,
        lambda: best.trajectory(0),
        lambda: best.select(episodes=[0]),
        lambda: best.select(ids=lambda ids: ids),
    ):
        with pytest.raises(SchemaError, match="another at this path"):
            call()
    with pytest.raises(SchemaError, match="another at this path"):
        len(pickle.loads(state))
