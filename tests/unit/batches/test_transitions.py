"""Stacks and n-step returns, worked out by hand."""

import numpy as np
import pytest

from mmreplay.format.layout import MAX_STACK
from mmreplay.ids import LANE_SHIFT
from tests.support.oracle.handmade_rows import (
    BEFORE,
    IDS,
    OBSERVATIONS,
    SCALARS,
    Column,
    Frames,
    Rows,
    gathered,
    index_of,
)

# ---------------------------------------------------------------- stacks

PADDED = {
    "reset": {
        0: ([10, 10, 10], [10, 10, 11]),
        1: ([10, 10, 11], [10, 11, 12]),
        2: ([10, 11, 12], [11, 12, 13]),
        3: ([20, 20, 20], [20, 20, 21]),
        4: ([20, 20, 21], [20, 21, 22]),
        5: ([20, 21, 22], [21, 22, 23]),
        6: ([21, 22, 23], [22, 23, 24]),
        7: ([30, 30, 30], [30, 30, 31]),
        8: ([30, 30, 31], [30, 31, 32]),
    },
    "zero": {
        0: ([0, 0, 10], [0, 10, 11]),
        1: ([0, 10, 11], [10, 11, 12]),
        2: ([10, 11, 12], [11, 12, 13]),
        3: ([0, 0, 20], [0, 20, 21]),
        4: ([0, 20, 21], [20, 21, 22]),
        5: ([20, 21, 22], [21, 22, 23]),
        6: ([21, 22, 23], [22, 23, 24]),
        7: ([0, 0, 30], [0, 30, 31]),
        8: ([0, 30, 31], [30, 31, 32]),
    },
}


@pytest.mark.parametrize("padding", PADDED)
@pytest.mark.parametrize("stack_axis", [0, -1])
def test_a_stack_is_padded_in_front_of_its_episode_and_life_losses_do_not_end_it(
    padding, stack_axis
):
    # Of scalars both axes are the same.
    batch = gathered(IDS, stack=3, padding=padding, stack_axis=stack_axis)
    for row, seen, following in zip(IDS, batch.observation, batch.next_observation, strict=True):
        assert (seen.tolist(), following.tolist()) == PADDED[padding][row]


@pytest.mark.parametrize("padding", PADDED)
def test_one_transition_alone_is_the_same_as_among_others(padding):
    for row in IDS:
        batch = gathered([row], stack=3, padding=padding)
        assert (batch.observation[0].tolist(), batch.next_observation[0].tolist()) == PADDED[
            padding
        ][row]


def test_the_new_axis_stands_in_front_or_last():
    planes = Frames(np.arange(12 * 6).reshape(12, 2, 3), "int16")
    front = gathered([5], planes, stack=2)
    last = gathered([5], planes, stack=2, stack_axis=-1)
    assert front.observation.shape == (1, 2, 2, 3)
    assert last.observation.shape == last.next_observation.shape == (1, 2, 3, 2)
    expected = np.stack([planes.observations[5], planes.observations[6]])
    assert np.array_equal(front.observation[0], expected)
    assert np.array_equal(last.observation[0], np.moveaxis(expected, 0, -1))
    assert np.array_equal(last.next_observation[0, ..., 1], planes.observations[7])


def test_channels_of_images_are_joined_oldest_frame_first():
    images = Frames(np.arange(12 * 2 * 2 * 3).reshape(12, 2, 2, 3), "int16")
    batch = gathered([5, 3], images, stack=2, stack_axis=-1)
    assert batch.observation.shape == (2, 2, 2, 6)
    assert np.array_equal(
        batch.observation[0], np.concatenate([images.observations[5], images.observations[6]], -1)
    )
    assert np.array_equal(
        batch.next_observation[0],
        np.concatenate([images.observations[6], images.observations[7]], -1),
    )
    assert np.array_equal(
        batch.observation[1], np.concatenate([images.observations[4], images.observations[4]], -1)
    )
    front = gathered([5], images, stack=2)
    assert front.observation.shape == (1, 2, 2, 2, 3)


@pytest.mark.parametrize("stack_axis", [0, -1])
def test_a_stack_of_1_keeps_its_axis_and_none_drops_it(stack_axis):
    planes = Frames(np.arange(12 * 6).reshape(12, 2, 3), "int16")
    one = gathered(IDS, planes, stack=1, stack_axis=stack_axis)
    none = gathered(IDS, planes, stack=None, stack_axis=stack_axis)
    shape = (9, 1, 2, 3) if stack_axis == 0 else (9, 2, 3, 1)
    assert one.observation.shape == one.next_observation.shape == shape
    assert none.observation.shape == none.next_observation.shape == (9, 2, 3)
    assert np.array_equal(none.observation, planes.observations[BEFORE])
    assert np.array_equal(none.next_observation, planes.observations[BEFORE + 1])
    assert np.array_equal(one.observation.reshape(9, 2, 3), none.observation)
    assert np.array_equal(one.next_observation.reshape(9, 2, 3), none.next_observation)


@pytest.mark.parametrize("n_step", [1, 3])
def test_none_and_1_are_the_same_frames_for_any_number_of_steps(n_step):
    none = gathered(IDS, stack=None, n_step=n_step)
    one = gathered(IDS, stack=1, n_step=n_step)
    assert none.observation.tolist() == one.observation[:, 0].tolist()
    assert none.next_observation.tolist() == one.next_observation[:, 0].tolist()


def test_a_long_stack_is_mostly_padding():
    batch = gathered([2], stack=MAX_STACK)
    assert batch.observation[0].tolist() == [10] * 63 + [11, 12]
    batch = gathered([2], stack=100, padding="zero")
    assert batch.next_observation[0].tolist() == [0] * 96 + [10, 11, 12, 13]


def test_a_dict_of_frames_is_a_dict_of_stacks():
    rows = Rows({"a": SCALARS, "b": Frames(np.arange(24).reshape(12, 2), "float32")})
    batch = gathered([1, 7], rows=rows, stack=2)
    assert isinstance(batch.observation, dict)
    assert isinstance(batch.next_observation, dict)
    assert batch.observation["a"].tolist() == [[10, 11], [30, 30]]
    assert batch.next_observation["a"].tolist() == [[11, 12], [30, 31]]
    assert batch.observation["b"].tolist() == [[[0, 1], [2, 3]], [[18, 19], [18, 19]]]
    assert batch.observation["b"].dtype == np.float32


def test_a_stack_of_an_evicted_beginning_shows_the_frames_that_are_kept():
    steps = np.arange(1, 401)
    index = index_of(steps=steps, ends=0 * steps, finals=(), bases=100)
    rows = Rows(Column(np.arange(500), "int64"))
    for name in ("rewards", "non_terminals", "actions"):
        rows.columns[name] = Column(np.ones(500), rows.columns[name].dtype)
    for padding in ("reset", "zero"):
        batch = gathered([164], rows=rows, index=index, stack=65, padding=padding, n_step=2)
        assert batch.observation[0].tolist() == list(range(100, 165))
        assert batch.next_observation[0].tolist() == list(range(102, 167))


# ---------------------------------------------------------------- n-step returns


def test_lanes_do_not_run_into_each_other():
    ids = [(lane << LANE_SHIFT) + row for lane in (2, 0, 1) for row in IDS]
    frames = Frames(OBSERVATIONS, "uint8", 3)
    batch = gathered(ids, frames, index=index_of(3), stack=3, n_step=3, gamma=0.5)
    # The fakes of lane n add 100 n to everything, flags included: compare with each lane alone.
    for number, lane in enumerate((2, 0, 1)):
        part = slice(9 * number, 9 * number + 9)
        alone = gathered(
            [(lane << LANE_SHIFT) + row for row in IDS],
            frames,
            index=index_of(3),
            stack=3,
            n_step=3,
            gamma=0.5,
        )
        assert np.array_equal(batch.observation[part], alone.observation)
        assert np.array_equal(batch.next_observation[part], alone.next_observation)
        assert np.array_equal(batch.reward[part], alone.reward)
    for row, seen in zip(IDS, batch.observation[:9], strict=True):
        assert seen.tolist() == [200 + value for value in PADDED["reset"][row][0]]


# ---------------------------------------------------------------- the batch


def test_the_same_transition_may_be_asked_for_twice():
    batch = gathered([4, 4, 0, 4], stack=2, n_step=2)
    assert batch.id.tolist() == [4, 4, 0, 4]
    assert batch.observation[0].tolist() == batch.observation[3].tolist() == [20, 21]
