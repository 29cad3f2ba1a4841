"""Stacks and n-step returns, worked out by hand."""

import numpy as np
import pytest

from tests.support.oracle.handmade_rows import (
    BEFORE,
    IDS,
    Column,
    Frames,
    Rows,
    gathered,
    index_of,
)

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
