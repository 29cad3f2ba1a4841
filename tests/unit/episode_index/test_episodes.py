"""The episodes of a lane, by number and in the list."""

import numpy as np

from mmreplay.episode_index import EPISODE_DTYPE, RowIndex


def test_an_episode_is_a_row_of_five_fields():
    assert EPISODE_DTYPE.names == ("id", "length", "return", "terminated", "truncated")


def test_those_that_are_over_have_numbers_and_the_oldest_and_the_newest_are_listed():
    index = RowIndex(1)
    index.load(0, 0, 12, np.array([0, 4, 6, 8]), None)
    found = index.episodes(0)
    assert (found.known, found.start, found.stop, found.cut.tolist()) == (0, 1, 3, [])
    over = index.ended(0, np.arange(found.start, found.stop))
    assert [one.tolist() for one in over] == [[4, 6], [1, 1]]
    assert (found.stride, found.place) == (1, 1)
    assert found.firsts(np.array([0, 2])).tolist() == [0, 8]
    assert found.steps.tolist() == [3, 0, 3]
    assert found.whole()[[0, 2]].tolist() == [True, True]


def test_the_oldest_one_is_not_whole_once_steps_of_it_cannot_be_sampled():
    index = RowIndex(1)
    index.load(0, 0, 12, np.array([0, 8]), 7)
    found = index.episodes(0)
    assert found.start == found.stop
    assert found.firsts(np.array([0, 2])).tolist() == [3, 8]
    assert found.steps.tolist() == [4, 0, 3]
    assert found.whole()[[0, 2]].tolist() == [False, True]
