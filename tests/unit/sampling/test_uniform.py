"""Uniform draws: each transition has an equal stretch of the draws."""

import numpy as np
import pytest

from mmreplay.errors import EmptyBufferError
from mmreplay.ids import LANE_SHIFT
from mmreplay.sampling.uniform import uniform_ids
from tests.support.lane_history import History, loaded


@pytest.mark.parametrize("size", [1, 2, 63, 64, 65, 1000])
def test_each_draw_gives_one_transition_and_the_same_draws_the_same(index, size):
    draws = np.random.default_rng(1).random(size)
    drawn = uniform_ids(index, draws)
    assert (drawn.dtype, drawn.shape) == (np.dtype("int64"), (size,))
    assert not index.invalid(drawn).any()
    assert uniform_ids(index, draws).tolist() == drawn.tolist()
    assert [uniform_ids(index, draws[n : n + 1])[0] for n in range(size)] == drawn.tolist()


def test_a_single_transition_is_all_that_is_drawn():
    index = loaded([History(1, 0), History.of(1), History(1, 0)])
    draws = np.random.default_rng(0).random(5)
    assert uniform_ids(index, draws).tolist() == [1 << LANE_SHIFT] * 5


def test_the_least_draw_is_the_oldest_transition_and_the_greatest_the_newest(index):
    draws = np.array([0.0, np.nextafter(1.0, 0.0)])
    assert uniform_ids(index, draws).tolist() == [index.ids()[0], index.ids()[-1]]


def test_every_transition_has_its_stretch_of_the_draws(index):
    count = index.n_transitions
    draws = (np.arange(count) + 0.5) / count
    assert uniform_ids(index, draws).tolist() == index.ids().tolist()


def test_nothing_can_be_drawn_from_nothing():
    index = loaded([History(1, 0), History(4, 0)])
    with pytest.raises(EmptyBufferError, match="a transition needs a reset and a step"):
        uniform_ids(index, np.array([0.5]))
