"""Sums over episodes and over selected runs, kept up to date as an index grows."""

import itertools
import random

import numpy as np
import pytest

from mmreplay.errors import EmptyBufferError
from mmreplay.sampling.draws import BOUNDARIES, Windows, WindowSampler
from mmreplay.sampling.episode_sums import SelectedSums, _interval
from mmreplay.sampling.selection import Selection
from tests.support.lane_history import History, follow, loaded
from tests.support.oracle.naive_windows import WINDOWS, naive_starts


@pytest.mark.parametrize("capacity", [None, 40, 3])
@pytest.mark.parametrize("environments", [[1], [1, 1, 1], [3], [1, 2]])
def test_the_windows_of_an_index_that_grows_are_those_of_a_new_one(environments, capacity):
    chance = random.Random(len(environments))
    histories = [History(n, number, capacity=capacity) for number, n in enumerate(environments)]
    index = loaded(histories)
    samplers = {one: WindowSampler(one) for one in WINDOWS[::7]}
    for turn in range(30):
        chance.choice(histories).play(chance.randrange(1, 9))
        follow(index, histories)
        if turn % 7 and turn < 26:  # most changes are not seen one by one
            continue
        for windows, sampler in samplers.items():
            expected = naive_starts(index, windows)
            if not expected:
                with pytest.raises(EmptyBufferError):
                    sampler.every(index)
                continue
            assert sampler.every(index).tolist() == expected, windows
            draws = (np.arange(len(expected)) + 0.5) / len(expected)
            assert sorted(sampler.draw(index, draws).tolist()) == expected


def test_a_sampler_takes_another_index_for_another():
    sampler = WindowSampler(Windows(2))
    for head in (4, 8, 4):
        assert sampler.every(loaded([History.of(head)])).tolist() == list(range(head - 1))


@pytest.mark.parametrize("size", [1, 2, 300, 65_535, 65_536, 65_537, 65_792, 100_000])
def test_few_and_many_bounds_are_searched_to_the_same_end(size):
    chance = np.random.default_rng(size)
    bounds = np.append(0, chance.integers(0, 3, size).cumsum())  # some count nothing
    bounds[-1] += 1
    sought = chance.integers(0, bounds[-1], 2_000)
    sought[:2] = 0, bounds[-1] - 1
    assert _interval(bounds, sought).tolist() == (bounds.searchsorted(sought, "right") - 1).tolist()


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
