"""Windows of steps, worked out by hand: three episodes in twelve rows, as in the docs."""

import dataclasses
import pickle

import numpy as np
import pytest

import mmreplay
from mmreplay import EmptyBufferError, Field, SequenceBatch


@pytest.fixture
def path(make):
    """Episodes of 3 steps (terminated), 4 (a life lost at the second) and 2 (running)."""
    writer = make(
        frame=Field((1,), "uint8", "lz4", chunk=2, shard=4),
        extras={"x": Field((), "float32")},
    )
    for frames, flags in (
        ((10, 11, 12, 13), {3: {"terminated": True}}),
        ((20, 21, 22, 23, 24), {2: {"life_lost": True}, 4: {"truncated": True}}),
        ((30, 31, 32), {}),
    ):
        for number, frame in enumerate(frames):
            value = np.array([frame], "uint8")
            if not number:
                writer.reset(value)
            else:
                step = flags.get(number, {})
                writer.step(frame, frame / 2, value, **step, x=frame * 3)
    return writer.path


@pytest.fixture
def load(path):
    opened = []

    def load(**settings):
        opened.append(mmreplay.load(path, **{"stack": None, "gamma": 0.5} | settings))
        return opened[-1]

    yield load
    for one in opened:
        one.close()


def every(data, *arguments, **changes):
    """All windows, in order."""
    [batch] = data.sequence_batches(100, *arguments, **changes, shuffle=False)
    return batch


def test_drop_takes_what_fits_into_an_episode(load):
    batch = every(load(), 2)
    assert batch.id.tolist() == [[0, 1], [1, 2], [3, 4], [4, 5], [5, 6], [7, 8]]
    assert batch.observation[..., 0].tolist()[:3] == [[10, 11], [11, 12], [20, 21]]
    assert batch.next_observation[..., 0].tolist()[:3] == [[11, 12], [12, 13], [21, 22]]
    assert batch.action.tolist()[:3] == [[11, 12], [12, 13], [21, 22]]
    assert batch.reward.tolist()[:3] == [[5.5, 6], [6, 6.5], [10.5, 11]]
    assert batch.extras["x"].tolist()[:3] == [[33, 36], [36, 39], [63, 66]]
    assert batch.non_terminal.tolist()[:3] == [[True, True], [True, False], [True, False]]
    assert batch.discount.tolist()[:3] == [[0.5, 0.5], [0.5, 0], [0.5, 0]]
    assert batch.step.tolist() == [[0, 1], [1, 2], [0, 1], [1, 2], [2, 3], [0, 1]]
    assert batch.first.tolist()[:2] == [[True, False], [False, False]]
    assert batch.mask.all()
    assert batch.weight.tolist() == [1] * 6
    assert (len(batch), batch.burn_in) == (6, 0)
    assert every(load(), 2, stride=2).id.tolist() == [[0, 1], [3, 4], [5, 6], [7, 8]]
    assert every(load(), 1, 2).id.tolist() == [[0, 1, 2], [3, 4, 5], [4, 5, 6]]


def test_pad_begins_at_any_step(load):
    batch = every(load(), 3, 1, "pad", 2)
    assert batch.burn_in == 1
    assert batch.id.tolist() == [
        [-1, 0, 1, 2],
        [1, 2, -1, -1],
        [-1, 3, 4, 5],
        [4, 5, 6, -1],
        [-1, 7, 8, -1],
    ]
    assert batch.mask.tolist() == (batch.id >= 0).tolist()
    assert batch.action.tolist()[1] == [12, 13, 0, 0]
    assert batch.reward.tolist()[1] == [6, 6.5, 0, 0]
    assert batch.discount.tolist()[3] == [0, 0.5, 0.5, 0]
    assert batch.extras["x"].tolist()[4] == [0, 93, 96, 0]
    assert batch.step.tolist()[3] == [1, 2, 3, 0]
    assert batch.first.tolist()[4] == [False, True, False, False]
    # The final observation is in the memory that the last real step shows as its next one.
    assert batch.observation[..., 0].tolist()[1] == [11, 12, 13, 0]
    assert batch.next_observation[..., 0].tolist()[1] == [12, 13, 0, 0]
    assert batch.observation[..., 0].tolist()[0] == [0, 10, 11, 12]
    assert batch.next_observation[..., 0].tolist()[0] == [10, 11, 12, 13]


@pytest.mark.parametrize("boundary", ["drop", "pad", "shift", "cross"])
def test_every_step_says_whether_and_how_its_episode_ended(load, boundary):
    """Ids 2 and 6 are last steps; that of the running episode, 8, is none."""
    for n_step in (1, 2):
        batch = every(load(n_step=n_step), 2, 0, boundary)
        for id_, terminated, truncated in zip(
            batch.id.flat, batch.terminated.flat, batch.truncated.flat, strict=True
        ):
            assert terminated == (id_ in {2, 3 - n_step})
            assert truncated == (id_ in {6, 7 - n_step})


def test_cross_goes_from_one_episode_into_the_next(load):
    batch = every(load(stack=2, n_step=2), 4, 1, "cross", 2)
    assert batch.id.tolist() == [[0, 1, 2, 3, 4], [2, 3, 4, 5, 6], [4, 5, 6, 7, 8]]
    assert batch.mask.all()
    assert batch.step.tolist()[0] == [0, 1, 2, 0, 1]
    assert batch.first.tolist()[1] == [False, True, False, False, False]
    assert batch.observation[0, ..., 0].tolist() == [
        [10, 10],
        [10, 11],
        [11, 12],
        [20, 20],
        [20, 21],
    ]
    # After two steps, or what the episode has of them: true final observations, which are copies.
    assert batch.next_observation[0, :, 1, 0].tolist() == [12, 13, 13, 22, 22]
    assert batch.reward.tolist()[0] == [5.5 + 3, 6 + 3.25, 6.5, 10.5 + 5.5, 11]
    assert batch.terminated.tolist()[0] == [False, True, True, False, False]
    assert batch.extras["x"].tolist()[0] == [33, 36, 39, 63, 66]
    with pytest.raises(EmptyBufferError, match="no environment has the 10 rows of a window"):
        load().sample_sequences(1, 10, boundary="cross")
    some = load().select(ids=[1, 2, 3, 4, 6])
    assert every(some, 2, 1, "cross").id.tolist() == [[0, 1, 2], [1, 2, 3], [2, 3, 4]]


def test_cross_masks_the_rows_in_which_an_environment_was_left_out(make):
    def frames(*values):
        return np.array(values, "uint8")[:, None]

    no = np.zeros(2, np.bool_)
    writer = make(lanes=2, frame=Field((1,)))
    writer.reset(frames(1, 101))
    writer.step([1, 1], [1, 1], frames(2, 102), [True, False], no)
    writer.step([0, 2], [0, 2], frames(0, 103), no, no, mask=[False, True])
    writer.reset(frames(9, 0), mask=[True, False])
    writer.step([3, 3], [3, 3], frames(10, 104), no, no)
    with mmreplay.load(writer.path, stack=None) as data:
        batch = every(data, 3, 0, "cross")
        assert batch.id.tolist() == [[0, -1, 4], [1, 3, 5]]
        assert batch.mask.tolist() == [[True, False, True], [True] * 3]
        assert batch.observation[..., 0].tolist() == [[1, 0, 9], [101, 102, 103]]
        assert batch.next_observation[..., 0].tolist() == [[2, 0, 10], [102, 103, 104]]
        assert batch.first.tolist() == [[True, False, True], [True, False, False]]
        assert batch.terminated.tolist() == [[True, False, False], [False] * 3]
        again = data.sample_sequences(2, 3, boundary="cross")
        for _ in range(4):
            assert data.sample_sequences(2, 3, boundary="cross", out=again) is again
            assert {*again.id[:, 1].tolist()} <= {-1, 3}
        # An environment may be left out of all rows of a window.
        one = every(data, 1, 0, "cross")
        assert one.id.tolist() == [[0], [1], [-1], [3], [4], [5]]
        assert one.observation[:, 0, 0].tolist() == [1, 101, 0, 102, 9, 103]
        assert every(data.select(ids=[0, 3, 4, 5]), 2, 0, "cross").id.tolist() == [[3, 5]]
        assert every(data.select(ids=[3, 4, 5]), 1, 1, "cross").id.tolist() == [
            [1, 3],
            [-1, 4],
            [3, 5],
        ]


def test_the_observations_of_a_window_share_their_frames(load):
    batch = load(stack=3).sample_sequences(4, 2)
    assert np.shares_memory(batch.observation, batch.next_observation)
    assert batch.observation.base.shape == (4, 2 + 3, 1)
    # Frames that stand in many places: a change in one would be one in all.
    assert not batch.observation.flags.writeable
    assert load().sample_sequences(4, 2).observation.flags.writeable


@pytest.mark.parametrize("n_step", [1, 2])
@pytest.mark.parametrize("stack", [None, 3])
@pytest.mark.parametrize("stack_axis", [0, -1])
def test_out_is_filled_again(load, stack, n_step, stack_axis):
    given = {"stack": stack, "n_step": n_step, "stack_axis": stack_axis}
    data, twin = load(**given), load(**given)
    batch = data.sample_sequences(3, 2, 1, "pad")
    twin.sample_sequences(3, 2, 1, "pad")
    for _ in range(4):
        fresh = twin.sample_sequences(3, 2, 1, "pad")
        assert data.sample_sequences(3, 2, 1, "pad", out=batch) is batch
        assert pickle.dumps(batch) == pickle.dumps(fresh)
        assert batch.extras["x"].tolist() == fresh.extras["x"].tolist()


def test_a_batch_has_the_fields_of_the_interface(load):
    assert [one.name for one in dataclasses.fields(SequenceBatch)] == [
        "observation", "next_observation", "action", "reward", "discount", "non_terminal",
        "extras", "mask", "step", "first", "id", "weight", "burn_in", "terminated", "truncated",
    ]  # fmt: skip
    batch = load().sample_sequences(2, 3)
    dtypes = {"mask": "bool", "step": "int64", "first": "bool", "id": "int64", "weight": "float32"}
    for name, dtype in dtypes.items():
        assert getattr(batch, name).dtype == dtype, name
    with pytest.raises(dataclasses.FrozenInstanceError):
        batch.mask = batch.first  # type: ignore[misc]


# ---------------------------------------------------------------- the calls


def test_an_episode_that_is_too_short_is_named(load, path):
    for call in ("sample_sequences", "sequence_batches", "sample_portions"):
        with pytest.raises(EmptyBufferError, match="has the 5 steps of a window") as caught:
            getattr(load(), call)(3, 5)
        assert str(path) in str(caught.value)
