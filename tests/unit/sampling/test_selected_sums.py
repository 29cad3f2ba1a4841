"""Sums over runs: which windows of an episode lie in what is selected of it, one by one."""

import itertools

import numpy as np
import pytest

from mmreplay.sampling.selected_sums import SelectedSums
from mmreplay.sampling.selection import Selection
from mmreplay.sampling.windows import BOUNDARIES, Windows
from tests.support.lane_history import History, follow, loaded


def ids(*values):
    return np.array(values, np.int64)


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_the_windows_of_any_part_of_any_episode_are_those_that_lie_in_it(boundary):
    every = itertools.product(range(1, 4), range(3), range(1, 4), range(1, 9))
    for length, burn_in, stride, steps in every:
        windows = Windows(length, burn_in, boundary, stride)
        n = int(windows.count(ids(steps))[0])
        begins = windows.offset(np.full(n, steps), np.arange(n)).tolist()
        for skipped, kept in itertools.product(range(steps), range(1, steps + 1)):
            if skipped + kept > steps:
                continue
            first, count = windows.count_selected(ids(steps), ids(skipped), ids(kept))
            expected = [
                number
                for number, begin in enumerate(begins)
                if skipped <= begin and min(begin + length, steps) <= skipped + kept
            ]
            found = list(range(int(first[0]), int(first[0] + count[0])))
            assert found == expected, (windows, steps, skipped, kept)


def test_an_episode_that_grows_counts_as_it_is_now():
    history = History.of(4, 3)
    index = loaded([history])
    selection = Selection(ids(0, 4), ids(4, 3), [1], ["a"])
    sums = SelectedSums(selection, lambda steps, skipped, kept: (skipped, steps), whole=True)
    assert sums.follow(index) == 7
    assert sums.at(ids(0, 4))[0].tolist() == [0, 4]
    history.extend(1)
    follow(index, [history])
    assert sums.follow(index) == 4  # of the other one a step is not selected
    assert sums.longest() == 4
