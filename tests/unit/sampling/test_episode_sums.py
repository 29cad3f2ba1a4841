"""Sums over episodes, kept up to date as an index grows."""

import random

import numpy as np
import pytest

from mmreplay.errors import EmptyBufferError
from mmreplay.sampling.episode_sums import _interval
from mmreplay.sampling.windows import Windows, WindowSampler
from tests.support.lane_history import History, follow, loaded
from tests.support.oracle.naive_windows import WINDOWS, naive_starts


@pytest.mark.parametrize("capacity", [None, 40, 3])
@pytest.mark.parametrize("environments", [[1], [1, 1, 1], [3], [1, 2]])
def test_the_windows_of_an_index_that_grows_are_those_of_a_new_one(environments, capacity):
    chance = random.Random(len(environments))
    histories = [History(n, number, capacity=capacity) for number, n in enumerate(environments)]
    index = loaded(histories)
    samplers = {one: WindowSampler(one) for one in WINDOWS[::7]}
    for turn in range(50):
        chance.choice(histories).play(chance.randrange(1, 9))
        follow(index, histories)
        if turn % 7 and turn < 45:  # most changes are not seen one by one
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
