"""Whole episodes: each with the same probability, whatever its length."""

import numpy as np
import pytest

from mmreplay.errors import EmptyBufferError, SchemaError
from mmreplay.sampling.episode_draws import TrajectorySampler
from tests.support.even_draws import even_draws
from tests.support.lane_history import History, loaded


def test_trajectories_are_whole_episodes(index, whole_episodes):
    assert [steps for _, steps in whole_episodes] == [4, 13, 20, 19]
    drawn = TrajectorySampler().draw(index, even_draws(4))
    assert drawn.tolist() == [first for first, _ in whole_episodes]


def test_without_replacement_each_whole_episode_is_drawn_once(index, whole_episodes):
    sampler = TrajectorySampler()
    whole = [first for first, _ in whole_episodes]
    assert sorted(sampler.draw_distinct(index, 4, 3).tolist()) == whole
    with pytest.raises(SchemaError, match="at most the 4 whole episodes there are"):
        sampler.draw_distinct(index, 5, 3)


def test_a_draw_from_no_whole_episode_is_refused():
    with pytest.raises(EmptyBufferError, match="there is no whole episode"):
        TrajectorySampler().draw(loaded([History(1, 0)]), np.array([0.5]))
